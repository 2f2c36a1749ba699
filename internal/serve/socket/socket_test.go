package socket

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOneOwnerAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "x.sock")
	log := slog.New(slog.DiscardHandler)
	first, err := Listen(path, "test", log)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket: %v %v, want mode 0600", info.Mode(), err)
	}
	if _, err := Listen(path, "test", log); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("a second owner: %v", err)
	}
	go func() {
		if c, err := first.Accept(); err == nil {
			c.Write([]byte("hello"))
			c.Close()
		}
	}()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var b [5]byte
	if _, err := c.Read(b[:]); err != nil || string(b[:]) != "hello" {
		t.Errorf("read %q, %v", b, err)
	}
	c.Close()

	// A dead owner leaves its socket, and the next one replaces it.
	first.Close()
	first.lock.Close()
	second, err := Listen(path, "test", log)
	if err != nil {
		t.Fatalf("after a crash: %v", err)
	}
	second.Close()
	if err := second.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// Somebody removes the socket, its folder, or its lock: the owner makes all anew, and
// nobody else gets in meanwhile.
func TestTakenAway(t *testing.T) {
	for name, take := range map[string]func(path string) error{
		"folder": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"socket": os.Remove,
		"lock":   func(path string) error { return os.Remove(path + ".lock") },
		"replaced by a dead one": func(path string) error {
			dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + ".other", Net: "unix"})
			if err != nil {
				return err
			}
			dead.SetUnlinkOnClose(false)
			return errors.Join(dead.Close(), os.Rename(path+".other", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "run", "x.sock")
			log := slog.New(slog.DiscardHandler)
			l, err := Listen(path, "test", log)
			if err != nil {
				t.Fatal(err)
			}
			l.every = time.Millisecond
			before := l.self
			if err := take(path); err != nil {
				t.Fatal(err)
			}
			accepted := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err == nil {
					err = c.Close()
				}
				accepted <- err
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				there, err := os.Lstat(path)
				if _, lockErr := os.Lstat(path + ".lock"); err == nil && lockErr == nil && os.SameFile(there, before) == (name == "lock") {
					if c, err := net.Dial("unix", path); err == nil {
						c.Close()
						break
					}
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					t.Fatalf("the socket does not come back: %v", err)
				}
			}
			if err := <-accepted; err != nil {
				t.Errorf("accept: %v", err)
			}
			if _, err := Listen(path, "test", log); err == nil || !strings.Contains(err.Error(), "stop it first") {
				t.Errorf("a second owner: %v", err)
			}
			if err := errors.Join(l.Close(), l.Remove()); err != nil {
				t.Error(err)
			}
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("accept after close: %v", err)
			}
		})
	}
}

// Who has the place by then keeps it.
func TestReplacedByAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "x.sock")
	log := slog.New(slog.DiscardHandler)
	l, err := Listen(path, "test", log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	other, err := Listen(path, "test", log)
	if err != nil {
		t.Fatal(err)
	}
	l.every = 0
	if _, err := l.current(); err != nil || !strings.Contains(l.lost, "stop it first") {
		t.Errorf("%v, lost because of %q", err, l.lost)
	}
	if err := errors.Join(l.Close(), l.Remove()); err != nil {
		t.Error(err)
	}
	if !other.bound() || !other.locked() {
		t.Error("the other's socket is gone")
	}
	if err := errors.Join(other.Close(), other.Remove()); err != nil {
		t.Error(err)
	}
}

func TestForeignFileIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, "test", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("got %v", err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "precious" {
		t.Errorf("the file was touched: %q %v", raw, err)
	}
}
