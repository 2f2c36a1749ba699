package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/lab/fabric"
	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/process"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/lab/topology"
)

// Directory modes of a node: only root looks into a lab.
const dirMode = 0o700

// node is one machine of the lab, on or off.
type node struct {
	s    *supervisor
	host topology.Host
	dir  string

	// act serialises power and cables.
	act sync.Mutex

	mu     sync.Mutex
	proc   *process.Process
	client *machine.Client
	state  *machine.State
	cut    bool
	boots  int
	pods   []*corev1.Pod
	// told wakes what tells the node its pods; every boot has its own.
	told chan struct{}
}

func newNode(s *supervisor, host topology.Host) *node {
	return &node{s: s, host: host, dir: filepath.Join(s.dir, spec.DirNodes, host.Name)}
}

// log is the path of one of the node's logs.
func (n *node) log(name string) string { return filepath.Join(n.dir, machine.DirLog, name) }

// boot starts the node. With hold its agent is left to be started by request.
func (n *node) boot(hold bool) error {
	n.act.Lock()
	defer n.act.Unlock()
	n.mu.Lock()
	running := n.proc != nil && n.proc.Running()
	n.mu.Unlock()
	if running {
		return fmt.Errorf("node %s is on", n.host.Name)
	}
	if err := n.start(hold); err != nil {
		return fmt.Errorf("boot node %s: %w", n.host.Name, err)
	}
	return nil
}

func (n *node) start(hold bool) error {
	for _, d := range []string{machine.DirRun, machine.DirVar, machine.DirCNI, machine.DirLog} {
		if err := os.MkdirAll(filepath.Join(n.dir, d), dirMode); err != nil {
			return err
		}
	}
	if err := n.writeConfigs(); err != nil {
		return err
	}
	socket, passed, err := n.listen()
	if err != nil {
		return err
	}
	defer passed.Close()
	stdin, config, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	defer config.Close()
	log, err := os.OpenFile(n.log("node.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	proc, err := n.s.table.Start(process.Command{
		Path: "/proc/self/exe", Args: n.s.roles.Node(n.host.Name), Env: os.Environ(), Dir: "/",
		Files:      []*os.File{stdin, log, log, passed, n.s.hostProc}, // machine.FDListener, FDHostProc
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	})
	if err != nil {
		return err
	}
	// Only after the process has its namespace, and before it reads its
	// configuration, can the cable be plugged in.
	err = n.s.net.fabric.Attach(n.host.Segment, port(n.host.Name), "eth0", n.host.MAC, fabric.Target{Pid: proc.Pid})
	if err == nil {
		err = json.NewEncoder(config).Encode(n.config(hold))
	}
	if err != nil {
		return errors.Join(err, proc.Stop(context.Background(), 0))
	}
	n.mu.Lock()
	n.proc, n.client, n.cut = proc, machine.NewClient(n.host.Name, socket), false
	n.boots++
	n.told = make(chan struct{}, 1)
	client, told := n.client, n.told
	n.mu.Unlock()
	n.s.wg.Go(func() { n.follow(proc, client, told) })
	return nil
}

// listen makes the socket of the node's API, for its process to accept on.
func (n *node) listen() (string, *os.File, error) {
	path := filepath.Join(n.dir, spec.SocketNode)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return "", nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		return "", nil, err
	}
	f, err := l.File()
	return path, f, err
}

func (n *node) config(hold bool) machine.Config {
	o := &n.s.options
	return machine.Config{
		Name: n.host.Name, Directory: n.dir, Interface: iface(n.host), HoldAgent: hold,
		OVS: n.plane() == config.PlaneOVS, FinishFrames: o.HasOVS(),
		Agent:    []string{o.Agent, "--config", machine.AgentConfigFile},
		AgentEnv: o.AgentEnv,
		CNIPath:  append([]string{filepath.Dir(o.CNI)}, o.CNIPath...),
	}
}

