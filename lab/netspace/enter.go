package netspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// kinds in the order in which they are entered: the mount namespace last, since
// the paths of the others are resolved before.
var kinds = []struct {
	name string
	flag int
}{
	{"ipc", unix.CLONE_NEWIPC},
	{"uts", unix.CLONE_NEWUTS},
	{"net", unix.CLONE_NEWNET},
	{"pid", unix.CLONE_NEWPID},
	{"mnt", unix.CLONE_NEWNS},
}

// Start starts a command inside every namespace of the process pid, but in the
// network namespace at netPath if that is not empty. The working directory is the
// root.
func Start(pid int, netPath string, name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, k := range kinds {
		path := fmt.Sprintf("/proc/%d/ns/%s", pid, k.name)
		if k.name == "net" && netPath != "" {
			path = netPath
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("process %d has ended: %w", pid, err)
		} else if err != nil {
			return nil, fmt.Errorf("open namespace: %w", err)
		}
		files = append(files, f)
	}
	type result struct {
		p   *os.Process
		err error
	}
	done := make(chan result, 1)
	onSpareThread(func() {
		// Never unlocked: the thread has left the process's file system view for
		// good and ends with its goroutine.
		p, err := startHere(files, name, argv, attr)
		done <- result{p, err}
	})
	r := <-done
	return r.p, r.err
}

func startHere(files []*os.File, name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	// A thread that shares its working directory may not change mount namespaces.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, fmt.Errorf("separate the thread's file system view: %w", err)
	}
	for i, k := range kinds {
		if err := unix.Setns(int(files[i].Fd()), k.flag); err != nil {
			return nil, fmt.Errorf("enter namespace %s: %w", files[i].Name(), err)
		}
	}
	in := *attr
	if in.Dir == "" {
		in.Dir = "/"
	}
	return os.StartProcess(name, argv, &in)
}
