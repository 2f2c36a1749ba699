package labtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/spec"
)

// execTimeout bounds one command.
const execTimeout = 60 * time.Second

// Output is what a command left.
type Output struct {
	Stdout, Stderr string
	Exit           int
}

// String is the output as a person wants to see it in a failure.
func (o Output) String() string {
	return fmt.Sprintf("exit %d\nstdout: %s\nstderr: %s", o.Exit, strings.TrimSpace(o.Stdout), strings.TrimSpace(o.Stderr))
}

// Exec runs a command in a pod ("NAMESPACE/NAME"), on a node ("node-1") or in a
// namespace of the lab ("outside", "router", "control", "fabric"), and returns what
// it left, whatever its exit status.
func (l *Lab) Exec(where string, command ...string) Output {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), execTimeout)
	defer cancel()
	out, err := l.TryExec(ctx, where, command...)
	if err != nil {
		l.t.Fatalf("%s: %q: %v", where, command, err)
	}
	return out
}

// MustExec is Exec for commands that must end with status 0; it returns the standard
// output.
func (l *Lab) MustExec(where string, command ...string) string {
	l.t.Helper()
	out := l.Exec(where, command...)
	if out.Exit != 0 {
		l.t.Fatalf("%s: %q: %s", where, command, out)
	}
	return out.Stdout
}

// TryExec is Exec for other goroutines than the test's: the error says that the
// command could not be run, or that ctx ended.
func (l *Lab) TryExec(ctx context.Context, where string, command ...string) (Output, error) {
	var out Output
	r := lab.ExecRequest{Command: command}
	switch {
	case strings.Contains(where, "/"):
		r.Pod = where
	case strings.HasPrefix(where, "node-"):
		r.Node = where
	default:
		r.Space = where
	}
	var readers errgroup.Group
	for file, text := range map[**os.File]*string{&r.Stdout: &out.Stdout, &r.Stderr: &out.Stderr} {
		read, write, err := os.Pipe()
		if err != nil {
			return out, err
		}
		defer write.Close()
		*file = write
		readers.Go(func() error {
			defer read.Close()
			raw, err := io.ReadAll(read)
			*text = string(raw)
			return err
		})
	}
	var err error
	out.Exit, err = l.Lab.Exec(ctx, r)
	r.Stdout.Close()
	r.Stderr.Close()
	return out, errors.Join(err, readers.Wait())
}

// Fault breaks or repairs something and returns when that is done. node is empty for
// faults that need none; env is added to the environment of what the fault starts.
func (l *Lab) Fault(kind spec.FaultKind, node string, env ...string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.t.Context()), 2*callTimeout)
	defer cancel()
	if err := l.Lab.Fault(ctx, lab.Fault{Kind: kind, Node: node, Env: env}); err != nil {
		l.t.Fatalf("fault %s %s: %v", kind, node, err)
	}
}

// Status tells how the lab is.
func (l *Lab) Status() lab.Status {
	l.t.Helper()
	ctx, cancel := l.call()
	defer cancel()
	s, err := l.Lab.Status(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

// Node tells how a node is.
func (l *Lab) Node(name string) spec.Node {
	l.t.Helper()
	for _, n := range l.Status().Nodes {
		if n.Name == name {
			return n
		}
	}
	l.t.Fatalf("the lab has no node %s", name)
	return spec.Node{}
}

// WaitReady waits until the CNI plugin of a node says that pods can be attached
// (STATUS), and returns how long that took.
func (l *Lab) WaitReady(node string) time.Duration {
	l.t.Helper()
	r := l.Runtime(node)
	return Eventually(l.t, Patience, func() error {
		ctx, cancel := l.call()
		defer cancel()
		if err := r.Status(ctx); err != nil {
			return fmt.Errorf("node %s is not ready: %w", node, err)
		}
		return nil
	})
}

// InNode returns a function that calls its argument inside a node's network and mount
// namespaces, on a thread of its own. It may be called concurrently, and ends with
// the test or when the node is powered off. Inside, /proc is that of the node's
// processes: it does not know this one.
func (l *Lab) InNode(node string) func(func() error) error {
	l.t.Helper()
	n := l.booted(node)
	var files []*os.File
	for _, kind := range []string{"net", "mnt"} { // the mount namespace last
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", n.Pid, kind))
		if err != nil {
			l.t.Fatalf("open the namespaces of %s: %v", node, err)
		}
		l.t.Cleanup(func() { f.Close() })
		files = append(files, f)
	}
	return func(fn func() error) error {
		return onThread(func() error {
			// A thread that shares its working directory may not change mount
			// namespaces.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("separate the thread's file system view: %w", err)
			}
			for i, flag := range []int{unix.CLONE_NEWNET, unix.CLONE_NEWNS} {
				if err := unix.Setns(int(files[i].Fd()), flag); err != nil {
					return fmt.Errorf("enter a namespace of %s: %w", node, err)
				}
			}
			return fn()
		})
	}
}

// booted waits until a node that is on answers: before that its files are those of
// the host.
func (l *Lab) booted(node string) spec.Node {
	l.t.Helper()
	var n spec.Node
	Eventually(l.t, Patience, func() error {
		n = l.Node(node)
		if n.Pid == 0 || n.State.Agent.State == "" {
			return fmt.Errorf("node %s is %s: %s", node, n.Power, n.State.Reason)
		}
		return nil
	})
	return n
}

// onThread calls fn on an OS thread that ends with it, whatever fn did to it. It is
// never the program's first, which would stay in its namespaces.
func onThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		if unix.Gettid() != unix.Getpid() {
			result <- fn()
			return
		}
		result <- onThread(fn) // while this goroutine keeps the first thread
		runtime.UnlockOSThread()
	}()
	return <-result
}
