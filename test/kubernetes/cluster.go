package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// What nodes can get their network from.
const (
	cniFairlead = "fairlead"
	cniBridge   = "bridge"
	cniNone     = "none"
)

// cluster is one that runs, or is being started or stopped.
type cluster struct {
	layout   `json:"-"`
	Nodes    int       `json:"nodes"`
	CNI      string    `json:"cni"`
	Machines []running `json:"machines"`
}

var errNoCluster = errors.New("no cluster runs here: start one with make kube-up")

func openCluster(l layout) (*cluster, error) {
	raw, err := os.ReadFile(l.run("cluster.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoCluster
	} else if err != nil {
		return nil, err
	}
	c := &cluster{layout: l}
	if err := json.Unmarshal(raw, c); err != nil {
		return nil, fmt.Errorf("%s: %w", l.run("cluster.json"), err)
	}
	return c, nil
}

func (c *cluster) save() error {
	raw, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(c.run("cluster.json"), raw, 0o600)
}

func (c *cluster) find(name string) (running, error) {
	i := slices.IndexFunc(c.Machines, func(r running) bool { return r.Name == name })
	if i < 0 {
		return running{}, fmt.Errorf("there is no machine %q: %s", name, c.names())
	}
	if r := c.Machines[i]; r.alive() {
		return r, nil
	}
	return running{}, fmt.Errorf("machine %s has ended: see %s, and start the cluster anew (make kube-down kube-up)", name, c.machine(name, "init.log"))
}

func (c *cluster) names() string {
	var out []string
	for _, r := range c.Machines {
		out = append(out, r.Name)
	}
	return strings.Join(out, ", ")
}

// command makes a command that runs in the network of the control plane, with the host's
// files: kubectl and the tests.
func (c *cluster) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	// #nosec G204 -- programs of the cache directory
	cmd := exec.CommandContext(ctx, name, args...)
	// Whoever has started others may end them first.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig("admin"), "PATH="+c.bin("")+":"+os.Getenv("PATH"))
	return cmd
}

// runIn runs it.
func (c *cluster) runIn(cmd *exec.Cmd) error {
	control, err := c.find("control")
	if err != nil {
		return err
	}
	ns, err := netspace.Open(fmt.Sprintf("/proc/%d/ns/net", control.Pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := netspace.Do(ns, cmd.Start); err != nil {
		return err
	}
	return cmd.Wait()
}

// kubectl runs kubectl and returns what it prints.
func (c *cluster) kubectl(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := c.command(ctx, c.bin("kubectl"), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := c.runIn(cmd); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// text runs a program in the network of the control plane, and returns what it prints.
func (c *cluster) text(ctx context.Context, name string, args ...string) (string, error) {
	cmd := c.command(ctx, name, args...)
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := c.runIn(cmd); err != nil {
		return text.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(text.String()))
	}
	return text.String(), nil
}

// get reads objects with kubectl and decodes them.
func (c *cluster) get(ctx context.Context, into any, args ...string) error {
	out, err := c.kubectl(ctx, nil, append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

func (c *cluster) apply(ctx context.Context, manifest string) error {
	_, err := c.kubectl(ctx, strings.NewReader(manifest), "apply", "--server-side", "--force-conflicts", "-f", "-")
	return err
}

// exec runs a command inside a machine, with this program's input and output.
func (c *cluster) exec(name string, argv []string) (int, error) {
	r, err := c.find(name)
	if err != nil {
		return 0, err
	}
	p, err := netspace.Start(r.Pid, "", "/usr/bin/env", append([]string{"env"}, argv...), &os.ProcAttr{
		Env:   append(os.Environ(), "KUBECONFIG="+c.kubeconfig("admin"), "PATH="+c.bin("")+":/usr/sbin:/usr/bin:/sbin:/bin"),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 0, err
	}
	state, err := p.Wait()
	if err != nil {
		return 0, err
	}
	return state.ExitCode(), nil
}
