package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
	"github.com/fairlead-sdn/fairlead/test/agreement"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// overlapping is two or three policies for the pod "target" whose addresses and ports
// overlap. Each comes and goes by itself.
type overlapping struct {
	name     string
	policies []string
}

// overlaps are about the addresses of three pods, each of one address or of both
// families.
func overlaps(all []netip.Prefix, one, two, three []netip.Addr) []overlapping {
	hosts := func(addrs ...[]netip.Addr) []netip.Prefix {
		var out []netip.Prefix
		for _, a := range slices.Concat(addrs...) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
		return out
	}
	np := func(name, peers, first, last string) string {
		return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s, namespace: overlap}
spec: {podSelector: {matchLabels: {app: target}}, ingress: [{from: [%s], ports: [{port: %s, endPort: %s}, {protocol: UDP, port: %s}]}]}
`, name, peers, first, last, last)
	}
	blocks := func(prefixes []netip.Prefix, except []netip.Prefix) string {
		var out []string
		for _, p := range prefixes {
			var not []string
			for _, e := range except {
				if e.Addr().Is4() == p.Addr().Is4() {
					not = append(not, fmt.Sprintf("%q", e))
				}
			}
			out = append(out, fmt.Sprintf("{ipBlock: {cidr: %q, except: [%s]}}", p, strings.Join(not, ", ")))
		}
		return strings.Join(out, ", ")
	}
	cnp := func(name string, priority int, action string, prefixes []netip.Prefix, first, last int) string {
		var peers []string
		for _, p := range prefixes {
			peers = append(peers, fmt.Sprintf("%q", p))
		}
		return fmt.Sprintf(`
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: overlap-%s}
spec:
  tier: Admin
  priority: %d
  subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: overlap}}, podSelector: {matchLabels: {app: target}}}}
  egress: [{action: %s, to: [{networks: [%s]}], protocols: [{tcp: {destinationPort: {range: {start: %d, end: %d}}}}]}]
