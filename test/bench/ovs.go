package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/offload"
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsplane"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/ovshost"
	"github.com/fairlead-sdn/fairlead/lab/process"
)

// switchTool runs a program of Open vSwitch as a person does, with its input, against the
// one of a host.
func switchTool(ctx context.Context, h ovshost.Host, input, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Stdin = h.Env(), strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// learning are the arguments of ovs-vsctl that make a bridge in userspace.
func learning(bridge string) []string {
	return []string{"add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow15"}
}

// ovsNode is a namespace that plays a node with an Open vSwitch of its own, and with the
// plane, which this program drives.
type ovsNode struct {
	spaces  map[string]*os.File
	host    ovshost.Host
	dir     string
	daemons []*exec.Cmd
	ns      *netns.NS
	plane   *ovsplane.Plane
}

// newOVSNode starts a node. Its directory is removed by close.
func newOVSNode(ctx context.Context) (_ *ovsNode, err error) {
	n := &ovsNode{spaces: map[string]*os.File{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err := ovshost.Installed(); err != nil {
		return nil, err
	}
	// The paths of sockets are short.
	if n.dir, err = os.MkdirTemp("", "flovs"); err != nil {
		return nil, err
	}
	if n.spaces["node"], err = netspace.New(); err != nil {
		return nil, err
	}
	n.host = ovshost.Host{Run: filepath.Join(n.dir, "run"), Data: filepath.Join(n.dir, "db")}
	if err := n.host.Prepare(); err != nil {
		return nil, err
	}
	for _, command := range []func() (process.Command, error){n.host.DatabaseServer, n.host.Switch} {
		if err := n.start(command); err != nil {
			return nil, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = poll(wait, 20*time.Millisecond, func() (bool, error) {
		sockets, err := filepath.Glob(filepath.Join(n.host.Run, "ovs-vswitchd.*.ctl"))
		return len(sockets) > 0, err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for Open vSwitch: %w", err)
	}
	if n.ns, err = netns.Open(path(n.spaces["node"])); err != nil {
		return nil, err
	}
	n.plane, err = ovsplane.Open(ctx, ovsplane.Options{NS: n.ns, RunDir: n.host.Run, Datapath: ovs.Netdev, Patience: time.Minute})
	return n, err
}

func (n *ovsNode) start(command func() (process.Command, error)) error {
	c, err := command()
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: c.Path, Args: c.Args, Env: c.Env, Dir: c.Dir}
	if err := netspace.Do(n.spaces["node"], cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	n.daemons = append(n.daemons, cmd)
	return nil
}

// vswitchd is the process that forwards.
func (n *ovsNode) vswitchd() int { return n.daemons[len(n.daemons)-1].Process.Pid }

func (n *ovsNode) close() (err error) {
	if n.plane != nil {
		err = n.plane.Close()
	}
	if n.ns != nil {
		err = errors.Join(err, n.ns.Close())
	}
	for _, d := range n.daemons {
		_ = d.Process.Kill() // it may have ended
		_ = d.Wait()         // says that it was killed
	}
	for _, ns := range n.spaces {
		err = errors.Join(err, ns.Close())
	}
	return errors.Join(err, os.RemoveAll(n.dir))
}

// ends are the pods "client" and "server".
func (n *ovsNode) ends() endpoints {
	return endpoints{client: n.spaces["client"], server: n.spaces["server"], addr: policyServer, forwarders: []int{n.vswitchd()}}
}

// newOVSPolicyNode is a node whose two pods, and rules, the plane makes.
func newOVSPolicyNode(ctx context.Context, desired intent.Node) (_ *ovsNode, err error) {
	n, err := newOVSNode(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	desired.Ports = slices.Clone(desired.Ports)
	for i := range desired.Ports[:2] {
		if err := n.pod(&desired.Ports[i]); err != nil {
			return nil, err
		}
	}
	r, err := n.plane.Apply(ctx, desired, apply.Options{})
	// The other pods have no namespace.
	for _, f := range r.Failed {
		if err == nil && (f.Ref == desired.Ports[0].Ref() || f.Ref == desired.Ports[1].Ref()) {
			err = fmt.Errorf("%s: %w", f.Ref, f.Err)
		}
	}
	return n, err
}

// pod makes the namespace of a port, under the port's name before its slash.
func (n *ovsNode) pod(p *intent.Port) (err error) {
	name, _, _ := strings.Cut(p.ID, "/")
	if n.spaces[name], err = netspace.New(); err != nil {
		return err
	}
	p.Netns, p.Interface = path(n.spaces[name]), "eth0"
	p.Pod, p.MAC = "bench/"+name, packet.PodMAC(p.VPC, p.Addresses[0])
	return nil
}

// finishFrames makes the link eth0 of a pod finish its frames.
func finishFrames(pod *os.File) error {
	return netspace.Do(pod, func() error {
		_, err := offload.FinishFrames("eth0")
		return err
	})
}
