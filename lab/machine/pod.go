package machine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/lab/fabric"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/probe"
)

const (
	// A plugin that says "try again later" is asked again after minRetry, then after
	// twice that, up to maxRetry. So is DEL until it succeeds.
	minRetry = 50 * time.Millisecond
	maxRetry = 2 * time.Second
	// pluginTimeout bounds one call of a plugin.
	pluginTimeout = 2 * time.Minute
)

// pod runs one pod of the node, from its sandbox to its end.
type pod struct {
	node   *Node
	object *corev1.Pod
	cancel context.CancelFunc

	// Written by run alone, before what reads them starts.
	sandbox string
	netns   *os.File

	mu    sync.Mutex
	state PodState
}

func newPod(n *Node, object *corev1.Pod, cancel context.CancelFunc) *pod {
	p := &pod{node: n, object: object, cancel: cancel, state: PodState{
		Namespace: object.Namespace, Name: object.Name, UID: string(object.UID),
		Phase: corev1.PodPending, Reason: "ContainerCreating",
	}}
	for i := range object.Spec.InitContainers {
		p.state.Containers = append(p.state.Containers, ContainerState{Name: object.Spec.InitContainers[i].Name, Init: true})
	}
	for i := range object.Spec.Containers {
		p.state.Containers = append(p.state.Containers, ContainerState{Name: object.Spec.Containers[i].Name})
	}
	return p
}

// run is the pod's life. It returns when nothing of the pod is left on the node
// after ctx has ended.
func (p *pod) run(ctx context.Context) {
	defer p.set(func(s *PodState) { s.Ready = false })
	if !p.object.Spec.HostNetwork {
		if !p.attach(ctx) {
			return
		}
		defer p.detach(context.WithoutCancel(ctx))
	} else {
		p.set(func(s *PodState) { s.IPs = p.node.addresses() })
	}
	phase := p.runContainers(ctx)
	if ctx.Err() != nil {
		return
	}
	// All containers have ended for good: the pod gives its address back, as with
	// every runtime, and stays as it is until it is deleted.
	p.set(func(s *PodState) { s.Phase, s.Ready = phase, false })
}

// attach makes sandboxes until one is attached to the network, or ctx ends.
func (p *pod) attach(ctx context.Context) bool {
	for backoff := minRetry; ; backoff = min(2*backoff, maxRetry) {
		err := p.attachOnce(ctx)
		if err == nil {
			return true
		}
		p.set(func(s *PodState) { s.Reason, s.Message = "FailedCreatePodSandBox", err.Error() })
		if p.sandbox != "" {
			p.detach(context.WithoutCancel(ctx))
		}
		if ctx.Err() != nil || !sleep(ctx, backoff) {
			return false
		}
	}
}

// attachOnce makes one sandbox and calls ADD, again for as long as the plugin asks
// to be called again.
func (p *pod) attachOnce(ctx context.Context) error {
	id := make([]byte, 32)
	if _, err := rand.Read(id); err != nil {
		return err
	}
	sandbox := hex.EncodeToString(id)
	netns, err := makeSandbox(sandbox)
	if err != nil {
		return err
	}
	p.sandbox, p.netns = sandbox, netns
	p.set(func(s *PodState) { s.Sandbox, s.Netns = sandbox, netnsName(sandbox) })
	for backoff := minRetry; ; backoff = min(2*backoff, maxRetry) {
		addrs, err := p.add(ctx)
		if err == nil {
			p.set(func(s *PodState) { s.IPs, s.Reason, s.Message = addrs, "ContainerCreating", "" })
			return nil
		}
		if !tryAgain(err) {
			return err
		}
		p.set(func(s *PodState) { s.Reason, s.Message = "NetworkNotReady", err.Error() })
		if !sleep(ctx, backoff) {
			return ctx.Err()
		}
	}
}

func (p *pod) add(ctx context.Context) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	return p.node.network.add(ctx, p.object, p.sandbox)
}

// makeSandbox makes a network namespace and gives it its name in the node.
func makeSandbox(sandbox string) (*os.File, error) {
	netns, err := netspace.New()
	if err != nil {
		return nil, err
	}
	path := netnsDir + "/" + netnsName(sandbox)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", netns.Fd()), path, "", unix.MS_BIND, "")
	}
	if err == nil {
		err = fabric.Prepare(netns, false)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make sandbox %s: %w", path, err), netns.Close(), removeSandbox(sandbox))
	}
	return netns, nil
}

