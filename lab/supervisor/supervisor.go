package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/lab/cluster"
	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/process"
	"github.com/fairlead-sdn/fairlead/lab/rpc"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/lab/topology"
)

// Descriptors that the supervisor inherits beside its standard ones.
const (
	// FDLock is the lab's lock, held for as long as the supervisor lives.
	FDLock = 3
	// FDProgress takes Steps as lines of JSON until the lab is ready or has failed.
	FDProgress = 4
	// FDHostProc is a directory: the /proc of the host.
	FDHostProc = 5
)

// Roles are the command lines, with the program's name in front, that make this
// program another process of the lab.
type Roles interface {
	Node(name string) []string
	Etcd(dir string, urls []string) []string
}

type supervisor struct {
	ctx      context.Context
	dir      string
	options  spec.Options
	roles    Roles
	log      *slog.Logger
	pid      int
	started  time.Time
	hostProc *os.File
	plan     *topology.Plan
	table    *process.Table
	net      *network
	etcd     *process.Daemon
	control  *process.Daemon
	store    datastore.Store
	nodes    nodes
	cluster  *cluster.Cluster
	wg       sync.WaitGroup

	mu    sync.Mutex
	moved chan struct{}
}

// Run is the supervisor's process: it builds the lab in dir, reports its steps on
// FDProgress, and keeps the lab until ctx ends.
func Run(ctx context.Context, dir string, roles Roles, log *slog.Logger) error {
	for _, fd := range []int{FDLock, FDProgress, FDHostProc} {
		unix.CloseOnExec(fd)
	}
	report := newReporter(os.NewFile(FDProgress, "progress"))
	defer report.close()
	s := &supervisor{
		dir: dir, roles: roles, log: log, started: time.Now(),
		hostProc: os.NewFile(FDHostProc, "host /proc"), moved: make(chan struct{}),
	}
	err := s.run(ctx, report)
	if err != nil && ctx.Err() == nil {
		report.fail(err)
	}
	return err
}

func (s *supervisor) run(ctx context.Context, report *reporter) error {
	report.step("prepare", "")
	if err := s.prepare(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	s.ctx = ctx
	group.Go(func() error { return s.table.Run(ctx) })
	group.Go(func() error {
		if err := s.start(ctx, report); err != nil {
			return err
		}
		report.ready()
		return nil
	})
	err := group.Wait()
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	s.wg.Wait()
	return err
}

// prepare makes the supervisor's surroundings its own.
func (s *supervisor) prepare() error {
	raw, err := os.ReadFile(filepath.Join(s.dir, spec.FileOptions))
	if err == nil {
		err = json.Unmarshal(raw, &s.options)
	}
	if err != nil {
		return fmt.Errorf("read the lab's options: %w", err)
	}
	if s.plan, err = s.options.Plan(); err != nil {
		return err
	}
	if err := machine.Isolate(); err != nil {
		return err
	}
	if err := releaseNamespaces(); err != nil {
		return err
	}
	self, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d/self", s.hostProc.Fd()))
	if err == nil {
		s.pid, err = strconv.Atoi(self)
	}
	if err != nil {
		return fmt.Errorf("find this process on the host: %w", err)
	}
	raw, err = json.Marshal(spec.Supervisor{Pid: s.pid})
	if err == nil {
		err = writeFile(filepath.Join(s.dir, spec.FileSupervisor), raw)
	}
	if err != nil {
		return fmt.Errorf("write the supervisor's pid: %w", err)
	}
	s.table = process.NewTable(s.hostProc)
	return nil
}

// start brings the lab up: the network, then etcd and the machines at the same
// time, then the objects, then controller and agents.
func (s *supervisor) start(ctx context.Context, report *reporter) error {
	up, cancel := context.WithTimeout(ctx, s.options.Wait)
	defer cancel()
	report.step("fabric", fmt.Sprintf("segments: %d, a router, an outside host", s.options.Segments))
	var err error
	if s.net, err = buildNetwork(s.plan, s.options.MTU); err != nil {
		return err
	}
	report.step("datastore", "etcd at "+s.etcdURLs()[0])
	if s.etcd, err = s.newEtcd(); err == nil {
		err = s.etcd.Start(nil)
	}
	if err != nil {
		return err
	}
	if s.store, err = etcd.New(etcd.Config{Endpoints: []string{s.endpoint()}}); err != nil {
		return err
	}
	s.nodes = nodes{}
	for _, h := range s.plan.Nodes {
		s.nodes[h.Name] = newNode(s, h)
	}
	var boots errgroup.Group
	boots.SetLimit(4)
	for _, h := range s.plan.Nodes {
		boots.Go(func() error { return s.nodes[h.Name].boot(true) })
	}
	if err := errors.Join(s.waitForEtcd(up), boots.Wait()); err != nil {
		return err
	}
	report.step("objects", "namespaces, the default Subnet, nodes")
	if err := s.createObjects(up); err != nil {
		return err
	}
	report.step("controller", "")
	if s.control, err = s.newController(); err == nil {
		err = s.control.Start(nil)
	}
	if err != nil {
		return err
	}
	c := cluster.New(s.store, s.nodes, s.log)
	s.mu.Lock()
	s.cluster = c
	s.mu.Unlock()
	if err := s.startAgents(up); err != nil {
		return err
	}
	if err := s.serve(ctx); err != nil {
		return err
	}
	s.wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			s.log.Error("cluster", "err", err)
		}
	})
	return s.waitForNodes(up, report)
}

