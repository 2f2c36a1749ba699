package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/config"
)

// Claim takes the state directory for this process, until it ends or closes what is
// returned: what an agent has read there must not be changed by another. It removes what an
// agent that was killed while it wrote has left behind.
func Claim(dir string) (io.Closer, error) {
	held, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	err = unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errors.New("another fairlead-agent uses it; stop that first")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the state directory %s: %w", dir, err), held.Close())
	}
	// One that cannot be removed does no harm.
	for _, path := range unfinished(dir, "addresses.json", "world.checkpoint") {
		_ = os.Remove(path)
	}
	return held, nil
}

// unfinished are the files in which the next content of the named ones was prepared: a dot,
// the name, digits. A writer that lives removes or renames its own.
func unfinished(dir string, names ...string) []string {
	entries, _ := os.ReadDir(dir)
	var out []string
	for _, e := range entries {
		for _, name := range names {
			rest, ok := strings.CutPrefix(e.Name(), "."+name)
			if ok && rest != "" && strings.Trim(rest, "0123456789") == "" && e.Type().IsRegular() {
				out = append(out, filepath.Join(dir, e.Name()))
			}
		}
	}
	return out
}

// tryWrite says why nothing can be written to a directory. What it writes is like a record: it
// takes an inode and a block, and is gone again before it is on the disk.
func tryWrite(dir string) error {
	path := filepath.Join(dir, trial)
	err := os.WriteFile(path, make([]byte, 4096), 0o600)
	if rerr := os.Remove(path); err == nil {
		err = rerr
	}
	if err != nil {
		return fmt.Errorf("the state directory cannot be written, no pod can be started: free space, or make it writable: %w", err)
	}
	return nil
}

// trial is the name of what tryWrite writes.
const trial = "trial"

// Files are the paths of what an agent writes on a node's disk: the records of attachments
// and addresses, the checkpoint, the journal and the sockets.
func Files(c config.Agent) []string {
	return append([]string{
		filepath.Join(c.StateDir, "attachments"), filepath.Join(c.StateDir, "addresses.json"),
		filepath.Join(c.StateDir, "world.checkpoint"), filepath.Join(c.StateDir, trial),
		filepath.Join(c.StateDir, "journal.jsonl"), filepath.Join(c.StateDir, "journal.jsonl.1"),
		filepath.Join(c.RunDir, "cni.sock"), filepath.Join(c.RunDir, "cni.sock.lock"),
		filepath.Join(c.RunDir, "admin.sock"), filepath.Join(c.RunDir, "admin.sock.lock"),
	}, append(unfinished(c.StateDir, "addresses.json", "world.checkpoint"), unfinished(c.RunDir, "sysctls.json")...)...)
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
