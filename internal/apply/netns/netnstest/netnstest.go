// Package netnstest makes fresh network namespaces for tests. They are mounted
// below the test's own directory and are gone when it ends; the host's own
// namespace is never touched.
package netnstest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
)

// New makes a network namespace with nothing but a loopback link, or skips the
// test if this process may not.
func New(t testing.TB) *netns.NS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	file := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", file, "", unix.MS_BIND, "")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Skipf("cannot make a network namespace: %v", err)
	}
	t.Cleanup(func() { Remove(t, file) })
	ns, err := netns.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// Remove takes the namespace at the path away, as a container runtime does. Whoever
// holds it open still has it.
func Remove(t testing.TB, path string) {
	t.Helper()
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		t.Errorf("unmount %s: %v", path, err)
	}
	_ = os.Remove(path)
}
