package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fairlead-sdn/fairlead/internal/config"
)

// Files are the paths of what an agent writes on a node's disk: the records of attachments
// and addresses, the checkpoint, the journal and the sockets.
func Files(c config.Agent) []string {
	return []string{
		filepath.Join(c.StateDir, "attachments"), filepath.Join(c.StateDir, "addresses.json"),
		filepath.Join(c.StateDir, "world.checkpoint"),
		filepath.Join(c.StateDir, "journal.jsonl"), filepath.Join(c.StateDir, "journal.jsonl.1"),
		filepath.Join(c.RunDir, "cni.sock"), filepath.Join(c.RunDir, "cni.sock.lock"),
		filepath.Join(c.RunDir, "admin.sock"), filepath.Join(c.RunDir, "admin.sock.lock"),
	}
}

// RemoveFiles removes them. No agent may be running, and the plane must be uninstalled: the
// records say what is ours. Files of others stay, and so do directories that hold any.
func RemoveFiles(c config.Agent) error {
	var errs []error
	for _, path := range Files(c) {
		errs = append(errs, os.RemoveAll(path))
	}
	for _, dir := range []string{c.StateDir, c.RunDir, c.BPFDir} {
		entries, err := os.ReadDir(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case len(entries) == 0:
			// One that is a mount stays: it is not ours.
			_ = os.Remove(dir)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the agent's files: %w", err)
	}
	return nil
}
