package process_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/process"
)

// start runs a Table for the length of the test. The tests of this package use no
// os/exec: the Table collects every child.
func start(t *testing.T) *process.Table {
	t.Helper()
	table := process.NewTable(nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- table.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return table
}

func shell(script string) process.Command {
	return process.Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}}
}

func TestOutput(t *testing.T) {
	table := start(t)
	for _, tc := range []struct {
		name, script, in, out, err string
		exit                       int
	}{
		{"echoes", "cat; echo no >&2; exit 3", "hello", "hello", "no\n", 3},
		{"ignores its input", "exit 0", strings.Repeat("x", 1<<20), "", "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, errs, exit, err := table.Output(t.Context(), shell(tc.script), []byte(tc.in))
			if err != nil || string(out) != tc.out || string(errs) != tc.err || exit != tc.exit {
				t.Errorf("got %q %q exit %d error %v, want %q %q exit %d", out, errs, exit, err, tc.out, tc.err, tc.exit)
			}
		})
	}
	t.Run("is killed with its context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, _, exit, err := table.Output(ctx, shell("exec tail -f /dev/null"), nil); err == nil || exit != 128+int(unix.SIGKILL) {
			t.Errorf("got exit %d, error %v; want 137 and an error", exit, err)
		}
	})
}

func TestStopKillsWhatIgnoresTerm(t *testing.T) {
	table := start(t)
	p, err := table.Start(shell(`trap "" TERM; while :; do read x < /dev/zero; done`))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(t.Context(), 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if _, words := p.Exit(); p.Running() || !strings.Contains(words, "signal") {
		t.Errorf("after Stop: running %v, %q", p.Running(), words)
	}
	if err := p.Signal(unix.SIGTERM); err != nil {
		t.Errorf("a signal to an ended process: %v", err)
	}
}

func TestStartOfNothing(t *testing.T) {
	table := start(t)
	if _, err := table.Start(process.Command{Path: "/does/not/exist", Args: []string{"x"}}); err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("got %v, want an error that names the path", err)
	}
}
