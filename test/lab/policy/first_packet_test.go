package policy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
	"github.com/fairlead-sdn/fairlead/test/lab/wire"
)

// Servers that the starters send to, and one that sends to them without being asked.
var firstScene = namespace("first", "") + namespace("first-free", "") +
	pod("first", "server1", "node-1", "app: server", "80/UDP") +
	pod("first", "server2", "node-2", "app: server", "80/UDP") +
	pod("first", "flood", "node-1", "app: flood", "80/UDP") + `
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: first}
spec: {podSelector: {}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends, namespace: first}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}], ports: [{protocol: UDP, port: 80}]}]
`

// starter is a pod that sends as soon as its ADD has returned.
type starter struct {
	key    datastore.Key
	node   string
	friend bool
	// awaited: the servers hear it sooner or later.
	awaited bool
	box     *labtest.Sandbox
	ns      *os.File
	tap     *wire.Tap
	addrs   []netip.Addr
	added   time.Duration
	replied time.Time
	// sent is when the very first packet to the server of a node was sent.
	sent map[string]time.Time
	// first is in its very first packet to the server of a node, later in those behind it.
	first, later map[string]wire.Token
}

// P1: a hundred pods start at once, and each sends at once. Nothing forbidden may ever pass.
// The times are the machine's too: one of some attempts has to meet them, and if others used
// half of the CPUs before the last, they may be three times as long.
func TestScenarioP1(t *testing.T) {
	const attempts = 3
	c := newCluster(t)
	members := c.scene(firstScene)
	p := &premiere{cluster: c, servers: map[string]*member{"node-1": members["first/server1"], "node-2": members["first/server2"]}, taps: map[string]*wire.Tap{}}
	for node, s := range p.servers {
		p.taps[node] = wire.Listen(t, s.ns, s.key.String())
	}
	flooded := p.flood(members["first/flood"])
	var missed []string
	for attempt := range attempts {
		grace := time.Duration(1)
		got := p.attempt(attempt, flooded)
		if attempt == attempts-1 && got.foreign {
			grace = 3
		}
		if missed = got.missed(grace); len(missed) == 0 {
			return
		}
		t.Logf("attempt %d: %s", attempt+1, strings.Join(missed, "; "))
	}
	t.Errorf("%d attempts missed, the last one: %s", attempts, strings.Join(missed, "; "))
}

// premiereTimes are those of an attempt.
type premiereTimes struct {
	// with and without policies are what ADD took.
	with, without samples
	// same node and across nodes: what became of the friends' first packets.
	same, across firsts
	// foreign: others kept half of the CPUs busy before.
	foreign bool
}

// missed are the times that are too long, where limits are so many times as long.
func (p premiereTimes) missed(grace time.Duration) (missed []string) {
	if more, limit := p.with.quantile(0.99)-p.without.quantile(0.99), grace*200*time.Millisecond; more > limit {
		missed = append(missed, fmt.Sprintf("policies add %s to the p99 of ADD, want %s at most", more, limit))
	}
	if at, limit := p.across.took.quantile(0.99), grace*100*time.Millisecond; at > limit {
		missed = append(missed, fmt.Sprintf("p99 across nodes is %s, want %s at most", at, limit))
	}
	return missed
}

// attempt starts pods in some rounds.
func (p *premiere) attempt(number int, flooded wire.Token) (out premiereTimes) {
	const pods, rounds, window = 100, 4, 300 * time.Millisecond
	t := p.t
	before := labtest.Busy(t, window)
	for round := range rounds {
		name := fmt.Sprintf("%d-%d", number, round)
		// What ADD takes by itself: the same where no policy selects the pods.
		free := p.start("first-free", "free"+name, pods)
		if !slices.ContainsFunc(free, func(s *starter) bool { return s.tap.Got(flooded) > 0 }) {
			t.Error("the flood reaches nobody where it may: the test tests nothing")
		}
		p.end(free)
		all := p.start("first", "guarded"+name, pods)
		for _, s := range all {
			if n := s.tap.Got(flooded); n > 0 {
				t.Errorf("%d forbidden packets reached %s (%s), which nobody may send to", n, s.key, s.addrs)
			}
			for node, tap := range p.taps {
				if !s.friend && tap.Got(s.first[node])+tap.Got(s.later[node]) > 0 {
					t.Errorf("a forbidden packet of %s arrived on %s", s.key, node)
				}
			}
		}
		p.latencies(all, true, &out.same)
		p.latencies(all, false, &out.across)
		out.with, out.without = append(out.with, added(all)...), append(out.without, added(free)...)
		p.end(all)
	}
	out.foreign = before >= 0.5
	t.Logf("ADD, %d at once: %s; without policies %s", pods, out.with, out.without)
	t.Logf("the first packet: same node %s; across nodes %s", out.same, out.across)
	t.Logf("CPUs in use before: %.0f %%", 100*before)
	return out
}

