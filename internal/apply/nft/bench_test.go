package nft_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/decide"
	n "github.com/fairlead-sdn/fairlead/internal/nftables"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// nodeOf is the table of a node with so many ports and peers: a verdict map by
// interface, two chains per port, anti-spoofing and one large interval set.
func nodeOf(ports, peers int) n.Table {
	t := n.Table{Name: "fairlead", Sets: []n.Set{
		{Name: "from-port", Key: []n.Type{n.TypeIfName}, Data: []n.Type{n.TypeVerdict}},
		{Name: "spoof4", Key: []n.Type{n.TypeIfName, n.TypeIPv4Addr}},
		{Name: "peers4", Key: []n.Type{n.TypeIPv4Addr}, Interval: true},
	}}
	t.Chains = []n.Chain{
		{Name: "dispatch", Base: &n.Base{Hook: n.HookForward}, Rules: []n.Rule{{Statements: []n.Statement{n.VMap{Key: n.Select(n.MetaIIFName), Map: "from-port"}}, Comment: "dispatch"}}},
		{Name: "spoofing", Base: &n.Base{Hook: n.HookPrerouting, Priority: -310}, Rules: []n.Rule{{Statements: []n.Statement{n.Lookup{Key: n.Select(n.MetaIIFName, n.IPSaddr), Op: n.Neq, Set: "spoof4"}, verdict(n.Drop)}}}},
	}
	ip := func(i int) n.Value {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], 10<<24|uint32(i)*2)
		return n.Addr(netip.AddrFrom4(b))
	}
	for i := range ports {
		name, chain := n.IfName(fmt.Sprintf("flp%d", i)), fmt.Sprintf("from-%d", i)
		t.Sets[0].Elements = append(t.Sets[0].Elements, n.Element{Key: key(name), Verdict: verdict(n.Jump, chain)})
		t.Sets[1].Elements = append(t.Sets[1].Elements, n.Element{Key: key(name, ip(i))})
		c := n.Chain{Name: chain}
		for p := range uint16(10) {
			c.Rules = append(c.Rules, n.Rule{Statements: []n.Statement{n.Lookup{Key: n.Select(n.IPDaddr), Set: "peers4"}, n.Is(n.TCPDport, n.Port(p+1)), n.Counter{}, verdict(n.Return)}, Comment: "policy"})
		}
		t.Chains = append(t.Chains, c)
	}
	for i := range peers {
		t.Sets[2].Elements = append(t.Sets[2].Elements, n.Element{Key: key(ip(i))})
	}
	return t
}

// BenchmarkApply measures an agent's work on a node of 200 ports and 50,000 peers:
// nothing changed, one port more or less, one peer more or less.
func BenchmarkApply(b *testing.B) {
	const ports, peers = 200, 50000
	full, port, peer := nodeOf(ports, peers), nodeOf(ports-1, peers), nodeOf(ports, peers-1)
	for _, bench := range []struct {
		name string
		a, b n.Table
	}{{"unchanged", full, full}, {"port", full, port}, {"peer", full, peer}} {
		b.Run(bench.name, func(b *testing.B) {
			d := open(b, nft.Config{NetNS: testNS(b)})
			apply(b, d, bench.a)
			for i := 0; b.Loop(); i++ {
				table := bench.a
				if i%2 == 0 {
					table = bench.b
				}
				apply(b, d, table)
			}
		})
	}
}

// BenchmarkApplyPolicies brings the rendered rules of a node of 100 pods, in a cluster
// of 10,000 pods and 1,000 policies, into the kernel: all of them, nothing new, and
// after a pod here, a pod elsewhere or a policy has changed.
func BenchmarkApplyPolicies(b *testing.B) {
	const node = "node0050"
	snap := worldtest.Local(worldtest.LargePolicies(), node)
	compiler := decide.New(decide.Config{Node: node})
	full, state, _ := compiler.Compile(nil, snap)
	var policy *world.NetworkPolicy // one that selects a pod of the node
	for i := 0; policy == nil; i++ {
		p := worldtest.LargePolicy(i)
		if n, _, _ := compiler.Compile(state, world.NewStore(snap).Apply(world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: p.Namespace, Name: p.Name}})); !full.Equal(n) {
			policy = p
		}
	}
	var pod *world.Pod
	for p := range snap.Pods.Values() {
		pod = p
	}
	for _, bench := range []struct {
		name   string
		change []world.Change
	}{
		{"unchanged", nil},
		{"port", nil},
		{"pod", []world.Change{{Kind: world.KindPod, Key: world.Key{Namespace: pod.Namespace, Name: pod.Name}}}},
		{"policy", []world.Change{{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: policy.Namespace, Name: policy.Name}}}},
	} {
		other, _, _ := compiler.Compile(state, world.NewStore(snap).Apply(bench.change...))
		if bench.name == "port" {
			other.Ports = other.Ports[1:]
		}
		b.Run(bench.name, func(b *testing.B) {
			d := open(b, nft.Config{NetNS: testNS(b)})
			table, s := rendernft.RenderAfter(nil, full, rendernft.Options{})
			start := time.Now()
			apply(b, d, table)
			scratch := time.Since(start)
			elements := 0
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				if table, s = rendernft.RenderAfter(s, full, rendernft.Options{}); i%2 == 0 {
					table, s = rendernft.RenderAfter(s, other, rendernft.Options{})
				}
				b.StartTimer()
				c := apply(b, d, table)
				elements += c.ElementsAdded + c.ElementsRemoved
			}
			b.ReportMetric(float64(elements)/float64(b.N), "elements/op")
			b.ReportMetric(scratch.Seconds()*1e3, "scratch-ms")
		})
	}
}
