package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// nodeRole is the first argument of this program when it runs inside a lab's node,
// the second says what it does there.
const (
	nodeRole    = "in-node"
	driveCalls  = "calls"
	driveStatus = "status"
)

// plugin is one of those compared, with sandboxes of its own that are used again.
type plugin struct {
	cni       *libcni.CNIConfig
	list      *libcni.NetworkConfigList
	sandboxes []*sandbox
	// agent is the pid of the daemon whose CPU counts too; 0 for none.
	agent int
}

// sandbox is a container's network namespace.
type sandbox struct {
	path string
	ns   *os.File
	// id is that of the container in it: a new one in every round.
	id string
}

// driveNode measures something inside a node and prints it. Its arguments are what,
// two paths or numbers, and how many rounds.
func driveNode(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 4 {
		return errors.New("want four arguments: this is how the program calls itself")
	}
	rounds, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	if args[0] == driveStatus {
		r, err := measureStatus(ctx, args[1], args[2], rounds)
		return errors.Join(err, json.NewEncoder(out).Encode(r))
	}
	parallel, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	r, err := measureCalls(ctx, args[1], parallel, rounds)
	return errors.Join(err, json.NewEncoder(out).Encode(r))
}

// measureCalls makes so many calls at once, with either plugin in turn.
func measureCalls(ctx context.Context, bin string, parallel, rounds int) (report nodeReport, err error) {
	agent, err := pidOf("fairlead-agent")
	if err != nil {
		return report, err
	}
	ours, err := newPlugin(oursConflist, []string{bin}, "ours", parallel, agent)
	if err != nil {
		return report, err
	}
	defer ours.close()
	base, err := newPlugin(baseConflist, []string{referencePlugins}, "base", parallel, 0)
	if err != nil {
		return report, err
	}
	defer base.close()
	order := []struct {
		p    *plugin
		into *calls
	}{{base, &report.Base}, {ours, &report.Ours}, {base, &report.Again}}
	for round := range rounds + 1 {
		for i := range order {
			o := order[(i+round)%len(order)]
			into := o.into
			if round == 0 { // warms caches, bridges and iptables modules
				into = &calls{}
			}
			if err := o.p.round(ctx, into); err != nil {
				return report, fmt.Errorf("network %s: %w", o.p.list.Name, err)
			}
		}
	}
	return report, nil
}

func newPlugin(conflist string, path []string, name string, parallel, agent int) (*plugin, error) {
	list, err := libcni.NetworkConfFromBytes([]byte(conflist))
	if err != nil {
		return nil, err
	}
	p := &plugin{cni: libcni.NewCNIConfigWithCacheDir(path, "/var/lib/cni/bench-cache", nil), list: list, agent: agent}
	for i := range parallel {
		s, err := newSandbox(fmt.Sprintf("/run/netns/bench-%s-%d-%d", name, os.Getpid(), i))
		if err != nil {
			p.close()
			return nil, err
		}
		p.sandboxes = append(p.sandboxes, s)
	}
	return p, nil
}

func (p *plugin) close() {
	for _, s := range p.sandboxes {
		_ = unix.Unmount(s.path, unix.MNT_DETACH) // the lab's end removes what is left
		_ = os.Remove(s.path)
		s.ns.Close()
	}
}

func newSandbox(path string) (*sandbox, error) {
	ns, err := netspace.New()
	if err != nil {
		return nil, err
	}
	err = os.WriteFile(path, nil, 0o600)
	if err == nil {
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), path, "", unix.MS_BIND, "")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the sandbox %s: %w", path, err), ns.Close())
	}
	return &sandbox{path: path, ns: ns}, nil
}

// round attaches a container in every sandbox, all at once, and takes them off
// again, all at once. What a daemon does after the reply counts as CPU, not as wall.
func (p *plugin) round(ctx context.Context, into *calls) error {
	for i, s := range p.sandboxes {
		s.id = fmt.Sprintf("bench-%d-%d", time.Now().UnixNano(), i)
	}
	add := func(s *sandbox) error {
		_, err := p.cni.AddNetworkList(ctx, p.list, s.runtime())
		return err
	}
	if err := p.all(ctx, "ADD", true, add, &into.Add, &into.AddCPU); err != nil {
		return err
	}
	del := func(s *sandbox) error { return p.cni.DelNetworkList(ctx, p.list, s.runtime()) }
	return p.all(ctx, "DEL", false, del, &into.Del, &into.DelCPU)
}

func (s *sandbox) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: s.id, NetNS: s.path, IfName: "eth0"}
}

// afterwards is how long a daemon's CPU is still counted after the last reply: it
// publishes what it gave within 10 ms.
const afterwards = 40 * time.Millisecond

// all makes one call per sandbox at the same time.
func (p *plugin) all(ctx context.Context, what string, attached bool, call func(*sandbox) error, wall, cpu *samples) error {
	before, err := p.used()
	if err != nil {
		return err
	}
	took, errs := make([]time.Duration, len(p.sandboxes)), make([]error, len(p.sandboxes))
	var wg sync.WaitGroup
	for i, s := range p.sandboxes {
		wg.Go(func() {
			start := time.Now()
			errs[i] = call(s)
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := p.settle(ctx, attached); err != nil {
		return fmt.Errorf("after %s: %w", what, err)
	}
	after, err := p.used()
	if err != nil {
		return err
	}
	for _, d := range took {
		wall.add(d)
	}
	cpu.add((after - before) / time.Duration(len(p.sandboxes)))
	return nil
}

// settle waits until every sandbox has its interface, or no longer, and for what a
// daemon does afterwards.
func (p *plugin) settle(ctx context.Context, attached bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if p.agent != 0 {
		t := time.NewTimer(afterwards)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, s := range p.sandboxes {
		err := poll(ctx, 10*time.Millisecond, func() (bool, error) {
			has := false
			err := netspace.Do(s.ns, func() error {
				_, err := net.InterfaceByName("eth0")
				has = err == nil
				return nil
			})
			return has == attached, err
		})
		if err != nil {
			return fmt.Errorf("interface eth0 in %s: want %t: %w", s.path, attached, err)
		}
	}
	return nil
}

// used is the CPU time of all plugins that have run so far, those that they ran
// included, and that of the daemon.
func (p *plugin) used() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
		return 0, fmt.Errorf("read the CPU time of plugins: %w", err)
	}
	sum := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	if p.agent != 0 {
		agent, err := processCPU(p.agent)
		if err != nil {
			return 0, err
		}
		sum += agent
	}
	return sum, nil
}

// pidOf finds a process of this pid namespace by its program's name.
func pidOf(name string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(raw)) == name {
			return strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	return 0, fmt.Errorf("no process %s runs in the node", name)
}
