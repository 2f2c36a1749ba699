package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

const (
	crowdFlows = 1000
	// Every flow sends that often; a packet that a policy denies is sent more often.
	crowdPeriod = 400 * time.Millisecond
	crowdTick   = 4 * time.Millisecond
	// crowdBuffer bytes of a socket hold what comes while this program does not run.
	crowdBuffer   = 8 << 20
	allowedPort   = 7100
	forbiddenPort = 7101
)

// crowdManifest lets one port of b be reached.
const crowdManifest = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: crowd, namespace: ` + faultsNamespace + `}
spec:
  podSelector: {matchLabels: {app: b}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 7100, protocol: UDP}]}]
`

// crowd is many UDP flows from one pod to another, each answered, and packets to a port that
// a policy denies.
type crowd struct {
	flows, denied []net.Conn
	closers       []io.Closer
	running       sync.WaitGroup
	stop          chan struct{}

	sent, answered, tried, passed atomic.Int64
}

// startCrowd makes the ends in the namespaces of pods, and returns when every flow has been
// answered.
func startCrowd(ctx context.Context, from, to netip.Addr, flows int) (c *crowd, err error) {
	c = &crowd{stop: make(chan struct{})}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.listen(ctx, to); err != nil {
		return nil, fmt.Errorf("serve in pod %s: %w", to, err)
	}
	ns, err := podNetwork(from)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := netspace.Do(ns, func() error { return c.dial(ctx, to, flows) }); err != nil {
		return nil, fmt.Errorf("connect in pod %s: %w", from, err)
	}
	for _, conn := range c.flows {
		c.running.Go(func() { c.read(conn) })
	}
	c.running.Go(c.send)
	return c, poll(ctx, 50*time.Millisecond, func() error {
		if n := c.answered.Load(); n < int64(flows) {
			return fmt.Errorf("%d answers came, of %d flows", n, flows)
		}
		return nil
	})
}

// listen serves both ports. The socket of the denied one sees whatever passes.
func (c *crowd) listen(ctx context.Context, at netip.Addr) error {
	ns, err := podNetwork(at)
	if err != nil {
		return err
	}
	defer ns.Close()
	for port, serve := range map[uint16]func(net.PacketConn){
		allowedPort: echoPackets, forbiddenPort: func(p net.PacketConn) { countPackets(p, &c.passed) },
	} {
		p, err := listenPackets(ctx, ns, netip.AddrPortFrom(at, port))
		if err != nil {
			return err
		}
		c.closers = append(c.closers, p)
		c.running.Go(func() { serve(p) })
	}
	return nil
}

func (c *crowd) dial(ctx context.Context, to netip.Addr, flows int) error {
	for i := range flows + 1 {
		port := uint16(allowedPort)
		if i == flows {
			port = forbiddenPort
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, "udp", netip.AddrPortFrom(to, port).String())
		if err != nil {
			return err
		}
		c.closers = append(c.closers, conn)
		if i == flows {
			c.denied = append(c.denied, conn)
		} else {
			c.flows = append(c.flows, conn)
		}
	}
	return nil
}

func (c *crowd) send() {
	tick := time.NewTicker(crowdTick)
	defer tick.Stop()
	next, last := 0, time.Now()
	due := 0.0
	for {
		select {
		case now := <-tick.C:
			// As many as the time since the last tick asks for: ticks are lost on a busy machine.
			due += float64(len(c.flows)) * float64(now.Sub(last)) / float64(crowdPeriod)
			last = now
		case <-c.stop:
			return
		}
		for ; due >= 1; due-- {
			if _, err := c.flows[next].Write([]byte("question")); err == nil {
				c.sent.Add(1)
			}
			next = (next + 1) % len(c.flows)
		}
		for _, d := range c.denied {
			if _, err := d.Write([]byte("forbidden")); err == nil {
				c.tried.Add(1)
			}
		}
	}
}

func (c *crowd) read(conn net.Conn) {
	var buf [16]byte
	for {
		_, err := conn.Read(buf[:])
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil:
			c.answered.Add(1)
		}
	}
}

// lost stops sending, waits for what is on its way, and returns how many packets got no
// answer and how many forbidden ones passed.
func (c *crowd) lost(ctx context.Context) (sent, lost, tried, passed int64) {
	close(c.stop)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_ = poll(ctx, 50*time.Millisecond, func() error { // What has not come by then is lost.
		if c.answered.Load() < c.sent.Load() {
			return errors.New("some are on their way")
		}
		return nil
	})
	sent, tried = c.sent.Load(), c.tried.Load()
	return sent, sent - c.answered.Load(), tried, c.passed.Load()
}

// close ends both ends.
func (c *crowd) close() {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	for _, x := range c.closers {
		_ = x.Close() // UDP has nothing to say here.
	}
	c.running.Wait()
}

// listenPackets listens in a network namespace, with room for a burst, and the kernel's time
// on each packet.
func listenPackets(ctx context.Context, ns *os.File, at netip.AddrPort) (*net.UDPConn, error) {
	l := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var set error
		err := raw.Control(func(fd uintptr) {
			set = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, crowdBuffer),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
		})
		return errors.Join(err, set)
	}}
	var p net.PacketConn
	err := netspace.Do(ns, func() (err error) {
		p, err = l.ListenPacket(ctx, "udp", at.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	return p.(*net.UDPConn), nil // What "udp" gives.
}

// countPackets counts what arrives.
func countPackets(p net.PacketConn, n *atomic.Int64) {
	var buf [64]byte
	for {
		_, _, err := p.ReadFrom(buf[:])
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil:
			n.Add(1)
		}
	}
}

// agentsDie: agents are killed and restarted while a thousand flows run (F6).
func (f *faulty) agentsDie(ctx context.Context) error {
	return f.underFlows(ctx, crowdFlows, func(ctx context.Context) error {
		pids := map[string]int{}
		for i := 1; i <= f.Nodes; i++ {
			pid, err := f.agent(nodeName(i))
			if err != nil {
				return err
			}
			pids[nodeName(i)] = pid
		}
		for node, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				return fmt.Errorf("kill the agent of %s: %w", node, err)
			}
		}
		for node, pid := range pids {
			if err := f.agentIsBack(ctx, node, pid); err != nil {
				return err
			}
		}
		f.check("kill -9 of every agent: they are back and have changed nothing in the kernel", f.noChanges(ctx))
		if err := f.restartAgents(ctx); err != nil {
			return err
		}
		f.check("rolling restart of the agents: they have changed nothing in the kernel", f.noChanges(ctx))
		return nil
	})
}

// noChanges asks the agents how much they have changed in the kernel since they started.
func (f *faulty) noChanges(ctx context.Context) error {
	var errs []error
	for i := 1; i <= f.Nodes; i++ {
		text, err := f.metrics(ctx, nodeName(i))
		if err != nil {
			return err
		}
		if n := metric(text, "fairlead_plane_changes_total"); n != 0 {
			errs = append(errs, fmt.Errorf("the agent of %s has made %.0f changes", nodeName(i), n))
		}
	}
	return errors.Join(errs...)
}

// underFlows does something while flows run that must not notice.
func (f *faulty) underFlows(ctx context.Context, flows int, do func(context.Context) error) error {
	if err := f.apply(ctx, crowdManifest); err != nil {
		return err
	}
	c, err := startCrowd(ctx, f.a, f.b, flows)
	if err != nil {
		return err
	}
	defer c.close()
	start := time.Now()
	if err := do(ctx); err != nil {
		return err
	}
	sent, lost, tried, passed := c.lost(ctx)
	if lost != 0 || passed != 0 || tried == 0 {
		err = errors.New("want none")
	}
	f.check(fmt.Sprintf("%d flows for %.0f s: %d of %d packets lost, %d of %d forbidden ones passed", flows, time.Since(start).Seconds(), lost, sent, passed, tried), err)
	_, err = f.kubectl(ctx, nil, "-n", faultsNamespace, "delete", "networkpolicy", "crowd")
	return err
}
