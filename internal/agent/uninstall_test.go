package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/config"
)

func TestRemoveFiles(t *testing.T) {
	root := t.TempDir()
	c := config.Agent{StateDir: filepath.Join(root, "state"), RunDir: filepath.Join(root, "run"), BPFDir: filepath.Join(root, "bpf")}
	for _, path := range []string{
		"state/attachments/a.json", "state/addresses.json", "state/world.checkpoint", "state/journal.jsonl", "state/journal.jsonl.1",
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
