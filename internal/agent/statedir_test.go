package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/config"
)

func TestRemoveFiles(t *testing.T) {
	root := t.TempDir()
	c := config.Agent{StateDir: filepath.Join(root, "state"), RunDir: filepath.Join(root, "run"), BPFDir: filepath.Join(root, "bpf")}
	for _, path := range []string{
		"state/attachments/a.json", "state/trial", "state/addresses.json", "state/world.checkpoint", "state/journal.jsonl", "state/journal.jsonl.1",
		"state/.addresses.json4711", "state/.world.checkpoint12", "run/.sysctls.json3",
		"run/cni.sock", "run/cni.sock.lock", "run/admin.sock", "run/admin.sock.lock", "run/theirs",
	} {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time there is nothing left to do
		if err := RemoveFiles(c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(c.StateDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the empty state directory: %v", err)
	}
	left, err := os.ReadDir(c.RunDir)
	if err != nil || len(left) != 1 || left[0].Name() != "theirs" {
		t.Errorf("left in the run directory: %v, %v; want what is not ours", left, err)
	}
}

// One agent at a time reads and writes the directory, and what a killed one was about to
// write does not stay.
func TestClaim(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"addresses.json", ".addresses.json4711", ".world.checkpoint12", ".addresses.json.swp", ".theirs7"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	held, err := Claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff([]string{".addresses.json.swp", ".theirs7", "addresses.json"}, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if _, err := Claim(dir); err == nil || !strings.Contains(err.Error(), "another fairlead-agent uses it") {
		t.Errorf("a second claim: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Claim(dir)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Claim(filepath.Join(dir, "gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// A disk that is full, or read-only, is noticed, and so is that it is not any more.
func TestTryWrite(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	full := filepath.Join(dir, "full")
	for _, step := range []struct {
		name string
		do   func() error
		want error
	}{
		{"empty", func() error { return nil }, nil},
		{"full", func() error { return onlyIf(os.WriteFile(full, make([]byte, 1<<20), 0o600), unix.ENOSPC) }, unix.ENOSPC},
		{"empty again", func() error { return os.Remove(full) }, nil},
		{"read-only", func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") }, unix.EROFS},
		{"writable again", func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "") }, nil},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if err := tryWrite(dir); !errors.Is(err, step.want) {
			t.Errorf("%s: %v, want %v", step.name, err, step.want)
		}
		if _, err := os.Stat(filepath.Join(dir, trial)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: something is left: %v", step.name, err)
		}
	}
}

func onlyIf(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return err
}
