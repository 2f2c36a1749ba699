package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/test/lab/wire"
)

const (
	startNamespace = "start"
	// freeNamespace is without policies: what ADD takes by itself.
	freeNamespace = "start-free"
	startPods     = 100
	// startBound is how long the first packets of a pod may be lost.
	startBound = 100 * time.Millisecond
	// A new pod is listened for at intruderPort, and sends that often, that long.
	intruderPort = 7102
	sendFast     = time.Millisecond
	sendFastFor  = 200 * time.Millisecond
	sendSlow     = 50 * time.Millisecond
	sendFor      = 5 * time.Second
	sweepPeriod  = 250 * time.Millisecond
)

const startManifest = `apiVersion: v1
kind: Namespace
metadata: {name: ` + freeNamespace + `}
---
apiVersion: v1
kind: Namespace
metadata: {name: ` + startNamespace + `}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: ` + startNamespace + `}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: clients, namespace: ` + startNamespace + `}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {app: server}}}], ports: [{port: 7100, protocol: UDP}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: servers, namespace: ` + startNamespace + `}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 7100, protocol: UDP}]}]
`

// greeting is what a new pod sends: who it is, the how many-th packet this is, when it has
// sent the first and this one, and how many packets it has got that it should not have.
type greeting struct {
	Pod, Number uint32
	First, Sent int64
	Intruders   uint32
}

