package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrGone says that a path no longer leads to a network namespace: its owner took
// it away.
var ErrGone = errors.New("the network namespace is gone")

// ErrOther says that what a path leads to is no network namespace, but something
// else.
var ErrOther = errors.New("this is not a network namespace")

// ID is the identity of a namespace while it lives.
type ID struct {
	Dev, Inode uint64
}

// NS is an open network namespace. It keeps the namespace alive until it is
// closed.
type NS struct {
	fd   int
	id   ID
	path string
}

const self = "/proc/thread-self/ns/net"

// Current opens the namespace of the process.
func Current() (*NS, error) { return Open(self) }

// Open opens the network namespace at an absolute path. What is there is looked
// at before it is opened for real, so that a device, a pipe or a plain file that
// somebody put there is never touched. The error is ErrGone if nothing is there,
// or only the empty file that a namespace was once mounted on, and ErrOther if it is
// anything else.
func Open(name string) (*NS, error) {
	if !path.IsAbs(name) || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return nil, fmt.Errorf("open network namespace %q: want a clean absolute path", name)
	}
	look, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("open network namespace %s: %w", name, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	defer unix.Close(look)
	if err := isNamespace(look); err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(look), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	n := &NS{fd: fd, path: name}
	if err := n.identify(); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	return n, nil
}

// isNamespace says what is wrong with a file that ought to be a namespace.
func isNamespace(fd int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("ask for its file system: %w", err)
	}
	if fs.Type == unix.NSFS_MAGIC {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil && fs.Type != unix.PROC_SUPER_MAGIC && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == 0 {
		return ErrGone
	}
	return ErrOther
}

func (n *NS) identify() error {
	kind, err := unix.IoctlRetInt(n.fd, unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return ErrOther
	}
	var st unix.Stat_t
	if err := unix.Fstat(n.fd, &st); err != nil {
		return fmt.Errorf("ask for its identity: %w", err)
	}
	n.id = ID{Dev: st.Dev, Inode: st.Ino}
	return nil
}

// FD is the open file, valid until Close.
func (n *NS) FD() int { return n.fd }

// ID tells namespaces apart: two NS with one ID are the same namespace.
func (n *NS) ID() ID { return n.id }

// String is the path that it was opened by.
func (n *NS) String() string { return n.path }

// Close lets the namespace go.
func (n *NS) Close() error {
	if err := unix.Close(n.fd); err != nil {
		return fmt.Errorf("close network namespace %s: %w", n.path, err)
	}
	return nil
}

// Do runs fn on a thread that is inside of the namespace, and waits for it. What
// fn opens (sockets, files below /proc/sys/net) belongs to the namespace for good;
// goroutines that it starts do not run there. Where the calling thread is in the
// namespace already, as every thread of a process in its own one is, fn runs on it.
func (n *NS) Do(fn func() error) error {
	if done, err := n.doHere(fn); done {
		return err
	}
	done := make(chan error, 1)
	go func() {
		err := errors.New("the function ended its goroutine")
		defer func() { done <- err }()
		err = n.run(fn)
	}()
	return <-done
}

// doHere runs fn on the calling thread if that is in the namespace.
func (n *NS) doHere(fn func() error) (done bool, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var st unix.Stat_t
	if unix.Stat(self, &st) != nil || (ID{Dev: st.Dev, Inode: st.Ino}) != n.id {
		return false, nil
	}
	return true, fn()
}

// Addresses are those of all links in the namespace, sorted.
func (n *NS) Addresses() ([]netip.Addr, error) {
	var found []net.Addr
	err := n.Do(func() (err error) {
		found, err = net.InterfaceAddrs()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the addresses in network namespace %s: %w", n, err)
	}
	var out []netip.Addr
	for _, a := range found {
		if p, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(p.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// run must be called in a goroutine of its own: if the thread cannot be brought
// back it stays locked, and the runtime ends it with the goroutine.
func (n *NS) run(fn func() error) error {
	runtime.LockOSThread()
	home, err := unix.Open(self, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer unix.Close(home)
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", n.path, err)
	}
	defer func() {
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return fn()
}
