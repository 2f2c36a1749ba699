package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/lab/process"
)

// Descriptors that process 1 of a node inherits beside its standard ones.
const (
	// FDListener is the unix socket of the node's API, listening.
	FDListener = 3
	// FDHostProc is a directory: the /proc of the host.
	FDHostProc = 4
)

const (
	// The CNI plugin is asked for its status after statusFast, then after twice that
	// and so on up to statusBusy, until pods can be attached; then every statusSlow.
	statusFast = 50 * time.Millisecond
	statusBusy = 400 * time.Millisecond
	statusSlow = 5 * time.Second
	// statusTimeout bounds one answer.
	statusTimeout = 15 * time.Second
)

// Node is process 1 of a node.
type Node struct {
	ctx        context.Context
	config     Config
	log        *slog.Logger
	table      *process.Table
	network    *network
	agent      *process.Daemon
	ovs        *openvswitch // nil on other planes
	becomeArgs []string
	wg         sync.WaitGroup
	// asked wakes the loop that asks the plugin for its status.
	asked chan struct{}

	mu      sync.Mutex
	pods    map[types.UID]*pod
	desired map[types.UID]*corev1.Pod
	ready   bool
	reason  string
	// readyOf is the life of the agent, by the number of its starts, that this is said of.
	readyOf  int
	revision uint64
	moved    chan struct{}
}

// Run is process 1 of a node: it reads its Config from standard input, boots,
// starts the agent and serves until ctx ends. becomeArgs is the command line, with
// the program's name in front, that makes this program call Become.
func Run(ctx context.Context, becomeArgs []string, log *slog.Logger) error {
	var c Config
	if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
		return fmt.Errorf("read the node's configuration: %w", err)
	}
	socket := os.NewFile(FDListener, "api socket")
	listener, err := net.FileListener(socket)
	if err != nil {
		return fmt.Errorf("node %s: api socket: %w", c.Name, err)
	}
	socket.Close()
	hostProc := os.NewFile(FDHostProc, "host /proc")
	unix.CloseOnExec(FDHostProc)
	if err := boot(c); err != nil {
		return fmt.Errorf("node %s: %w", c.Name, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	n := &Node{
		ctx: ctx, config: c, log: log, table: process.NewTable(hostProc),
		becomeArgs: becomeArgs, asked: make(chan struct{}, 1),
		pods: map[types.UID]*pod{}, desired: map[types.UID]*corev1.Pod{}, reason: "starting", moved: make(chan struct{}),
	}
	n.network = newNetwork(n.table, c.CNIPath)
	environ := append(os.Environ(), c.AgentEnv...)
	n.agent = process.NewDaemon(n.table, process.Command{Path: c.Agent[0], Args: c.Agent, Env: environ, Dir: "/"},
		filepath.Join(HomeDir, DirLog, "agent.log"), n.agentChanged)
	if c.OVS {
		if n.ovs, err = newOpenvswitch(n.table, n.changed); err != nil {
			return fmt.Errorf("node %s: %w", c.Name, err)
		}
	}
	group.Go(func() error { return n.table.Run(ctx) })
	group.Go(func() error { return n.serve(ctx, listener) })
	group.Go(func() error { return n.watchStatus(ctx) })
	if n.ovs != nil {
		if err := n.ovs.start(); err != nil {
			n.setReady(0, false, err.Error())
		}
	}
	if !c.HoldAgent {
		if err := n.agent.Start(nil); err != nil {
			n.setReady(0, false, err.Error())
		}
	}
	err = group.Wait()
	n.wg.Wait()
	return err
}

// changed publishes a new revision of the state.
func (n *Node) changed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.revision++
	close(n.moved)
	n.moved = make(chan struct{})
}

func (n *Node) agentChanged() {
	select {
	case n.asked <- struct{}{}:
	default:
	}
	n.changed()
}