// sendGreetings is a new pod's program: it sends from its first millisecond on.
func sendGreetings(ctx context.Context, pod int, to []string) error {
	var intruders atomic.Int64
	var listen net.ListenConfig
	in, err := listen.ListenPacket(ctx, "udp", fmt.Sprintf(":%d", intruderPort))
	if err != nil {
		return err
	}
	go countPackets(in, &intruders) // It ends with the process.
	var out []net.Conn
	for _, address := range to {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "udp", address)
		if err != nil {
			return err
		}
		out = append(out, conn)
	}
	first := time.Now()
	for n := uint32(0); ctx.Err() == nil; n++ {
		for _, conn := range out {
			g := greeting{uint32(pod), n, first.UnixNano(), time.Now().UnixNano(), uint32(intruders.Load())} // #nosec G115 -- few
			message, err := binary.Append(nil, binary.BigEndian, g)
			if err != nil {
				return err
			}
			_, _ = conn.Write(message) // That some are refused is what is tried.
		}
		pause := sendFast
		switch age := time.Since(first); {
		case age > sendFor:
			pause = time.Second
		case age > sendFastFor:
			pause = sendSlow
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

// arrival is the first packet of a pod that came to a server. What it has taken counts from
// itself if none was lost before it, else from the very first: how long a busy machine lets a
// process wait before it sends is not the network's.
type arrival struct {
	number uint32
	after  time.Duration
}

func (g greeting) arrival(at time.Time) arrival {
	since := g.First
	if g.Number == 0 {
		since = g.Sent
	}
	return arrival{g.Number, at.Sub(time.Unix(0, since))}
}

// starting watches pods start.
type starting struct {
	*faulty
	// image has the libraries that this program may need.
	image   string
	servers []netip.Addr
	running sync.WaitGroup

	mu        sync.Mutex
	first     map[int]map[uint32]arrival // by server and pod
	intruders map[uint32]uint32
	passed    atomic.Int64 // to the ports that are denied
	swept     atomic.Int64
}

// manyStart: a hundred pods start at once under a default deny and an allow, and send in
// their first millisecond (P1).
func (f *faulty) manyStart(ctx context.Context) (err error) {
	s := &starting{faulty: f, first: map[int]map[uint32]arrival{}, intruders: map[uint32]uint32{}}
	if s.image, err = f.agnhostName(ctx); err != nil {
		return err
	}
	defer func() {
		_, e := f.kubectl(context.WithoutCancel(ctx), nil, "delete", "namespace", startNamespace, freeNamespace, "--ignore-not-found", "--timeout=180s")
		err = errors.Join(err, e)
	}()
	if err := f.apply(ctx, startManifest); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer s.running.Wait()
	defer stop()
	if err := s.serve(watching); err != nil {
		return err
	}
	free, err := s.start(ctx, freeNamespace)
	if err != nil {
		return err
	}
	// Their end is not to be measured.
	if _, err := f.kubectl(ctx, nil, "delete", "namespace", freeNamespace, "--timeout=180s"); err != nil {
		return err
	}
	guarded, err := s.start(ctx, startNamespace)
	if err != nil {
		return err
	}
	// Pods that became Ready last still send; what they tell of intruders comes with that.
	select {
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
	}
	s.judge()
	// What policies add to ADD is judged in the lab (test/lab/policy). Here two runs of a hundred
	// pods differ by more than that, policies or not: the kernel of all nodes makes links one at a
	// time, and whoever makes one waits for a CPU beside a hundred starting containers.
	fmt.Fprintf(s.w, "     ADD of %.0f pods: p50 about %.0f ms, p99 %.0f ms; of %.0f without policies %.0f and %.0f ms\n",
		guarded.count, 1000*guarded.estimate(0.5), 1000*guarded.estimate(0.99), free.count, 1000*free.estimate(0.5), 1000*free.estimate(0.99))
	return nil
}

// serve starts a server on every node, and whoever sends to pods that want nothing.
func (s *starting) serve(ctx context.Context) error {
	a, err := s.api()
	if err != nil {
		return err
	}
	for i := 1; i <= s.Nodes; i++ {
		err := poll(ctx, 500*time.Millisecond, func() error {
			return s.createPod(ctx, a, startNamespace, fmt.Sprintf("server%d", i), nodeName(i), "server", nil)
		})
		if err != nil {
			return err
		}
	}
	if _, err := s.kubectl(ctx, nil, "-n", startNamespace, "wait", "pod", "--all", "--for=condition=Ready", "--timeout=60s"); err != nil {
		return err
	}
	for i := 1; i <= s.Nodes; i++ {
		ip, err := s.kubectl(ctx, nil, "-n", startNamespace, "get", "pod", fmt.Sprintf("server%d", i), "-o", "jsonpath={.status.podIP}")
		if err != nil {
			return err
		}
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return err
		}
		s.servers = append(s.servers, addr)
		if err := s.serveOne(ctx, i-1, addr); err != nil {
			return err
		}
	}
	outside, err := s.find("outside")
	if err != nil {
		return err
	}
	ns, err := netspace.Open(fmt.Sprintf("/proc/%d/ns/net", outside.Pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	return s.deny(ctx, ns, outsideAddress())
}

// serveOne receives in a server's pod, and sends from it to every address of every block.
func (s *starting) serveOne(ctx context.Context, server int, addr netip.Addr) error {
	ns, err := podNetwork(addr)
	if err != nil {
		return err
	}
	defer ns.Close()
	p, err := listenPackets(ctx, ns, netip.AddrPortFrom(addr, allowedPort))
	if err != nil {
		return err
	}
	s.first[server] = map[uint32]arrival{}
	s.running.Go(func() { <-ctx.Done(); _ = p.Close() })
	s.running.Go(func() { s.receive(server, p) })
	if err := s.deny(ctx, ns, addr); err != nil {
		return err
	}
	from, err := listenPackets(ctx, ns, netip.AddrPortFrom(addr, 0))
	if err != nil {
		return err
	}
	s.running.Go(func() {
		defer from.Close()
		s.sweep(ctx, from)
	})
	return nil
}

// deny listens where nothing may arrive.
func (s *starting) deny(ctx context.Context, ns *os.File, addr netip.Addr) error {
	p, err := listenPackets(ctx, ns, netip.AddrPortFrom(addr, forbiddenPort))
	if err != nil {
		return err
	}
	s.running.Go(func() { <-ctx.Done(); _ = p.Close() })
	s.running.Go(func() { countPackets(p, &s.passed) })
	return nil
}

func (s *starting) receive(server int, p *net.UDPConn) {
	buf, oob := make([]byte, 64), make([]byte, 64)
	for {
		n, k, _, _, err := p.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var g greeting
		if _, e := binary.Decode(buf[:n], binary.BigEndian, &g); err != nil || e != nil {
			continue
		}
		s.mu.Lock()
		if _, seen := s.first[server][g.Pod]; !seen {
			s.first[server][g.Pod] = g.arrival(wire.Stamp(oob[:k]))
		}
		s.intruders[g.Pod] = max(s.intruders[g.Pod], g.Intruders)
		s.mu.Unlock()
	}
}

// sweep sends to all addresses that new pods can get: the blocks grow while they start.
func (s *starting) sweep(ctx context.Context, from net.PacketConn) {
	tick := time.NewTicker(sweepPeriod)
	defer tick.Stop()
	var all []*net.UDPAddr
	for n := 0; ; n++ {
		if n%4 == 0 {
			if now, err := s.blockAddresses(ctx); err == nil {
				all = now
			}
		}
		for _, to := range all {
			if _, err := from.WriteTo([]byte("intruder"), to); err == nil {
				s.swept.Add(1)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// blockAddresses are those of all IPv4 blocks.
func (s *starting) blockAddresses(ctx context.Context) ([]*net.UDPAddr, error) {
	out, err := s.kubectl(ctx, nil, "get", "ipblocks", "-o", "jsonpath={.items[*].spec.cidr}")
	if err != nil {
		return nil, err
	}
	var all []*net.UDPAddr
	for text := range strings.FieldsSeq(out) {
		p, err := netip.ParsePrefix(text)
		if err != nil || !p.Addr().Is4() {
			continue
		}
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			if !slices.Contains(s.servers, a) {
				all = append(all, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, intruderPort)))
			}
		}
	}
	return all, nil
}

// start makes the pods, waits until they are Ready, and returns what their ADDs took.
func (s *starting) start(ctx context.Context, namespace string) (adds histogram, err error) {
	before, err := s.addTimes(ctx)
	if err != nil {
		return adds, err
	}
	began := time.Now()
	if err := s.createPods(ctx, namespace); err != nil {
		return adds, err
	}
	_, err = s.kubectl(ctx, nil, "-n", namespace, "wait", "pod", "--all", "--for=condition=Ready", "--timeout=180s")
	s.check(fmt.Sprintf("%d pods at once in %s: all Ready after %.1f s", startPods, namespace, time.Since(began).Seconds()), err)
	after, err := s.addTimes(ctx)
	return after.minus(before), err
}

// createPods makes the pods. Only those under policies send what the policies deny.
func (s *starting) createPods(ctx context.Context, namespace string) error {
	a, err := s.api()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(10)
	for i := range startPods {
		g.Go(func() error {
			same, other := s.servers[i%s.Nodes], s.servers[(i+1)%s.Nodes]
			to := []netip.AddrPort{netip.AddrPortFrom(same, allowedPort), netip.AddrPortFrom(other, allowedPort)}
			if namespace == startNamespace {
				to = append(to, netip.AddrPortFrom(same, forbiddenPort), netip.AddrPortFrom(other, forbiddenPort), netip.AddrPortFrom(outsideAddress(), forbiddenPort))
			}
			command := []string{filepath.Join("/harness", filepath.Base(self)), "greet", fmt.Sprint(i)}
			for _, at := range to {
				command = append(command, at.String())
			}
			return s.createPod(ctx, a, namespace, fmt.Sprintf("client%d", i), nodeName(i%s.Nodes+1), "client", command)
		})
	}
	return g.Wait()
}

// createPod makes one that does nothing, or runs a command of this program.
func (s *starting) createPod(ctx context.Context, a *api, namespace, name, node, app string, command []string) error {
	container := map[string]any{"name": "c", "image": "registry.k8s.io/pause:3.10", "imagePullPolicy": "Never"}
	spec := map[string]any{"nodeName": node, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "containers": []any{container}}
	if command != nil {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		container["image"], container["command"] = s.image, command
		container["volumeMounts"] = []any{map[string]any{"name": "harness", "mountPath": "/harness", "readOnly": true}}
		spec["volumes"] = []any{map[string]any{"name": "harness", "hostPath": map[string]any{"path": filepath.Dir(self)}}}
	}
	resp, err := a.do(ctx, http.MethodPost, "namespaces/"+namespace+"/pods", map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "labels": map[string]any{"app": app}}, "spec": spec,
	})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// judge tells what arrived.
func (s *starting) judge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var got error
	if n := s.passed.Load(); n > 0 {
		got = fmt.Errorf("%d passed", n)
	}
	s.check("no packet that a pod may not send has arrived, at a pod of its node, of another, or outside", got)
	got = nil
	for pod, n := range s.intruders {
		if n > 0 {
			got = errors.Join(got, fmt.Errorf("client%d got %d", pod, n))
		}
	}
	s.check(fmt.Sprintf("no packet that a pod may not get has arrived: %d were sent to all addresses", s.swept.Load()), got)
	for distance, name := range []string{"on the same node", "on another node"} {
		var after []time.Duration
		lost := uint32(0)
		for pod := range startPods {
			if a, ok := s.first[(pod+distance)%s.Nodes][uint32(pod)]; ok { // #nosec G115 -- few
				after = append(after, a.after)
				lost += a.number
			}
		}
		slices.Sort(after)
		if len(after) < startPods {
			s.check(name, fmt.Errorf("only %d of %d pods were heard of", len(after), startPods))
			continue
		}
		s.within(fmt.Sprintf("allowed packets to a pod %s: %d lost before the first that passes; the first passed p50 %d ms, p90 %d ms, p99",
			name, lost, after[len(after)/2].Milliseconds(), after[len(after)*9/10].Milliseconds()), after[len(after)*99/100], startBound, nil)
	}
}