// follow keeps the node's state until its process ends.
func (n *node) follow(proc *process.Process, client *machine.Client, told <-chan struct{}) {
	ctx, cancel := context.WithCancel(n.s.ctx)
	defer cancel()
	go func() {
		select {
		case <-proc.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	defer client.Close()
	n.s.wg.Go(func() { n.push(ctx, client, told) })
	var after *uint64
	for ctx.Err() == nil {
		state, err := client.State(ctx, after)
		if err != nil {
			after = nil
			if !wait(ctx, retryNode) {
				break
			}
			continue
		}
		after = &state.Revision
		n.set(&state)
	}
	n.set(nil)
	if n.s.ctx.Err() == nil {
		_, words := proc.Exit()
		n.s.log.Info("node is off", "node", n.host.Name, "exit", words)
	}
}

// retryNode is how long a node that does not answer is left alone.
const retryNode = 50 * time.Millisecond

func (n *node) set(state *machine.State) {
	n.mu.Lock()
	n.state = state
	n.mu.Unlock()
	n.s.changed()
}

// push tells the node its pods, now and whenever they change, until ctx ends.
func (n *node) push(ctx context.Context, client *machine.Client, told <-chan struct{}) {
	for {
		n.mu.Lock()
		pods := n.pods
		n.mu.Unlock()
		if pods != nil {
			if err := client.SetPods(ctx, pods); err != nil {
				if !wait(ctx, retryNode) {
					return
				}
				continue
			}
		}
		select {
		case <-told:
		case <-ctx.Done():
			return
		}
	}
}

// setPods makes pods the ones that run here, now or after the next boot.
func (n *node) setPods(pods []*corev1.Pod) {
	if pods == nil {
		pods = []*corev1.Pod{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	same := n.pods != nil && slices.EqualFunc(n.pods, pods, func(a, b *corev1.Pod) bool { return a.UID == b.UID })
	n.pods = pods
	if same || n.told == nil {
		return
	}
	select {
	case n.told <- struct{}{}:
	default:
	}
}

// powerOff ends everything on the node at once. What it leaves is what a disk keeps.
func (n *node) powerOff(ctx context.Context) error {
	n.act.Lock()
	defer n.act.Unlock()
	n.mu.Lock()
	proc := n.proc
	n.mu.Unlock()
	if proc != nil {
		if err := proc.Stop(ctx, 0); err != nil {
			return fmt.Errorf("power off node %s: %w", n.host.Name, err)
		}
	}
	// The namespace dies some time later; the cable goes now.
	if err := n.s.net.fabric.Detach(port(n.host.Name)); err != nil {
		return fmt.Errorf("power off node %s: %w", n.host.Name, err)
	}
	run := filepath.Join(n.dir, machine.DirRun)
	if err := errors.Join(os.RemoveAll(run), os.Mkdir(run, dirMode)); err != nil {
		return fmt.Errorf("empty /run of node %s: %w", n.host.Name, err)
	}
	return nil
}

// setLink pulls or plugs the node's cable. A cable that was plugged in carries
// packets when this returns.
func (n *node) setLink(ctx context.Context, up bool) error {
	n.act.Lock()
	defer n.act.Unlock()
	n.mu.Lock()
	proc := n.proc
	n.mu.Unlock()
	if proc == nil || !proc.Running() {
		return fmt.Errorf("node %s is off", n.host.Name)
	}
	err := n.s.net.fabric.SetPort(port(n.host.Name), up)
	if err == nil && up {
		err = waitLink(ctx, port(n.host.Name), proc)
	}
	if err != nil {
		return fmt.Errorf("cable of node %s: %w", n.host.Name, err)
	}
	n.mu.Lock()
	n.cut = !up
	n.mu.Unlock()
	return nil
}

// linkTimeout bounds the wait for a carrier; a NIC that somebody on the node has set
// down never gets one.
const linkTimeout = 3 * time.Second

func waitLink(ctx context.Context, port string, proc *process.Process) error {
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	ns, err := netspace.Open(fmt.Sprintf("/proc/%d/ns/net", proc.Pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := fabric.WaitUp(ctx, ns, "eth0"); err != nil {
		return err
	}
	return fabric.WaitUp(ctx, nil, port)
}

// online is the client of a node that is on.
func (n *node) online() (*machine.Client, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil || !n.proc.Running() {
		return nil, fmt.Errorf("node %s is off: boot it with fairlead lab fault node-power-on %s", n.host.Name, n.host.Name)
	}
	return n.client, nil
}

func (n *node) status() spec.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := spec.Node{
		Name: n.host.Name, Segment: n.host.Segment, Addresses: n.host.Addresses,
		Power: "off", Link: "up", Boots: n.boots, State: machine.State{Reason: "the node is off", Pods: []machine.PodState{}},
	}
	if n.cut {
		out.Link = "cut"
	}
	if n.proc != nil && n.proc.Running() {
		out.Power, out.Pid = "on", n.proc.Host
		out.State.Reason = "the node is booting"
	}
	if n.state != nil {
		out.State = *n.state
	}
	return out
}

// nodes are the machines as the cluster sees them.
type nodes map[string]*node

// Addresses implements cluster.Nodes.
func (m nodes) Addresses(name string) []netip.Addr {
	if n := m[name]; n != nil {
		return n.host.Addrs()
	}
	return nil
}

// State implements cluster.Nodes.
func (m nodes) State(name string) *machine.State {
	n := m[name]
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state
}

// SetPods implements cluster.Nodes.
func (m nodes) SetPods(name string, pods []*corev1.Pod) {
	if n := m[name]; n != nil {
		n.setPods(pods)
	}
}

// PowerOff implements cluster.Nodes.
func (m nodes) PowerOff(name string) {
	n := m[name]
	if n == nil {
		return
	}
	n.s.wg.Go(func() {
		n.setPods(nil)
		if err := n.powerOff(n.s.ctx); err != nil && n.s.ctx.Err() == nil {
			n.s.log.Warn("power off", "node", name, "err", err)
		}
	})
}

// wait sleeps for d, or reports false when ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
