package cni

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

// shortDir is a folder whose path leaves room for a socket (107 bytes).
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// serve runs a server until the test ends, or end is called. Listening has begun
// when it returns.
func serve(t testing.TB, socket string, b *backend, grace time.Duration) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	up := make(chan struct{})
	log := slog.New(onMessage{slog.DiscardHandler, "CNI socket ready", up})
	result := make(chan error, 1)
	go func() {
		h := handler(b)
		result <- (&Server{Socket: socket, Handler: h, Log: log, Grace: grace}).Run(ctx)
	}()
	select {
	case <-up:
	case err := <-result:
		cancel()
		t.Fatal(err)
	}
	ended := false
	end = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		return <-result
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return end
}

// onMessage closes a channel when a message is logged.
type onMessage struct {
	slog.Handler
	msg  string
	done chan struct{}
}

func (onMessage) Enabled(context.Context, slog.Level) bool { return true }

func (h onMessage) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.msg {
		close(h.done)
	}
	return nil
}

func dial(t testing.TB, socket string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// exchange sends a body as the plugin does and returns the answer.
func exchange(t testing.TB, socket, body string) (*http.Response, string) {
	t.Helper()
	conn := dial(t, socket)
	if _, err := fmt.Fprintf(conn, "POST /cni HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(answer)
}

// S8: root only.
func TestSocketModes(t *testing.T) {
	dir := filepath.Join(shortDir(t), "run")
	socket := filepath.Join(dir, "cni.sock")
	end := serve(t, socket, newBackend(), 0)
	info, err := os.Lstat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("socket has mode %s", info.Mode())
	}
	if info, err = os.Stat(dir); err != nil || info.Mode().Perm()&0o022 != 0 {
		t.Errorf("folder has mode %s, %v", info.Mode(), err)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// S8: even if somebody opens the file to all, only root is served.
func TestOnlyRootIsServed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming somebody else needs root")
	}
	dir := shortDir(t)
	path := filepath.Join(dir, "s")
	serve(t, path, newBackend(), 0)
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	answer := make(chan []byte)
	go func() {
		defer close(answer)
		runtime.LockOSThread() // never unlocked: only this thread becomes somebody else, and dies
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			t.Error(errno)
			return
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			t.Error(err)
			return
		}
		_, _ = unix.Write(fd, []byte("POST /cni HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"))
		buf := make([]byte, 100)
		n, _ := unix.Read(fd, buf)
		answer <- buf[:max(n, 0)]
	}()
	if got := <-answer; len(got) != 0 {
		t.Errorf("a stranger was answered: %q", got)
	}
	if _, body := exchange(t, path, "{}"); !strings.Contains(body, `"code":4`) {
		t.Errorf("root was not answered: %s", body)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil { // as if killed
		t.Fatal(err)
	}
	if err := os.WriteFile(socket+".new", nil, 0o600); err != nil { // killed while binding
		t.Fatal(err)
	}
	serve(t, socket, newBackend(), 0)
	if _, body := exchange(t, socket, `{"command":"DEL","containerID":"a","ifName":"b","config":""}`); !strings.Contains(body, `"code":6`) {
		t.Errorf("answer: %s", body)
	}
}

func TestLiveSocketIsRefused(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	serve(t, socket, newBackend(), 0)
	err := (&Server{Socket: socket, Handler: handler(newBackend()), Log: slog.New(slog.DiscardHandler)}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another fairlead-agent serves the CNI socket") {
		t.Errorf("got %v", err)
	}
	if _, body := exchange(t, socket, "{}"); !strings.Contains(body, `"code":4`) {
		t.Errorf("the first server does not answer any more: %s", body)
	}

	// A program that takes no lock is found by its answer.
	other := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", other)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = (&Server{Socket: other, Handler: handler(newBackend()), Log: slog.New(slog.DiscardHandler)}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another program serves the CNI socket") {
		t.Errorf("got %v", err)
	}

	file := filepath.Join(shortDir(t), "s")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = (&Server{Socket: file, Handler: handler(newBackend()), Log: slog.New(slog.DiscardHandler)}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("got %v", err)
	}
}

func TestHugeAndBrokenRequests(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	serve(t, socket, newBackend(), 0)
	for name, body := range map[string]string{
		"huge body":   `{"args":"` + strings.Repeat("a", cniapi.MaxRequest) + `"}`,
		"huge config": `{"command":"ADD","config":"` + strings.Repeat("AAAA", cniapi.MaxConfig/3+1) + `"}`,
		"no JSON":     "ADD",
	} {
		resp, got := exchange(t, socket, body)
		if resp.StatusCode != http.StatusOK || resp.Header.Get(cniapi.HeaderExit) != "1" || !strings.Contains(got, `"code":5`) {
			t.Errorf("%s: %s %v %s", name, resp.Status, resp.Header, got)
		}
	}
	conn := dial(t, socket)
	_, _ = fmt.Fprintf(conn, "POST /cni HTTP/1.0\r\nX: %s\r\n\r\n", strings.Repeat("a", 64<<10))
	if line, _ := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, "431") {
		t.Errorf("huge header: %q", line)
	}
}

// A runtime that gave up has killed the plugin: the call ends.
func TestGoneplugin(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	b := newBackend()
	b.block = make(chan struct{})
	ended := make(chan cniapi.Code, 1)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	h := handler(b)
	h.Observe = func(_ cniapi.Command, code cniapi.Code, _ time.Duration) { ended <- code }
	up := make(chan struct{})
	go func() {
		result <- (&Server{Socket: socket, Handler: h, Log: slog.New(onMessage{slog.DiscardHandler, "CNI socket ready", up}), Grace: time.Minute}).Run(ctx)
	}()
	<-up
	conn := dial(t, socket)
	send(t, conn)
	<-b.block
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if code := <-ended; code != cniapi.CodeTryAgain {
		t.Errorf("code %d", code)
	}
	cancel()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// send sends an ADD.
func send(t *testing.T, conn net.Conn) {
	t.Helper()
	body := `{"command":"ADD","containerID":"a","ifName":"eth0","netns":"/x","config":"eyJjbmlWZXJzaW9uIjoiMS4xLjAiLCJuYW1lIjoibiIsInR5cGUiOiJ0In0="}`
	if _, err := fmt.Fprintf(conn, "POST /cni HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
}

// The end of the agent ends calls under way with an answer that says so.
func TestShutdownAnswers(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	b := newBackend()
	b.block = make(chan struct{})
	end := serve(t, socket, b, 10*time.Millisecond)
	conn := dial(t, socket)
	send(t, conn)
	<-b.block
	if err := end(); err != nil {
		t.Error(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(answer), `"code":11`) || !strings.Contains(string(answer), "shutting down") {
		t.Errorf("%v: %s", err, answer)
	}
}