func removeSandbox(sandbox string) error {
	path := netnsDir + "/" + netnsName(sandbox)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// detach calls DEL until it succeeds and removes the sandbox. It gives up only when
// the node ends.
func (p *pod) detach(ctx context.Context) {
	for backoff := minRetry; ; backoff = min(2*backoff, maxRetry) {
		err := p.del(ctx)
		if err == nil {
			break
		}
		p.set(func(s *PodState) { s.Reason, s.Message = "FailedKillPodSandBox", err.Error() })
		if !sleep(p.node.ctx, backoff) {
			return
		}
	}
	err := errors.Join(p.netns.Close(), removeSandbox(p.sandbox))
	p.sandbox, p.netns = "", nil
	p.set(func(s *PodState) {
		s.Sandbox, s.Netns = "", ""
		if err != nil {
			s.Reason, s.Message = "FailedKillPodSandBox", err.Error()
		}
	})
}

func (p *pod) del(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	return p.node.network.del(ctx, p.object, p.sandbox)
}

// runContainers runs the pod's containers until they have all ended for good, and
// returns the phase that this makes, or until ctx ends.
func (p *pod) runContainers(ctx context.Context) corev1.PodPhase {
	policy := p.object.Spec.RestartPolicy
	var background sync.WaitGroup
	defer background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // what still runs beside containers that have all ended
	for i := range p.object.Spec.InitContainers {
		c := &p.object.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			background.Go(func() { p.runContainer(ctx, c, corev1.RestartPolicyAlways) })
			continue
		}
		again := policy
		if again != corev1.RestartPolicyNever {
			again = corev1.RestartPolicyOnFailure
		}
		if !p.runContainer(ctx, c, again) {
			return corev1.PodFailed
		}
	}
	server, ok := p.serve(ctx)
	if !ok {
		return corev1.PodFailed
	}
	if server != nil {
		defer server.Close()
	}
	p.set(func(s *PodState) { s.Phase, s.Reason, s.Message, s.Started = corev1.PodRunning, "", "", time.Now() })
	results := make(chan bool)
	running := 0
	for i := range p.object.Spec.Containers {
		if c := &p.object.Spec.Containers[i]; !builtIn(c) {
			running++
			background.Go(func() {
				ok := p.runContainer(ctx, c, policy)
				select {
				case results <- ok:
				case <-ctx.Done():
				}
			})
		}
	}
	phase := corev1.PodSucceeded
	for ; running > 0; running-- {
		select {
		case ok := <-results:
			if !ok {
				phase = corev1.PodFailed
			}
		case <-ctx.Done():
			return phase
		}
	}
	if server != nil {
		<-ctx.Done() // the built-in server never ends by itself
	}
	return phase
}

// serve starts the built-in server for the containers that have no command,
// trying again while its ports are taken. It is nil if there is no such container.
func (p *pod) serve(ctx context.Context) (*probe.Server, bool) {
	var ports []probe.Port
	found := false
	for i := range p.object.Spec.Containers {
		c := &p.object.Spec.Containers[i]
		if !builtIn(c) {
			continue
		}
		found = true
		for _, port := range c.Ports {
			q := probe.Port{Protocol: string(port.Protocol), Number: uint16(port.ContainerPort)}
			if q.Protocol == "" {
				q.Protocol = string(corev1.ProtocolTCP)
			}
			if q.Protocol == string(corev1.ProtocolSCTP) && probe.HasSCTP() != nil || slices.Contains(ports, q) {
				continue
			}
			ports = append(ports, q)
		}
	}
	if !found {
		return nil, true
	}
	for backoff := minRestart; ; backoff = min(2*backoff, maxRestart) {
		server, err := probe.Serve(p.netns, p.object.Namespace+"/"+p.object.Name, ports)
		if err == nil {
			now := time.Now()
			p.set(func(s *PodState) {
				for i := range s.Containers {
					if c := &s.Containers[i]; !c.Init && slices.ContainsFunc(p.object.Spec.Containers, func(o corev1.Container) bool {
						return o.Name == c.Name && builtIn(&o)
					}) {
						c.Running, c.Started = true, now
					}
				}
			})
			return server, true
		}
		p.set(func(s *PodState) { s.Reason, s.Message = "ServerFailed", err.Error() })
		if !sleep(ctx, backoff) {
			return nil, false
		}
	}
}

// set changes the state and tells the node.
func (p *pod) set(change func(*PodState)) {
	p.mu.Lock()
	change(&p.state)
	p.mu.Unlock()
	p.node.changed()
}

// update changes the state of one container; the pod is ready while all of them run.
func (p *pod) update(name string, change func(*ContainerState)) {
	p.set(func(s *PodState) {
		for i := range s.Containers {
			if s.Containers[i].Name == name {
				change(&s.Containers[i])
			}
		}
	})
}

// snapshot is the state now.
func (p *pod) snapshot() PodState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.state
	s.IPs, s.Containers = slices.Clone(s.IPs), slices.Clone(s.Containers)
	s.Ready = s.Phase == corev1.PodRunning
	for _, c := range s.Containers {
		s.Ready = s.Ready && (c.Init || c.Running && c.Failing == "")
	}
	return s
}

func (p *pod) addresses() []netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.state.IPs)
}
