package netns_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
)

func open(t *testing.T, name string) *netns.NS {
	t.Helper()
	n, err := netns.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func inode(t *testing.T) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Error(err)
	}
	return st.Ino
}

func TestDoNeverLeavesAThreadInside(t *testing.T) {
	a, b := netnstest.New(t), netnstest.New(t)
	if a.ID() == b.ID() {
		t.Fatalf("two namespaces have one identity %v", a.ID())
	}
	home := inode(t)
	var wg sync.WaitGroup
	for i := range 64 {
		n := a
		if i%2 == 1 {
			n = b
		}
		wg.Go(func() {
			for range 20 {
				_ = n.Do(func() error {
					if got := inode(t); got != n.ID().Inode {
						t.Errorf("inside of %v the thread is in namespace %d", n.ID(), got)
					}
					return nil
				})
				if got := inode(t); got != home {
					t.Errorf("after Do a thread is in namespace %d, want %d", got, home)
				}
			}
		})
	}
	wg.Wait()
}

func TestDoReturnsTheError(t *testing.T) {
	n := netnstest.New(t)
	want := errors.New("as told")
	if got := n.Do(func() error { return want }); !errors.Is(got, want) {
		t.Errorf("Do: got %v, want %v", got, want)
	}
	if err := n.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("Do of a function that ends its goroutine: no error")
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	fifo, plain, empty := filepath.Join(dir, "fifo"), filepath.Join(dir, "plain"), filepath.Join(dir, "empty")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.WriteFile(plain, []byte("x"), 0o600), os.WriteFile(empty, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path  string
		gone, known bool // known: it is certain that there is no network namespace
	}{
		{"relative", "proc/self/ns/net", false, false},
		{"traversal", dir + "/../../proc/self/ns/net", false, false},
		{"zero byte", "/proc\x00", false, false},
		{"empty name", "", false, false},
		{"a pipe does not block", fifo, false, true},
		{"a file with content", plain, false, true},
		{"a device", "/dev/null", false, true},
		{"a directory", dir, false, true},
		{"a namespace of another kind", "/proc/self/ns/uts", false, true},
		{"another file of proc", "/proc/self/status", false, true},
		{"nothing there", filepath.Join(dir, "none"), true, true},
		{"below a file", plain + "/net", true, true},
		{"what unmounting leaves", empty, true, true},
		{"a process that is gone", "/proc/4194304/ns/net", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := netns.Open(tc.path)
			if err == nil {
				_ = n.Close()
				t.Fatalf("Open(%q) succeeded", tc.path)
			}
			if errors.Is(err, netns.ErrGone) != tc.gone {
				t.Errorf("Open(%q): %v; gone: want %v", tc.path, err, tc.gone)
			}
			if known := errors.Is(err, netns.ErrGone) || errors.Is(err, netns.ErrOther); known != tc.known {
				t.Errorf("Open(%q): %v; certain: want %v", tc.path, err, tc.known)
			}
		})
	}
}

func TestIdentityAndEnd(t *testing.T) {
	n := netnstest.New(t)
	file := n.String()
	if again := open(t, file); again.ID() != n.ID() {
		t.Errorf("one namespace has two identities: %v and %v", n.ID(), again.ID())
	}
	if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if again, err := netns.Open(file); !errors.Is(err, netns.ErrGone) {
		t.Errorf("Open after unmounting: %v, %v", again, err)
	}
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if own.ID() == n.ID() {
		t.Error("the process's namespace has the identity of the fresh one")
	}
}

func TestDoRunsWhereTheThreadIsInsideAlready(t *testing.T) {
	inside, other := netnstest.New(t), netnstest.New(t)
	err := inside.Do(func() error {
		thread, want := unix.Gettid(), errors.New("of the function")
		err := inside.Do(func() error {
			if got := unix.Gettid(); got != thread {
				t.Errorf("Do ran on thread %d, want the caller's %d", got, thread)
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Errorf("Do returned %v, want %v", err, want)
		}
		if err := other.Do(func() error {
			if got := inode(t); got != other.ID().Inode {
				t.Errorf("the thread is in namespace %d, want %d", got, other.ID().Inode)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if got := inode(t); got != inside.ID().Inode {
			t.Errorf("afterwards the thread is in namespace %d, want %d", got, inside.ID().Inode)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAddresses(t *testing.T) {
	ns := netnstest.New(t)
	if got, err := ns.Addresses(); err != nil || len(got) > 0 {
		t.Errorf("addresses %v, %v, want none of a fresh namespace", got, err)
	}
	err := ns.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.LinkSetUp(lo)
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ns.Addresses()
	want := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("addresses %v, %v, want the loopback's %v", got, err, want)
	}
}
