package socket

import (
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