// firsts tell how long first packets took to pass, how many of them were lost, and how long
// after ADD's reply they were sent, which is the test's own affair.
type firsts struct {
	took, sent samples
	lost       int
}

func (f firsts) String() string {
	return fmt.Sprintf("%s, %d lost; sent p50 %s, p99 %s after the reply", f.took, f.lost, f.sent.quantile(0.5), f.sent.quantile(0.99))
}

type samples []time.Duration

// quantile is the smallest sample that a share q of all does not exceed.
func (s samples) quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)].Round(10 * time.Microsecond)
}

func (s samples) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, most %s (%d)", s.quantile(0.5), s.quantile(0.99), s.quantile(1), len(s))
}

func added(all []*starter) (out samples) {
	for _, s := range all {
		out = append(out, s.added)
	}
	return out
}

// premiere starts pods and sees what their first packets do.
type premiere struct {
	*cluster
	servers map[string]*member
	taps    map[string]*wire.Tap
	mint    wire.Mint
}

// floodFlows is how many flows the flood has to each address. It comes back to one after
// 2.5 s; the kernel remembers it for 30 s.
const floodFlows = 64

// flood sends to all addresses of the blocks of the pods' nodes, again and again, until the
// test ends. Every second time is by another flow, and each flow comes back before it is
// forgotten: nobody may inherit it.
func (p *premiere) flood(from *member) wire.Token {
	p.t.Helper()
	k, src := p.mint.Next(), from.addr(true)
	s := from.sender(p.t)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	p.t.Cleanup(func() { stop(); wg.Wait() })
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for sweep := uint16(0); ctx.Err() == nil; sweep++ {
			list, err := p.Store.List(ctx, datastore.KindIPBlock)
			if err != nil {
				return // the test ends
			}
			for _, o := range list.Items {
				b, ok := o.(*v1alpha1.IPBlock)
				if !ok {
					continue
				}
				cidr, err := netip.ParsePrefix(b.Spec.CIDR)
				if err != nil || !cidr.Addr().Is4() || b.Spec.Subnet != "default" || p.servers[b.Spec.Node] == nil {
					continue
				}
				for a := cidr.Addr(); cidr.Contains(a); a = a.Next() {
					packet := wire.IP(src, a, wire.ProtoUDP, wire.UDP(src, a, 10000+sweep/2%floodFlows, 80, []byte(k)))
					_ = s.TrySend(wire.Frame(claims.GatewayMAC, s.mac, packet))
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return k
}

// start makes n pods, half of them friends, half of either on each node, attaches them
// all at once, and lets each send for a while.
func (p *premiere) start(namespace, prefix string, n int) []*starter {
	p.t.Helper()
	runtimes := map[string]*labtest.Runtime{"node-1": p.Runtime("node-1"), "node-2": p.Runtime("node-2")}
	all, newest := make([]*starter, n), ""
	for i := range all {
		s := &starter{
			key:    datastore.Key{Namespace: namespace, Name: fmt.Sprintf("%s-%d", prefix, i)},
			node:   fmt.Sprintf("node-%d", 1+i%2),
			friend: i/2%2 == 0, awaited: i/2%2 == 0 && namespace == "first",
			sent: map[string]time.Time{}, first: map[string]wire.Token{}, later: map[string]wire.Token{},
		}
		app := map[bool]string{true: "friend", false: "stranger"}[s.friend]
		o, err := p.Store.Create(p.t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.key.Name, Labels: map[string]string{"app": app}},
			// No node of the lab runs it: it is attached by this test.
			Spec: corev1.PodSpec{NodeName: "elsewhere", Containers: []corev1.Container{{Name: "c", Image: "any"}}},
		})
		if err != nil {
			p.t.Fatal(err)
		}
		newest = o.GetResourceVersion()
		s.box = runtimes[s.node].Sandbox(p.t, s.key.Name)
		s.box.Pod, s.box.UID = s.key.String(), string(o.GetUID())
		if err := s.box.In(func() (err error) {
			s.ns, err = netspace.Open("/proc/thread-self/ns/net")
			return err
		}); err != nil {
			p.t.Fatal(err)
		}
		s.tap = wire.Listen(p.t, s.ns, s.key.String())
		for node := range p.servers {
			s.first[node], s.later[node] = p.mint.Next(), p.mint.Next()
		}
		all[i] = s
	}
	for node := range runtimes {
		p.sees(node, newest)
	}
	group, ctx := errgroup.WithContext(p.t.Context())
	for _, s := range all {
		group.Go(func() error { return p.perform(ctx, s) })
	}
	if err := group.Wait(); err != nil {
		p.t.Fatal(err)
	}
	return all
}

// sees waits until a node's agent has seen a pod: whoever starts a pod has, too.
func (p *premiere) sees(node, resourceVersion string) {
	p.t.Helper()
	want, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	labtest.Eventually(p.t, labtest.Patience, func() error {
		s, err := labtest.TryAdminGet[admin.Status](p.Lab, node, "/v1/status")
		if err != nil {
			return err
		}
		if at, err := strconv.ParseUint(s.Position[world.KindPod], 10, 64); err != nil || at < want {
			return fmt.Errorf("%s has seen pods up to %q, not %d", node, s.Position[world.KindPod], want)
		}
		return nil
	})
}

// perform attaches a pod and sends.
func (p *premiere) perform(ctx context.Context, s *starter) error {
	began := time.Now()
	answer, err := s.box.Add(ctx)
	if err != nil {
		return fmt.Errorf("ADD of %s: %w", s.key, err)
	}
	s.replied, s.addrs = time.Now(), answer.Addresses
	s.added = s.replied.Sub(began)
	conns := map[string]net.Conn{}
	err = netspace.Do(s.ns, func() error {
		for node, server := range p.servers {
			conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(server.addr(true), 80)))
			if err != nil {
				return err
			}
			conns[node] = conn
			s.sent[node] = time.Now()
			if _, err := conn.Write([]byte(s.first[node])); err != nil {
				return err
			}
		}
		return nil
	})
	p.keepSending(s, conns)
	for _, conn := range conns {
		err = errors.Join(err, conn.Close())
	}
	return err
}

