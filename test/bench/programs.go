package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-sdn/fairlead/lab"
)

// Targets of the plugin: its size in bytes, and its CPU as a multiple of that of an
// empty Go program.
const (
	pluginSize = 4 << 20
	pluginCPU  = 1.4
)

// benchPlugin compares what executing the plugin costs with what executing any Go
// program costs.
func benchPlugin(ctx context.Context, e *environment) ([]figure, error) {
	path := e.program("fairlead-cni")
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	empty := filepath.Join(e.dir, "empty")
	source := filepath.Join(e.dir, "empty.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", empty, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build an empty program: %w: %s", err, out)
	}
	l, err := e.lab(ctx)
	if err != nil {
		return nil, err
	}
	var used cpuReport
	if err := driveFromHere(ctx, l, &used, driveStatus, path, empty, strconv.Itoa(e.rounds(200))); err != nil {
		return nil, err
	}
	return []figure{
		{name: "size of fairlead-cni", unit: octets, ours: samples{float64(info.Size())}, target: target{limit: pluginSize}},
		{name: "CPU of a call, without the agent's", ours: used.Ours, base: used.Base, again: used.Again, target: target{limit: pluginCPU, ratio: true}},
	}, nil
}

// cpuReport is the CPU of calls.
type cpuReport struct{ Ours, Base, Again samples }

// measureStatus runs inside a node: a STATUS goes to the agent and back, as an ADD
// does, and changes nothing.
func measureStatus(ctx context.Context, plugin, empty string, rounds int) (r cpuReport, err error) {
	for range rounds {
		for _, c := range []struct {
			path string
			into *samples
		}{{empty, &r.Base}, {plugin, &r.Ours}, {empty, &r.Again}} {
			used, err := execCPU(ctx, c.path, []string{"CNI_COMMAND=STATUS", "CNI_PATH=/opt/cni/bin"})
			if err != nil {
				return r, err
			}
			c.into.add(used)
		}
	}
	return r, nil
}

func execCPU(ctx context.Context, path string, env []string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin = env, strings.NewReader(`{"cniVersion":"1.1.0","name":"bench","type":"fairlead-cni"}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", path, err, out)
	}
	u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0, errors.New("this system does not tell what a process used")
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// benchStartup runs the program as a person does, from the command to the prompt.
func benchStartup(ctx context.Context, e *environment) ([]figure, error) {
	var figures []figure
	for _, c := range []struct {
		nodes, rounds int
		limit         float64
	}{{3, 10, 5}, {20, 3, 30}} {
		var up, down samples
		for i := range e.rounds(c.rounds) {
			name := labName(fmt.Sprintf("up%d-%d", c.nodes, i))
			if err := startOnce(ctx, e, name, c.nodes, &up, &down); err != nil {
				return figures, err
			}
		}
		figures = append(figures,
			figure{name: fmt.Sprintf("lab up --nodes %d", c.nodes), ours: up, target: target{limit: c.limit}},
			figure{name: fmt.Sprintf("lab down, %d nodes", c.nodes), ours: down},
		)
	}
	return figures, nil
}

func startOnce(ctx context.Context, e *environment, name string, nodes int, up, down *samples) error {
	call := func(into *samples, args ...string) error {
		cmd := exec.CommandContext(ctx, e.program("fairlead"), append([]string{"--lab", name}, args...)...)
		// An interrupted command cleans up after itself.
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("fairlead %s: %w: %s", strings.Join(args, " "), err, out)
		}
		into.add(time.Since(start))
		return nil
	}
	if err := call(up, "lab", "up", "--nodes", fmt.Sprint(nodes)); err != nil {
		return err
	}
	if err := call(down, "lab", "down"); err != nil {
		return errors.Join(err, lab.Down(context.WithoutCancel(ctx), "", name))
	}
	return nil
}
