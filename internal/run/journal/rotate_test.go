package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
)

// Whatever keeps the journal from beginning a new file, no entry is lost, and it goes
// on once that is over.
func TestRotationThatFails(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	older := filepath.Join(dir, "journal.jsonl.1")
	if err := os.MkdirAll(filepath.Join(older, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	j.size = fileSize + 1
	if err := j.Add(Entry{Time: now, Note: "first"}); err == nil {
		t.Error("the failed rotation was not told")
	}
	if err := os.RemoveAll(older); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(notes(t, j, time.Time{}), " "); got != "first" {
		t.Errorf("after a rotation that failed: %q, want \"first\"", got)
	}
	if err := j.Add(Entry{Time: now, Note: "second"}); err != nil {
		t.Errorf("after the hindrance is gone: %v", err)
	}
	// Somebody removes the file.
	if err := os.Remove(j.path); err != nil {
		t.Fatal(err)
	}
	j.size = fileSize + 1
	if err := j.Add(Entry{Time: now, Note: "third"}); err != nil {
		t.Errorf("after the file was removed: %v", err)
	}
	if got := strings.Join(notes(t, j, time.Time{}), " "); got != "first third" {
		t.Errorf("in the end: %q, want \"first third\"", got)
	}
}

func TestForeignChangesAreBounded(t *testing.T) {
	j := open(t, t.TempDir())
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	var foreign []apply.Foreign
	for range listLength + 7 {
		foreign = append(foreign, apply.Foreign{Time: now, Subsystem: "route", What: "deleted"})
	}
	if err := j.Add(Entry{Time: now, Foreign: foreign}); err != nil {
		t.Fatal(err)
	}
	entries, err := j.Entries(time.Time{})
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	if got := entries[0].Foreign; len(got) != listLength+1 || got[listLength].What != "and 7 more" {
		t.Errorf("%d foreign changes, the last %+v; want %d and \"and 7 more\"", len(got), got[len(got)-1], listLength+1)
	}
}