// keepSending sends for 300 ms what must not arrive, and what must, until it has. The
// senders of a hundred pods take the time of the agents: no more of it than is needed to tell
// a tenth of the limit, and the same where no policy selects the pods.
func (p *premiere) keepSending(s *starter, conns map[string]net.Conn) {
	const pause, forbidden, allowed = 10 * time.Millisecond, 30, 500
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for n := 0; ; n++ {
		sent := false
		for node, conn := range conns {
			switch tap := p.taps[node]; {
			case !s.friend && n < forbidden, s.friend && n == 0:
			case s.awaited && n < allowed && tap.Got(s.first[node])+tap.Got(s.later[node]) == 0:
			default:
				continue
			}
			// An error is that of an earlier packet, which nobody took.
			_, _ = conn.Write([]byte(s.later[node]))
			sent = true
		}
		if !sent {
			return
		}
		<-tick.C
	}
}

// latencies adds how long the friends' first packets took to the server of their own node, or
// of the other: from when they were sent, or if the very first was lost, from ADD's reply to
// the arrival of the first that was not. Within a node none may be lost.
func (p *premiere) latencies(all []*starter, sameNode bool, out *firsts) {
	p.t.Helper()
	for _, s := range all {
		for node, tap := range p.taps {
			if !s.friend || (s.node == node) != sameNode {
				continue
			}
			from := s.sent[node]
			at, ok := tap.First(s.first[node])
			if sameNode && !ok {
				p.t.Errorf("the first packet of %s, which is allowed, did not arrive on the same node", s.key)
			}
			if !ok {
				out.lost++
				from = s.replied
				at, ok = tap.First(s.later[node])
			}
			if !ok {
				p.t.Errorf("nothing of %s arrived on %s, which is allowed", s.key, node)
				continue
			}
			out.took, out.sent = append(out.took, at.Sub(from)), append(out.sent, s.sent[node].Sub(s.replied))
		}
	}
}

// end detaches and removes the pods.
func (p *premiere) end(all []*starter) {
	p.t.Helper()
	group, ctx := errgroup.WithContext(p.t.Context())
	for _, s := range all {
		group.Go(func() error {
			return errors.Join(s.box.Del(ctx), s.box.Remove(), s.ns.Close(), p.Store.Delete(ctx, datastore.KindPod, s.key, datastore.Preconditions{}))
		})
	}
	if err := group.Wait(); err != nil {
		p.t.Error(err)
	}
}
