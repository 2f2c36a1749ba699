package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// ExecRequest is a command to run somewhere in a lab. Exactly one of Pod, Node and
// Space says where.
type ExecRequest struct {
	// Pod is NAMESPACE/NAME. Container chooses one of its containers; by default it is
	// the first that has a process. A pod with the built-in server alone has none: the
	// command runs beside it, in the pod's network namespace.
	Pod       string
	Container string
	// Node is the name of a node.
	Node string
	// Space is "outside", "router", "control" or "fabric".
	Space string

	Command []string
	// Env is added to the environment, which is that of a pod's container, not the
	// caller's.
	Env []string
	// The command's standard files; nil is /dev/null. A terminal works as such.
	Stdin, Stdout, Stderr *os.File
}

// place is where a command runs: in the namespaces of a process, but for the network
// namespace at netns if that is given.
type place struct {
	pid   int
	netns string
	// hostname, if set, and a /sys of the network namespace are the command's own.
	hostname string
	isolate  bool
}

// Exec runs a command somewhere in the lab and returns its exit status, 128 and the
// signal's number if a signal ended it. The command is killed when ctx ends.
func (l *Lab) Exec(ctx context.Context, r ExecRequest) (int, error) {
	if len(r.Command) == 0 {
		return -1, errors.New("exec: no command was given")
	}
	s, err := l.Status(ctx)
	if err != nil {
		return -1, err
	}
	where, err := findPlace(&s, r)
	if err != nil {
		return -1, fmt.Errorf("lab %s: %w", l.name, err)
	}
	proc, err := start(where, r)
	if err != nil {
		return -1, fmt.Errorf("lab %s: %w", l.name, err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = proc.Kill() // the command may have ended by itself
	})
	defer stop()
	// The terminal sends its signals to the command too, which decides.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
	defer signal.Stop(signals)
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case sig := <-signals:
				if sig == unix.SIGTERM {
					_ = proc.Signal(sig) // as above
				}
			case <-done:
				return
			}
		}
	}()
	state, err := proc.Wait()
	if err != nil {
		return -1, fmt.Errorf("lab %s: wait for the command: %w", l.name, err)
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), ctx.Err()
	}
	return state.ExitCode(), ctx.Err()
}

// findPlace finds where a request wants to run.
func findPlace(s *Status, r ExecRequest) (place, error) {
	switch {
	case r.Pod != "" && r.Node == "" && r.Space == "":
		return findPod(s, r.Pod, r.Container)
	case r.Node != "" && r.Pod == "" && r.Space == "":
		var names []string
		for _, n := range s.Nodes {
			if n.Name == r.Node {
				if n.Pid == 0 {
					return place{}, fmt.Errorf("node %s is off: boot it with fairlead lab fault node-power-on %s", n.Name, n.Name)
				}
				return place{pid: n.Pid}, nil
			}
			names = append(names, n.Name)
		}
		return place{}, fmt.Errorf("there is no node %q: there are %s", r.Node, strings.Join(names, ", "))
	case r.Space != "" && r.Pod == "" && r.Node == "":
		var names []string
		for _, sp := range s.Spaces {
			if sp.Name == r.Space {
				return place{pid: s.Pid, netns: sp.Path, hostname: sp.Name, isolate: true}, nil
			}
			names = append(names, sp.Name)
		}
		return place{}, fmt.Errorf("there is no namespace %q: there are %s", r.Space, strings.Join(names, ", "))
	}
	return place{}, errors.New("exec: name one of a pod, a node and a namespace")
}

func findPod(s *Status, name, container string) (place, error) {
	for _, n := range s.Nodes {
		i := slices.IndexFunc(n.State.Pods, func(p machine.PodState) bool { return p.Namespace+"/"+p.Name == name })
		if i < 0 {
			continue
		}
		p := n.State.Pods[i]
		named := false
		for _, c := range p.Containers {
			if container != "" && c.Name != container {
				continue
			}
			named = true
			if c.Pid != 0 {
				return place{pid: c.Pid}, nil
			}
		}
		if !named {
			return place{}, fmt.Errorf("pod %s has no container %s", name, container)
		}
		if p.Sandbox == "" && p.Phase != "Running" {
			return place{}, fmt.Errorf("pod %s is not running: %s %s", name, p.Phase, p.Message)
		}
		out := place{pid: n.Pid, hostname: p.Name, isolate: true}
		if p.Netns != "" {
			out.netns = filepath.Join("/proc", fmt.Sprint(n.Pid), "root/run/netns", p.Netns)
		}
		return out, nil
	}
	return place{}, fmt.Errorf("pod %s does not run on any node", name)
}

// start starts the command: this program enters the namespaces and becomes it.
func start(where place, r ExecRequest) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	defer write.Close()
	files := []*os.File{r.Stdin, r.Stdout, r.Stderr, read} // fdLaunch
	for i := range files {
		if files[i] == nil {
			files[i] = null
		}
	}
	attr := &os.ProcAttr{Files: files, Env: []string{}, Sys: &syscall.SysProcAttr{}}
	if where.isolate {
		attr.Sys.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWUTS
	}
	proc, err := netspace.Start(where.pid, where.netns, "/proc/self/exe", commands{}.become(), attr)
	if err != nil {
		return nil, err
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=" + os.Getenv("TERM")}
	launch := machine.Launch{Hostname: where.hostname, Isolate: where.isolate, Command: r.Command, Env: append(env, r.Env...)}
	if err := json.NewEncoder(write).Encode(launch); err != nil {
		_ = proc.Kill()
		_, _ = proc.Wait()
		return nil, fmt.Errorf("tell the process what to run: %w", err)
	}
	return proc, nil
}
