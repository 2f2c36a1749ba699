package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

const (
	// endTimeout bounds the end of all processes, goneTimeout that of their network
	// namespaces.
	endTimeout  = 30 * time.Second
	goneTimeout = 60 * time.Second
	// pollEnd is how often a process that ends is looked at.
	pollEnd = 50 * time.Millisecond
)

// Down ends the lab: all its processes, by killing process 1 of its pid namespace;
// then it waits until the kernel has removed the network namespaces, and removes the
// directory. What a killed supervisor or a reboot left is removed as well.
func (l *Lab) Down(ctx context.Context) error {
	running, err := l.running()
	if err != nil {
		return err
	}
	if running {
		pid, err := l.supervisor()
		if err != nil {
			return err
		}
		if err := l.kill(ctx, pid); err != nil {
			// Once the supervisor has ended its directory is of no use to anybody.
			if still, lockErr := l.running(); still || lockErr != nil {
				return errors.Join(err, lockErr)
			}
			return errors.Join(err, l.remove())
		}
	}
	return l.remove()
}

// kill ends the supervisor, and with it every process of the lab, and waits until
// their network namespaces are gone.
func (l *Lab) kill(ctx context.Context, pid int) error {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lab %s: open process %d: %w", l.name, pid, err)
	}
	defer unix.Close(pidfd)
	// The lock tells whether the lab's supervisor still lives, and so whether this
	// pid is its.
	if running, err := l.running(); err != nil || !running {
		return err
	}
	watch, held, err := watchSpaces(pid)
	if err != nil {
		return fmt.Errorf("lab %s: %w", l.name, err)
	}
	defer watch.Close()
	defer held.close()
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("lab %s: end process %d: %w", l.name, pid, err)
	}
	ended, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := waitEnd(ended, pidfd); err != nil {
		return fmt.Errorf("lab %s: process %d does not end: %w", l.name, pid, err)
	}
	if err := held.close(); err != nil {
		return fmt.Errorf("lab %s: %w", l.name, err)
	}
	gone, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	if err := watch.Wait(gone); err != nil {
		return fmt.Errorf("lab %s: %w", l.name, err)
	}
	return nil
}

// waitEnd waits until a process has ended, and collects it if it is a child of this
// program. Process 1 of a pid namespace ends after all the others in it.
func waitEnd(ctx context.Context, pidfd int) error {
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(pollEnd/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			break
		}
	}
	err := unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED, nil)
	if errors.Is(err, unix.ECHILD) {
		return nil
	}
	return err
}

// remove removes the lab's directory, and the default directory of labs if it is
// empty then. One that was named by somebody is theirs.
func (l *Lab) remove() error {
	if err := os.RemoveAll(l.dir()); err != nil {
		return fmt.Errorf("lab %s: remove its directory: %w", l.name, err)
	}
	if l.root != DefaultRoot {
		return nil
	}
	err := os.Remove(l.root)
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("lab %s: remove the empty directory of labs: %w", l.name, err)
	}
	return nil
}

// spaces are network namespaces that are held open. While the processes end, their
// TCP connections are closed over networks that are still there; sockets that cannot
// say goodbye would keep their namespaces for seconds.
type spaces struct {
	files []*os.File
	seen  map[netspace.ID]bool
}

func (s *spaces) close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	s.files = nil
	return errors.Join(errs...)
}

// watchSpaces watches, and holds, every network namespace that the process pid, its
// descendants, their open files and the named namespaces of their mounts hold.
func watchSpaces(pid int) (*netspace.Watch, *spaces, error) {
	w, err := netspace.NewWatch()
	if err != nil {
		return nil, nil, err
	}
	held := &spaces{seen: map[netspace.ID]bool{}}
	if err := held.add(w, pid); err != nil {
		return nil, nil, errors.Join(err, held.close(), w.Close())
	}
	return w, held, nil
}

func (s *spaces) add(w *netspace.Watch, pid int) error {
	own, err := os.Open(netspace.Self)
	if err != nil {
		return err
	}
	defer own.Close()
	self, err := netspace.IDOf(own)
	if err != nil {
		return err
	}
	s.seen[self] = true
	for _, p := range descendants(pid) {
		proc := filepath.Join("/proc", strconv.Itoa(p))
		paths := []string{filepath.Join(proc, "ns/net")}
		if p == pid {
			paths = append(paths, openNamespaces(filepath.Join(proc, "fd"))...)
		}
		paths = append(paths, namedNamespaces(filepath.Join(proc, "root/run/netns"))...)
		for _, path := range paths {
			if err := s.hold(w, path); err != nil {
				return err
			}
		}
	}
	return nil
}

// hold opens and watches the namespace at path, once. What is gone, or no namespace,
// needs neither.
func (s *spaces) hold(w *netspace.Watch, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	if kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return f.Close()
	}
	id, err := netspace.IDOf(f)
	if err != nil || s.seen[id] {
		return errors.Join(err, f.Close())
	}
	s.seen[id] = true
	s.files = append(s.files, f)
	return w.Add(f)
}

// namedNamespaces lists the namespaces that have a name in a node's directory, but
// not those of the host itself, which the supervisor sees too.
func namedNamespaces(dir string) []string {
	node, err := os.Stat(dir)
	if err != nil {
		return nil
	}
	if host, err := os.Stat("/run/netns"); err == nil && os.SameFile(node, host) {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, filepath.Join(dir, e.Name()))
	}
	return out
}

// openNamespaces lists the descriptors in a /proc/PID/fd that are network
// namespaces.
func openNamespaces(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // it has ended
	}
	var out []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, "net:[") {
			out = append(out, path)
		}
	}
	return out
}

// descendants lists a process and all that it started, directly or not.
func descendants(pid int) []int {
	children := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []int{pid}
	}
	for _, e := range entries {
		p, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// pid (comm) state ppid …: comm may hold anything.
		fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], p)
		}
	}
	out := []int{pid}
	for i := 0; i < len(out); i++ {
		out = append(out, children[out[i]]...)
	}
	return out
}
