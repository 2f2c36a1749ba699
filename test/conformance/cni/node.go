package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NewNode makes a node: a network namespace with lo up, and a mount namespace in
// which /run and /var/lib/cni are empty and private. The function that it returns
// calls its argument inside, on a thread of its own, and may be called concurrently.
// The node ends with the test. Without the right to make one the test is skipped.
func NewNode(t testing.TB) func(func() error) error {
	t.Helper()
	netFD, mntFD := -1, -1
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := prepareNode(); err != nil {
			return err
		}
		var err error
		if netFD, err = openNamespace("net"); err != nil {
			return err
		}
		if mntFD, err = openNamespace("mnt"); err != nil {
			unix.Close(netFD)
		}
		return err
	})
	if errors.Is(err, unix.EPERM) {
		t.Skipf("making a node needs root (CAP_SYS_ADMIN): %v", err)
	}
	if err != nil {
		t.Fatalf("make a node: %v", err)
	}
	t.Cleanup(func() {
		unix.Close(netFD)
		unix.Close(mntFD)
	})
	return func(fn func() error) error {
		return onThread(func() error {
			// A thread may enter a mount namespace only if it shares no root and
			// working directory with others.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			if err := unix.Setns(mntFD, unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("enter the node's mount namespace: %w", err)
			}
			if err := unix.Setns(netFD, unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter the node's network namespace: %w", err)
			}
			return fn()
		})
	}
}

// onThread calls fn on an OS thread that ends with it, whatever fn did to it.
func onThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		result <- fn()
	}()
	return <-result
}

// openNamespace opens the calling thread's namespace.
func openNamespace(kind string) (int, error) {
	fd, err := unix.Open("/proc/thread-self/ns/"+kind, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the thread's %s namespace: %w", kind, err)
	}
	return fd, nil
}

// prepareNode makes the new mount and network namespace of the thread usable.
func prepareNode() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount the node's /sys: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib/cni"} {
		if err := coverDir(dir); err != nil {
			return err
		}
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	lo, err := handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := handle.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// coverDir mounts an empty tmpfs on dir. If dir does not exist its parent is
// replaced by a tmpfs with the same entries, so that the host's files stay as they
// are.
func coverDir(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := replaceParent(filepath.Dir(dir)); err != nil {
			return err
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}

func replaceParent(parent string) error {
	old, err := unix.Open(parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", parent, err)
	}
	defer unix.Close(old)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", parent, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", parent, err)
	}
	for _, e := range entries {
		source := fmt.Sprintf("/proc/thread-self/fd/%d/%s", old, e.Name())
		target := filepath.Join(parent, e.Name())
		switch {
		case e.IsDir():
			if err = os.Mkdir(target, 0o755); err == nil {
				err = unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, "")
			}
		case e.Type()&os.ModeSymlink != 0:
			var link string
			if link, err = os.Readlink(source); err == nil {
				err = os.Symlink(link, target)
			}
		}
		if err != nil {
			return fmt.Errorf("carry %s over: %w", target, err)
		}
	}
	return nil
}