// watchStatus keeps asking the plugin whether pods can be attached.
func (n *Node) watchStatus(ctx context.Context) error {
	next := statusFast
	for {
		callCtx, cancel := context.WithTimeout(ctx, statusTimeout)
		life := n.agent.Status().Starts
		err := n.network.status(callCtx)
		cancel()
		wait := statusSlow
		if err != nil {
			wait, next = next, min(2*next, statusBusy)
			n.setReady(life, false, err.Error())
		} else {
			n.setReady(life, true, "")
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-n.asked:
			next = statusFast
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (n *Node) setReady(life int, ready bool, reason string) {
	n.mu.Lock()
	same := n.ready == ready && n.reason == reason && n.readyOf == life
	n.ready, n.reason, n.readyOf = ready, reason, life
	n.mu.Unlock()
	if !same {
		n.changed()
	}
}

// state is the state now, and a channel that is closed when there is a later one.
func (n *Node) state() (State, <-chan struct{}) {
	n.mu.Lock()
	s := State{Revision: n.revision, Ready: n.ready, Reason: n.reason, Pods: []PodState{}}
	readyOf, moved := n.readyOf, n.moved
	pods := make([]*pod, 0, len(n.pods))
	for _, p := range n.pods {
		pods = append(pods, p)
	}
	n.mu.Unlock()
	s.Agent = n.agent.Status()
	if s.Agent.Starts != readyOf { // What an earlier agent said is not this one's answer.
		s.Ready, s.Reason = false, "the agent was started, and has not said yet whether pods can be attached"
	}
	if n.ovs != nil {
		n.ovs.status(&s)
	}
	for _, p := range pods {
		s.Pods = append(s.Pods, p.snapshot())
	}
	slices.SortFunc(s.Pods, func(a, b PodState) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+a.UID, b.Namespace+"/"+b.Name+"/"+b.UID)
	})
	return s, moved
}

// setPods makes the given pods the ones that run here.
func (n *Node) setPods(objects []*corev1.Pod) {
	desired := make(map[types.UID]*corev1.Pod, len(objects))
	for _, o := range objects {
		desired[o.UID] = o
	}
	n.mu.Lock()
	n.desired = desired
	for uid, p := range n.pods {
		if desired[uid] == nil {
			p.cancel()
		}
	}
	for _, o := range objects {
		n.startLocked(o)
	}
	n.mu.Unlock()
	n.changed()
}

// startLocked starts a pod that does not run yet. One that is being removed and is
// wanted again starts when it is gone.
func (n *Node) startLocked(o *corev1.Pod) {
	if n.pods[o.UID] != nil || n.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(n.ctx)
	p := newPod(n, o, cancel)
	n.pods[o.UID] = p
	n.wg.Go(func() {
		p.run(ctx)
		// A pod that ended by itself keeps its state until it is deleted.
		<-ctx.Done()
		n.mu.Lock()
		delete(n.pods, o.UID)
		if again := n.desired[o.UID]; again != nil {
			n.startLocked(again)
		}
		n.mu.Unlock()
		n.changed()
	})
}

// act does something to the agent.
func (n *Node) act(ctx context.Context, r AgentRequest) error {
	switch r.Action {
	case KillAgent:
		return n.agent.Signal(unix.SIGKILL)
	case FreezeAgent:
		return n.agent.Signal(unix.SIGSTOP)
	case ContinueAgent:
		return n.agent.Signal(unix.SIGCONT)
	case StopAgent:
		return n.agent.Stop(ctx)
	case StartAgent:
		return n.agent.Start(r.Env)
	case RestartAgent:
		return n.agent.Restart(ctx, r.Env)
	}
	return fmt.Errorf("unknown action %q on an agent", r.Action)
}

// collect calls CNI GC with the attachments that live.
func (n *Node) collect(ctx context.Context) error {
	s, _ := n.state()
	var valid []string
	for _, p := range s.Pods {
		if p.Sandbox != "" {
			valid = append(valid, p.Sandbox)
		}
	}
	return n.network.gc(ctx, valid)
}

// checkPods calls CNI CHECK for every pod that has its addresses.
func (n *Node) checkPods(ctx context.Context) error {
	n.mu.Lock()
	pods := make([]*pod, 0, len(n.pods))
	for _, p := range n.pods {
		pods = append(pods, p)
	}
	n.mu.Unlock()
	var errs []error
	for _, p := range pods {
		s := p.snapshot()
		if s.Sandbox == "" || len(s.IPs) == 0 {
			continue
		}
		if err := n.network.check(ctx, p.object, s.Sandbox); err != nil {
			errs = append(errs, fmt.Errorf("pod %s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	return errors.Join(errs...)
}

// ask sends probes from the sources that the request names.
func (n *Node) ask(ctx context.Context, request ProbeRequest) ([][]probe.Answer, error) {
	answers := make([][]probe.Answer, len(request.Sources))
	slots := probe.NewSlots(request.AtOnce)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i, r := range request.Sources {
		group.Go(func() error {
			netns, err := n.source(r.UID)
			if err != nil {
				return err
			}
			if netns != nil {
				defer netns.Close()
			}
			answers[i] = probe.Ask(ctx, netns, r.Questions, slots)
			return nil
		})
	}
	return answers, group.Wait()
}

// source opens the network namespace of a pod, or nil for the node's own.
func (n *Node) source(uid string) (*os.File, error) {
	if uid == "" {
		return nil, nil
	}
	n.mu.Lock()
	p := n.pods[types.UID(uid)]
	n.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("pod with uid %s does not run on %s", uid, n.config.Name)
	}
	s := p.snapshot()
	switch {
	case p.object.Spec.HostNetwork:
		return nil, nil
	case s.Sandbox == "":
		return nil, fmt.Errorf("pod %s/%s has no sandbox", s.Namespace, s.Name)
	}
	return netspace.Open(netnsDir + "/" + s.Netns)
}

func (n *Node) addresses() []netip.Addr {
	var out []netip.Addr
	for _, p := range n.config.Interface.Addresses {
		out = append(out, p.Addr())
	}
	return out
}

func (n *Node) hostIP() string { return n.addresses()[0].String() }
