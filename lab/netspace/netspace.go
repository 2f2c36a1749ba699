package netspace

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Self is the network namespace of the calling thread, in the calling process's
// own /proc.
const Self = "/proc/thread-self/ns/net"

// New makes a network namespace. It lives as long as the returned file, a mount of
// it, or a process inside it.
func New() (*os.File, error) {
	var made *os.File
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		f, err := os.Open(Self)
		if err != nil {
			return fmt.Errorf("open the new network namespace: %w", err)
		}
		made = f
		return nil
	})
	return made, err
}

// Open opens the network namespace at path.
func Open(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return f, nil
}

// Do runs fn on a thread inside the network namespace ns. A nil ns is the calling
// process's own. Sockets that fn makes stay in ns and may be used anywhere
// afterwards; goroutines that fn starts do not run in ns.
func Do(ns *os.File, fn func() error) error {
	if ns == nil {
		return fn()
	}
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", ns.Name(), err)
		}
		return fn()
	})
}

// onThread runs fn on a locked thread and brings the thread back to the network
// namespace that it came from; if that fails the thread ends with its goroutine.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	onSpareThread(func() {
		home, err := os.Open(Self)
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		err = fn()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, home.Close())
	})
	return <-done
}

// onSpareThread runs fn in a goroutine that is locked to a thread other than the
// program's first. A thread whose goroutine ends locked is ended by the runtime, all
// but the first, which would stay in its namespaces for as long as the program lives.
func onSpareThread(fn func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			fn()
			return
		}
		// While this goroutine keeps the first thread, another gets another.
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			runtime.LockOSThread()
			fn()
		}()
		<-finished
		runtime.UnlockOSThread()
	}()
}

// ID identifies a namespace among all that exist at the moment.
type ID struct {
	Device uint64
	Inode  uint64
}

// IDOf identifies the namespace that f refers to.
func IDOf(f *os.File) (ID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return ID{}, fmt.Errorf("identify namespace %s: %w", f.Name(), err)
	}
	return ID{Device: st.Dev, Inode: st.Ino}, nil
}