func (s *supervisor) startAgents(ctx context.Context) error {
	var group errgroup.Group
	for _, n := range s.nodes {
		group.Go(func() error {
			client, err := n.online()
			if err != nil {
				return fmt.Errorf("%w: %s", err, process.Tail(n.log("node.log")))
			}
			return client.Agent(ctx, machine.AgentRequest{Action: machine.StartAgent})
		})
	}
	return group.Wait()
}

// waitForNodes returns when pods can be attached on every node and the controller
// runs.
func (s *supervisor) waitForNodes(ctx context.Context, report *reporter) error {
	for {
		s.mu.Lock()
		moved := s.moved
		s.mu.Unlock()
		ready, problem := 0, error(nil)
		for _, h := range s.plan.Nodes {
			n := s.nodes[h.Name]
			st := n.status()
			switch {
			case st.Power != "on":
				return fmt.Errorf("node %s has ended: %s", h.Name, process.Tail(n.log("node.log")))
			case st.State.Agent.State == process.Exited:
				return fmt.Errorf("the agent of %s has ended (%s): %s", h.Name, st.State.Agent.Exit, process.Tail(n.log("agent.log")))
			case st.State.Ready:
				ready++
			case problem == nil:
				problem = fmt.Errorf("%s is not ready: %s; its agent says: %s", h.Name, st.State.Reason, process.Tail(n.log("agent.log")))
			}
		}
		if c := s.control.Status(); c.State == process.Exited {
			return fmt.Errorf("the controller has ended (%s): %s", c.Exit, process.Tail(filepath.Join(s.dir, spec.LogController)))
		}
		report.count("agents", "waiting until pods can be attached", ready, len(s.plan.Nodes))
		if ready == len(s.plan.Nodes) {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d nodes are ready after %s: %w", ready, len(s.plan.Nodes), s.options.Wait, problem)
		}
	}
}

// changed says that something about a process or a node has changed.
func (s *supervisor) changed() {
	s.mu.Lock()
	close(s.moved)
	s.moved = make(chan struct{})
	c := s.cluster
	s.mu.Unlock()
	if c != nil {
		c.Wake()
	}
}

// serve answers the command line from now on.
func (s *supervisor) serve(ctx context.Context) error {
	path := filepath.Join(s.dir, spec.SocketAPI)
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	s.wg.Go(func() {
		if err := rpc.Serve(ctx, l, s.handler()); err != nil {
			s.log.Error("serve", "err", err)
		}
	})
	return nil
}
