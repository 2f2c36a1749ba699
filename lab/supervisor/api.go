package supervisor

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/process"
	"github.com/fairlead-sdn/fairlead/lab/rpc"
	"github.com/fairlead-sdn/fairlead/lab/spec"
)

func (s *supervisor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { rpc.Reply(w, s.status()) })
	mux.HandleFunc("POST /v1/fault", rpc.Handle(func(ctx context.Context, f spec.Fault) (struct{}, error) {
		err := s.fault(ctx, f)
		s.log.Info("fault", "kind", f.Kind, "node", f.Node, "err", err)
		return struct{}{}, err
	}))
	return mux
}

func (s *supervisor) status() spec.Status {
	out := spec.Status{
		Name: s.options.Name, Directory: s.dir, Pid: s.pid, Started: s.started, Options: s.options,
		Datastore:  spec.Datastore{Process: s.etcd.Status(), Endpoint: s.endpoint(), URLs: s.etcdURLs()},
		Controller: s.control.Status(),
		Outside:    s.plan.Outside.Addrs(), Control: s.plan.Control.Addrs(),
		Spaces: s.net.spaces(s.pid), Problems: s.cluster.Problems(),
	}
	for _, h := range s.plan.Nodes {
		out.Nodes = append(out.Nodes, s.nodes[h.Name].status())
	}
	return out
}

// fault does what was asked and returns when it is done.
func (s *supervisor) fault(ctx context.Context, f spec.Fault) error {
	for _, info := range spec.Faults() {
		if info.Kind != f.Kind {
			continue
		}
		if !info.OnNode {
			return s.faultProcess(ctx, f)
		}
		n := s.nodes[f.Node]
		if n == nil {
			return fmt.Errorf("there is no node %q: the lab has %s to %s", f.Node, s.plan.Nodes[0].Name, s.plan.Nodes[len(s.plan.Nodes)-1].Name)
		}
		return s.faultNode(ctx, n, f)
	}
	return fmt.Errorf("unknown fault %q", f.Kind)
}

func (s *supervisor) faultNode(ctx context.Context, n *node, f spec.Fault) error {
	switch f.Kind {
	case spec.LinkCut:
		return n.setLink(ctx, false)
	case spec.LinkRestore:
		return n.setLink(ctx, true)
	case spec.NodePowerOff:
		return n.powerOff(ctx)
	case spec.NodePowerOn:
		return s.powerOn(ctx, n)
	case spec.NodeReboot:
		if err := n.powerOff(ctx); err != nil {
			return err
		}
		return s.powerOn(ctx, n)
	}
	client, err := n.online()
	if err != nil {
		return err
	}
	switch f.Kind {
	case spec.NodeGC:
		return client.Collect(ctx)
	case spec.NodeCheck:
		return client.CheckPods(ctx)
	}
	if action, ok := switchActions[f.Kind]; ok {
		err = client.Switch(ctx, machine.SwitchRequest{Action: action})
	} else {
		err = client.Agent(ctx, machine.AgentRequest{Action: agentActions[f.Kind], Env: f.Env})
	}
	if err != nil {
		return err
	}
	// The status shows what was done as soon as this returns.
	state, err := client.State(ctx, nil)
	if err == nil {
		n.set(&state)
	}
	return err
}

// agentActions and switchActions are what faults do to programs of a node.
var (
	agentActions = map[spec.FaultKind]machine.AgentAction{
		spec.AgentKill: machine.KillAgent, spec.AgentFreeze: machine.FreezeAgent, spec.AgentContinue: machine.ContinueAgent,
		spec.AgentStop: machine.StopAgent, spec.AgentStart: machine.StartAgent, spec.AgentRestart: machine.RestartAgent,
	}
	switchActions = map[spec.FaultKind]machine.SwitchAction{
		spec.SwitchKill: machine.KillSwitch, spec.SwitchStart: machine.StartSwitch, spec.SwitchRestart: machine.RestartSwitch,
		spec.SwitchFreeze: machine.FreezeSwitch, spec.SwitchContinue: machine.ContinueSwitch,
		spec.DatabaseKill: machine.KillDatabase, spec.DatabaseStart: machine.StartDatabase,
		spec.DatabaseRestart: machine.RestartDatabase, spec.DatabaseWipe: machine.WipeDatabase,
	}
)

// powerOn boots a node. One whose Node object was deleted joins anew, as soon as the
// datastore can be asked.
func (s *supervisor) powerOn(ctx context.Context, n *node) error {
	if err := n.boot(false); err != nil {
		return err
	}
	s.wg.Go(func() {
		for s.register(s.ctx, n) != nil {
			if !wait(s.ctx, retryNode) {
				return
			}
		}
	})
	return ctx.Err()
}

func (s *supervisor) faultProcess(ctx context.Context, f spec.Fault) error {
	if f.Kind == spec.DatastoreCompact {
		return s.compact(ctx)
	}
	type action struct {
		daemon *process.Daemon
		do     func(*process.Daemon) error
	}
	signal := func(sig unix.Signal) func(*process.Daemon) error {
		return func(d *process.Daemon) error { return d.Signal(sig) }
	}
	stop := func(d *process.Daemon) error { return d.Stop(ctx) }
	start := func(d *process.Daemon) error { return d.Start(f.Env) }
	a := map[spec.FaultKind]action{
		spec.DatastoreStop: {s.etcd, stop}, spec.DatastoreKill: {s.etcd, signal(unix.SIGKILL)}, spec.DatastoreStart: {s.etcd, start},
		spec.DatastoreFreeze: {s.etcd, signal(unix.SIGSTOP)}, spec.DatastoreContinue: {s.etcd, signal(unix.SIGCONT)},
		spec.ControllerKill: {s.control, signal(unix.SIGKILL)}, spec.ControllerFreeze: {s.control, signal(unix.SIGSTOP)},
		spec.ControllerContinue: {s.control, signal(unix.SIGCONT)}, spec.ControllerStop: {s.control, stop}, spec.ControllerStart: {s.control, start},
		spec.ControllerRestart: {s.control, func(d *process.Daemon) error { return d.Restart(ctx, f.Env) }},
	}[f.Kind]
	if err := a.do(a.daemon); err != nil {
		return err
	}
	if f.Kind == spec.DatastoreStart || f.Kind == spec.DatastoreContinue {
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		return s.waitForEtcd(ctx)
	}
	return nil
}

// answerTimeout bounds the wait for an etcd that was started.
const answerTimeout = 30 * time.Second
