package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func open(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func notes(t *testing.T, j *Journal, since time.Time) []string {
	t.Helper()
	entries, err := j.Entries(since)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Note)
	}
	return out
}

func TestSurvivesRestartAndTornLine(t *testing.T) {
	dir := t.TempDir()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	first := open(t, dir)
	for i := range 3 {
		if err := first.Add(Entry{Time: noon.Add(time.Duration(i) * time.Minute), Note: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	first.Close()
	path := filepath.Join(dir, "journal.jsonl")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// A crash at any byte of the last line loses that line only.
	start := strings.LastIndex(strings.TrimSpace(string(raw)), "\n") + 1
	for cut := start + 1; cut < len(raw)-1; cut++ {
		if err := os.WriteFile(path, raw[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		j := open(t, dir)
		if err := j.Add(Entry{Time: noon, Note: "after"}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(notes(t, j, time.Time{}), " "); got != "0 1 after" {
			t.Fatalf("cut at byte %d: got %q, want \"0 1 after\"", cut, got)
		}
		j.Close()
	}
}

func TestSince(t *testing.T) {
	j := open(t, t.TempDir())
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for i := range 3 {
		j.Add(Entry{Time: noon.Add(time.Duration(i) * time.Minute), Note: fmt.Sprint(i)})
	}
	if got := strings.Join(notes(t, j, noon.Add(time.Minute)), " "); got != "1 2" {
		t.Errorf("since the second minute: got %q, want \"1 2\"", got)
	}
}

func TestBounded(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	long := make([]string, 5000)
	for i := range long {
		long[i] = strings.Repeat("x", 100)
	}
	for i := range 300 {
		if err := j.Add(Entry{Time: time.Now(), Note: fmt.Sprint(i), Changes: long}); err != nil {
			t.Fatal(err)
		}
	}
	total := int64(0)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > 2*fileSize+100<<10 {
		t.Errorf("the journal has %d bytes, want about two files of %d at most", total, fileSize)
	}
	entries, err := j.Entries(time.Time{})
	if err != nil || len(entries) == 0 || entries[len(entries)-1].Note != "299" {
		t.Fatalf("the newest entry is lost: %d entries, %v", len(entries), err)
	}
	if got := entries[0].Changes[listLength]; got != "and 4800 more" {
		t.Errorf("the cut list ends with %q", got)
	}
}
