package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

// workDir holds the built programs and the socket: one short path, because a
// unix socket's has at most 107 bytes.
var workDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "fl")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	workDir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func socket() string { return filepath.Join(workDir, "s") }

// build compiles a program as it is released, and with the tests' socket.
func build(pkg, name string) (string, error) {
	out := filepath.Join(workDir, name)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=1.2.3 -X main.socketPath="+socket(), "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd, err, text)
	}
	return out, nil
}

var buildPlugin = sync.OnceValues(func() (string, error) { return build(".", "fairlead-cni") })

func plugin(t testing.TB) string {
	t.Helper()
	path, err := buildPlugin()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// output is what one execution left.
type output struct {
	stdout, stderr string
	exit           int
}

// call executes the plugin as a runtime does.
func call(t testing.TB, stdin string, env ...string) output {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), plugin(t))
	cmd.Env = env
	cmd.Stdin = strings.NewReader(stdin)
	return finish(t, cmd)
}

func finish(t testing.TB, cmd *exec.Cmd) output {
	t.Helper()
	var stdout, stderr strings.Builder
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	cmd.Stderr = &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// listen opens the tests' socket until the test ends.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// agent serves the contract on the tests' socket.
func agent(t testing.TB, serve func(context.Context, cniapi.Request) cniapi.Response) {
	t.Helper()
	serveHTTP(t, cniapi.Handler(serve))
}

func serveHTTP(t testing.TB, h http.Handler) {
	t.Helper()
	l := listen(t)
	server := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
}

// rawAgent hands the one connection it accepts to serve and closes it afterwards.
func rawAgent(t testing.TB, serve func(net.Conn)) {
	t.Helper()
	l := listen(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		serve(conn)
	}()
	t.Cleanup(func() { l.Close(); <-done })
}
