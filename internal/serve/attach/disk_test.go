package attach

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// onDisk runs fn while dir is a file system of its own, which only one thread can
// see by name; what is opened there works everywhere.
func onDisk(t *testing.T, dir string) func(fn func() error) error {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	work, done := make(chan func()), make(chan struct{})
	result := make(chan error)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its mount namespace
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700")
		}
		result <- err
		for fn := range work {
			fn()
		}
	}()
	if err := <-result; err != nil {
		close(work)
		<-done
		t.Skipf("a mount namespace cannot be had: %v", err)
	}
	t.Cleanup(func() { close(work); <-done })
	return func(fn func() error) error {
		work <- func() { result <- fn() }
		return <-result
	}
}

// A11: a disk that takes nothing refuses ADD, gives every address back, and does
// not stop DEL.
func TestDiskFullAndReadOnly(t *testing.T) {
	dir := t.TempDir()
	inside := onDisk(t, dir)
	n := &node{t: t, dir: dir, kernel: newKernel(t)}
	o := options{pods: 3, subnets: nil}
	o.subnets = append(o.subnets, defaultSubnet())
	if err := inside(func() error { n.boot(o); return nil }); err != nil {
		t.Fatal(err)
	}
	n.mustAdd(requestFor(0))

	filler := filepath.Join(dir, "filler")
	if err := inside(func() error {
		err := os.WriteFile(filler, make([]byte, 1<<20), 0o600)
		if err == nil {
			t.Error("the disk takes a megabyte")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	refused := func(want string) {
		t.Helper()
		for range 5 {
			_, err := n.Add(t.Context(), requestFor(1))
			if err == nil || ReasonOf(err) != TryAgain || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v", err)
			}
		}
		if owned, resting := n.pool.counts(); owned != 2 || resting != 0 {
			t.Errorf("%d addresses owned, %d resting", owned, resting)
		}
	}
	refused("no space left on device")
	if err := inside(func() error { return os.Remove(filler) }); err != nil {
		t.Fatal(err)
	}
	n.mustAdd(requestFor(2))
	n.mustDel(requestFor(2))

	if err := inside(func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=64k") }); err != nil {
		t.Fatal(err)
	}
	_, err := n.Add(t.Context(), requestFor(1))
	if err == nil || ReasonOf(err) != TryAgain || !strings.Contains(err.Error(), "read-only file system") {
		t.Fatalf("got %v", err)
	}
	n.mustDel(requestFor(0)) // succeeds, but the record is still there:
	if owned, _ := n.pool.counts(); owned != 2 {
		t.Errorf("%d addresses owned: that of a record on disk must not be given", owned)
	}
	if p := n.Problems(); len(p) != 1 || p[0].Reason != "NotReleased" {
		t.Errorf("problems: %v", p)
	}
	if err := inside(func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "size=64k") }); err != nil {
		t.Fatal(err)
	}
	n.stir() // instead of waiting for the next try
	n.pool.awaitOwned(0)
}

func TestFolderModes(t *testing.T) {
	n := start(t, options{pods: 1})
	n.mustAdd(requestFor(0))
	for path, want := range map[string]os.FileMode{n.dir: 0o700 | os.ModeDir, filepath.Join(n.dir, n.files()[0]): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %s, not %s", path, info.Mode(), want)
		}
	}
}