`, name, priority, action, strings.Join(peers, ", "), first, last)
	}
	return []overlapping{
		{"NetworkPolicies", []string{
			np("wide", blocks(all, hosts(three)), "80", "81"),
			np("narrow", blocks(hosts(two, three), nil), "81", "82"),
		}},
		{"three NetworkPolicies", []string{
			np("wide", blocks(all, hosts(two, three)), "80", "80"),
			np("narrow", blocks(hosts(one, two), nil), "80", "82"),
			np("other", blocks(hosts(two, three), nil), "81", "82"),
		}},
		{"ClusterNetworkPolicies", []string{
			cnp("deny", 10, "Deny", all, 81, 82),
			cnp("accept", 5, "Accept", hosts(one, two), 80, 81),
		}},
		{"equal priorities", []string{
			cnp("deny", 7, "Deny", hosts(one, two), 80, 81),
			cnp("pass", 7, "Pass", all, 81, 82),
		}},
	}
}

// steps are all orders in which n things come and then go: each list names, step by
// step, what changes; it is there afterwards if it was not before.
func steps(n int) [][]int {
	var out [][]int
	for _, in := range permutations(n) {
		for _, away := range permutations(n) {
			out = append(out, slices.Concat(in, away))
		}
	}
	return out
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var out [][]int
	for _, p := range permutations(n - 1) {
		for at := range n {
			out = append(out, slices.Insert(slices.Clone(p), at, n-1))
		}
	}
	return out
}

// overlapWorld are the pods: three clients, and the target, which is a client too.
var overlapWorld = namespace("overlap", "") +
	pod("overlap", "one", "node-1", "app: one", "80/TCP", "81/TCP", "82/TCP") +
	pod("overlap", "two", "node-2", "app: two", "80/TCP", "81/TCP", "82/TCP") +
	pod("overlap", "three", "node-2", "app: three", "80/TCP", "81/TCP", "82/TCP") +
	pod("overlap", "target", "node-1", "app: target", "80/TCP", "81/TCP", "82/TCP", "81/UDP", "82/UDP")

// P3: whatever the order in which overlapping rules come and go, what is in force is
// what the oracle says of those that are there.
func TestScenarioP3(t *testing.T) { overlapInLab(t, 1) }

// The same with all kinds of rules.
func TestScenarioP3Long(t *testing.T) {
	labtest.Long(t)
	overlapInLab(t, -1)
}

// overlapInLab plays the first most cases, or all of them.
func overlapInLab(t *testing.T, most int) {
	c := newCluster(t)
	members := c.scene(overlapWorld)
	limit := labtest.Limit(t, enforced)
	c.agree(members, labtest.Patience)
	var questions []question
	for _, q := range table(members) {
		if q.from.key.Name == "target" || q.to.key.Name == "target" {
			questions = append(questions, q)
		}
	}
	all := overlaps(dual, members["overlap/one"].addrs, members["overlap/two"].addrs, members["overlap/three"].addrs)
	for i, x := range all {
		if i == most {
			break
		}
		t.Run(x.name, func(t *testing.T) {
			c := c.with(t)
			there := map[int]bool{}
			n := 0
			for _, order := range steps(len(x.policies)) {
				for _, p := range order {
					if there[p] {
						c.deletePolicy(x.policies[p])
					} else {
						c.Apply(x.policies[p])
					}
					there[p] = !there[p]
					c.agreeOn(questions, limit)
					n++
				}
			}
			t.Logf("%d steps, %d probes after each", n, len(questions))
		})
	}
}

func (c *cluster) deletePolicy(manifest string) {
	c.t.Helper()
	o := decode(c.t, manifest)
	kind, err := datastore.KindOf(o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.Delete(kind, datastore.KeyOf(o).String())
}

func decode(t testing.TB, manifest string) datastore.Object {
	t.Helper()
	objects, err := datastore.DecodeManifest(strings.NewReader(manifest))
	if err != nil || len(objects) != 1 {
		t.Fatalf("the test's manifest: %d objects, %v: %s", len(objects), err, manifest)
	}
	return objects[0]
}

// The same for what is rendered, walked by the simulator, with every kind of overlap:
// the cluster goes from each step to the next, as agents do.
func TestScenarioP3Rendered(t *testing.T) {
	pods, addrs := overlapSnapshot(t)
	for _, x := range overlaps([]netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}, addrs["one"][:1], addrs["two"][:1], addrs["three"][:1]) {
		t.Run(x.name, func(t *testing.T) {
			n, denied := 0, 0
			for _, order := range steps(len(x.policies)) {
				store := world.NewStore(nil)
				snap := store.Apply(pods...)
				cluster, err := agreement.New(snap)
				if err != nil {
					t.Fatal(err)
				}
				there := map[int]bool{}
				for _, p := range order {
					there[p] = !there[p]
					snap = store.Apply(change(t, decode(t, x.policies[p]), there[p]))
					if err := cluster.Become(snap); err != nil {
						t.Fatal(err)
					}
					denied += sameVerdicts(t, cluster, oracle.Read(snap), addrs, n)
					n++
				}
			}
			t.Logf("%d steps, %d packets were denied", n, denied)
			if denied == 0 {
				t.Error("no difference was made")
			}
		})
	}
}

// sameVerdicts sends the first packet of a flow from each pod to each port of each.
// step makes the flows new.
func sameVerdicts(t *testing.T, cluster *agreement.Cluster, model *oracle.Model, addrs map[string][]netip.Addr, step int) (denied int) {
	t.Helper()
	for from := range addrs {
		for to := range addrs {
			if from == to {
				continue
			}
			for port := uint16(79); port <= 83; port++ {
				for _, proto := range []packet.Protocol{packet.TCP, packet.UDP} {
					probe := oracle.Probe{
						From: oracle.Place{Kind: oracle.Pod, Node: nodeOf(from), Pod: world.Key{Namespace: "overlap", Name: from}},
						Packet: packet.Packet{
							Src: addrs[from][0], Dst: addrs[to][0], Protocol: proto, SrcPort: uint16(40000 + step), DstPort: port, SYN: proto == packet.TCP,
						},
					}
					got, err := cluster.Send(probe, 0)
					if err != nil {
						t.Fatal(err)
					}
					v := model.Judge(nil, probe)
					if got.Dropped == v.Allowed {
						t.Errorf("step %d: %s: dropped is %t, the oracle: %s", step, probe.Packet, got.Dropped, v.Why())
					}
					if !v.Allowed {
						denied++
					}
				}
			}
		}
	}
	return denied
}

func nodeOf(pod string) string {
	if pod == "one" || pod == "target" {
		return "node-1"
	}
	return "node-2"
}

// overlapSnapshot is overlapWorld without a lab, with one address for each pod.
func overlapSnapshot(t *testing.T) (changes []world.Change, addrs map[string][]netip.Addr) {
	t.Helper()
	set := func(kind world.Kind, name string, o any) {
		changes = append(changes, world.Change{Kind: kind, Key: world.Key{Name: name}, Object: o})
	}
	set(world.KindVPC, packet.DefaultVPC, &world.VPC{Name: packet.DefaultVPC, VNI: 1})
	set(world.KindSubnet, "default", &world.Subnet{
		Name: "default", VPC: packet.DefaultVPC, NATOutgoing: true, BlockBits4: 24, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
	})
	blocks := map[string]*world.Block{}
	for i, node := range []string{"node-1", "node-2"} {
		addr := netip.AddrFrom4([4]byte{172, 30, 0, byte(11 + i)})
		set(world.KindNode, node, &world.Node{Name: node, Addresses: []netip.Addr{addr}})
		set(world.KindNodeNetwork, node, &world.NodeNetwork{Name: node, Addresses: []netip.Prefix{netip.PrefixFrom(addr, 24)}})
		blocks[node] = &world.Block{Name: node, Subnet: "default", Node: node, CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128, byte(i), 0}), 24)}
		set(world.KindBlock, node, blocks[node])
	}
	objects, err := datastore.DecodeManifest(strings.NewReader(overlapWorld))
	if err != nil {
		t.Fatal(err)
	}
	addrs = map[string][]netip.Addr{}
	for i, o := range objects {
		changes = append(changes, change(t, o, true))
		if kind, err := datastore.KindOf(o); err != nil || kind != datastore.KindPod {
			continue
		}
		b := blocks[nodeOf(o.GetName())]
		octets := b.CIDR.Addr().As4()
		octets[3] = byte(10 + i)
		a := netip.AddrFrom4(octets)
		addrs[o.GetName()] = []netip.Addr{a}
		b.Allocations = append(b.Allocations, world.Allocation{Addr: a, Owner: world.Owner{Namespace: o.GetNamespace(), Name: o.GetName()}})
	}
	return changes, addrs
}

// change makes an object come or go, with the defaults that a datastore adds.
func change(t *testing.T, o datastore.Object, there bool) world.Change {
	t.Helper()
	r, err := datastore.LookupObject(o)
	if err != nil {
		t.Fatal(err)
	}
	c := world.Change{Kind: world.Kind(r.Kind), Key: world.Key{Namespace: o.GetNamespace(), Name: o.GetName()}}
	if !there {
		return c
	}
	r.Default(o)
	if errs := r.Validate(o, nil); len(errs) > 0 {
		t.Fatalf("%s %s: %v", r.Kind, o.GetName(), errs.ToAggregate())
	}
	value, problems := feed.Convert(c.Kind, o)
	if value == nil || len(problems) > 0 {
		t.Fatalf("%s %s: %v", r.Kind, o.GetName(), problems)
	}
	c.Object = value
	return c
}
