package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// door is a way to the agent of one node: its admin socket, or a command in its pod.
type door interface {
	// Get asks for a path ("/v1/audit") and decodes the answer.
	Get(ctx context.Context, path string, into any) error
	// Stream asks for a path and copies the answer as it comes. The note is for the person
	// who asked. admin.ErrStopped if ctx has ended it.
	Stream(ctx context.Context, path string, w io.Writer) (note string, err error)
	Close()
}

const (
	// agentContainer is the agent's in its pod, agentProgram the command that asks it.
	agentContainer = "agent"
	agentProgram   = "/usr/bin/fairlead-agent"
	// maxPodAnswer bounds what a command in a pod may answer a Get, maxPodError what it
	// may complain, in bytes.
	maxPodAnswer = 256 << 20
	maxPodError  = 64 << 10
)

// closedDoor is the door of an agent that cannot be asked.
type closedDoor struct{ why error }

func (d closedDoor) Get(context.Context, string, any) error { return d.why }

func (d closedDoor) Stream(context.Context, string, io.Writer) (string, error) { return "", d.why }

func (closedDoor) Close() {}

// podDoor runs "fairlead-agent admin PATH" in an agent's pod, with the user's own right to
// do so (pods/exec). The command ends with its standard input, which is the connection's.
type podDoor struct {
	config         *rest.Config
	client         rest.Interface
	namespace, pod string
}

// Close does nothing: every question has a connection of its own.
func (*podDoor) Close() {}

// Get implements door.
func (d *podDoor) Get(ctx context.Context, path string, into any) error {
	out := &bounded{limit: maxPodAnswer}
	if _, err := d.run(ctx, path, out); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("ask the agent's pod %s/%s for %s: %w", d.namespace, d.pod, path, context.Cause(ctx))
		}
		return err
	}
	if out.over {
		return fmt.Errorf("the agent's answer to %s is longer than %d MiB", path, maxPodAnswer>>20)
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		return fmt.Errorf("read the agent's answer to %s: %w", path, err)
	}
	return nil
}

// Stream implements door.
func (d *podDoor) Stream(ctx context.Context, path string, w io.Writer) (string, error) {
	note, err := d.run(ctx, path, w)
	if err != nil && ctx.Err() != nil {
		return "", admin.ErrStopped
	}
	return note, err
}

// run returns what the command said on standard error.
func (d *podDoor) run(ctx context.Context, path string, w io.Writer) (note string, err error) {
	executor, err := d.executor(path)
	if err != nil {
		return "", fmt.Errorf("prepare a command in pod %s/%s: %w", d.namespace, d.pod, err)
	}
	// A reader of nothing that stays open.
	stdin, hold := io.Pipe()
	defer hold.Close()
	// What client-go would log is in its errors, or of no interest once ctx has ended.
	ctx = klog.NewContext(ctx, logr.Discard())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The executor would go on without a writer.
	out, complaint := &guarded{w: w, fail: cancel}, &guarded{w: &bounded{limit: maxPodError}, fail: cancel}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: out, Stderr: complaint})
	// The executor may leave writers behind when ctx ends.
	out.shut()
	complaint.shut()
	said := strings.TrimPrefix(strings.TrimSpace(complaint.w.(*bounded).String()), "fairlead-agent: ")
	if out.failed != nil {
		return said, out.failed
	}
	if err != nil {
		return "", d.explain(err, said)
	}
	return said, nil
}

// executor speaks over a WebSocket, or in the older way where that is not understood.
func (d *podDoor) executor(path string) (remotecommand.Executor, error) {
	request := d.client.Post().Namespace(d.namespace).Resource("pods").Name(d.pod).SubResource("exec").
		Param("container", agentContainer).Param("stdin", "true").Param("stdout", "true").Param("stderr", "true")
	for _, word := range []string{agentProgram, "admin", "--until-eof", path} {
		request.Param("command", word)
	}
	socket, err := remotecommand.NewWebSocketExecutor(d.config, "GET", request.URL().String())
	if err != nil {
		return nil, err
	}
	older, err := remotecommand.NewSPDYExecutor(d.config, "POST", request.URL())
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(socket, older, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// explain says what an error of the executor means.
func (d *podDoor) explain(err error, said string) error {
	var exit exec.CodeExitError
	var upgrade *httpstream.UpgradeFailureError
	if errors.As(err, &upgrade) {
		err = upgrade.Cause
	}
	switch {
	case errors.As(err, &exit) && said != "":
		return errors.New(said)
	case errors.As(err, &exit):
		return fmt.Errorf("%s in pod %s/%s ended with %d and said nothing", agentProgram, d.namespace, d.pod, exit.Code)
	case apierrors.IsForbidden(err) || strings.Contains(err.Error(), "is forbidden"):
		return fmt.Errorf("you may not ask the agent: it takes the verb create (over WebSockets also get) of pods/exec in namespace %s: %w", d.namespace, err)
	}
	return fmt.Errorf("run a command in the agent's pod %s/%s: %w", d.namespace, d.pod, err)
}

// guarded writes until it is shut.
type guarded struct {
	mu     sync.Mutex
	w      io.Writer
	closed bool
	// failed is why the writer behind it did not take something; fail is called then.
	failed error
	fail   func()
}

func (g *guarded) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, io.ErrClosedPipe
	}
	n, err := g.w.Write(p)
	if err != nil {
		g.closed, g.failed = true, err
		g.fail()
	}
	return n, err
}

func (g *guarded) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// bounded keeps the first bytes of what is written.
type bounded struct {
	bytes.Buffer
	limit int
	over  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	keep := min(len(p), b.limit-b.Len())
	b.over = b.over || keep < len(p)
	b.Buffer.Write(p[:keep])
	return len(p), nil
}
