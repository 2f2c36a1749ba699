package examples

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

const dir = "../../examples/policy"

// snapshot is a world of the nodes that the pods name, with an address for each pod.
func snapshot(t *testing.T, objects []datastore.Object) *world.Snapshot {
	t.Helper()
	var changes []world.Change
	set := func(kind world.Kind, key world.Key, o any) {
		changes = append(changes, world.Change{Kind: kind, Key: key, Object: o})
	}
	set(world.KindVPC, world.Key{Name: packet.DefaultVPC}, &world.VPC{Name: packet.DefaultVPC, VNI: 1})
	set(world.KindSubnet, world.Key{Name: "default"}, &world.Subnet{
		Name: "default", VPC: packet.DefaultVPC, NATOutgoing: true, BlockBits4: 24, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
	})
	blocks := map[string]*world.Block{}
	for _, o := range objects {
		kind, err := datastore.KindOf(o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := datastore.Lookup(kind)
		if err != nil {
			t.Fatal(err)
		}
		r.Default(o)
		value, problems := feed.Convert(world.Kind(kind), o)
		if value == nil || len(problems) > 0 {
			t.Fatalf("%s %s: %v", kind, o.GetName(), problems)
		}
		set(world.Kind(kind), world.Key{Namespace: o.GetNamespace(), Name: o.GetName()}, value)
		p, ok := o.(*corev1.Pod)
		if !ok {
			continue
		}
		node := p.Spec.NodeName
		b := blocks[node]
		if b == nil {
			i := byte(len(blocks))
			b = &world.Block{Name: node, Subnet: "default", Node: node, CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128, i, 0}), 24)}
			blocks[node] = b
			addr := netip.AddrFrom4([4]byte{172, 30, 0, 11 + i})
			set(world.KindNode, world.Key{Name: node}, &world.Node{Name: node, Addresses: []netip.Addr{addr}})
			set(world.KindNodeNetwork, world.Key{Name: node}, &world.NodeNetwork{Name: node, Addresses: []netip.Prefix{netip.PrefixFrom(addr, 24)}})
			set(world.KindBlock, world.Key{Name: node}, b)
		}
		octets := b.CIDR.Addr().As4()
		octets[3] = byte(10 + len(b.Allocations))
		b.Allocations = append(b.Allocations, world.Allocation{Addr: netip.AddrFrom4(octets), Owner: world.Owner{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}})
	}
	return world.NewStore(nil).Apply(changes...)
}

func TestExpectations(t *testing.T) {
	pods, all, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	without := oracle.Read(snapshot(t, pods))
	for _, e := range all {
		t.Run(e.Name, func(t *testing.T) {
			model := oracle.Read(snapshot(t, slices.Concat(pods, e.Objects)))
			if problems := model.PolicyProblems(); len(problems) > 0 {
				t.Errorf("problems: %v", problems)
			}
			for _, x := range e.Expect {
				if v := without.JudgeProbe(x.From, x.To, x.Protocol, x.Port, oracle.IPv4); !v.Allowed {
					t.Errorf("%s: denied without any policy: %v", x, v.Stages)
				}
				if v := model.JudgeProbe(x.From, x.To, x.Protocol, x.Port, oracle.IPv4); v.Allowed != x.Allowed {
					t.Errorf("%s: allowed is %t, want %t: %v", x, v.Allowed, x.Allowed, v.Stages)
				}
			}
		})
	}
}

// fence finds the YAML of the documentation.
var fence = regexp.MustCompile("(?s)<!-- (examples/policy/[a-z0-9-]+\\.yaml) -->\n```yaml\n(.*?)```")

// The documentation prints examples as they are in their files.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	printed := fence.FindAllStringSubmatch(string(text), -1)
	if len(printed) < 10 {
		t.Errorf("docs/policy.md prints %d examples, want at least ten", len(printed))
	}
	for _, m := range printed {
		want, err := os.ReadFile("../../" + m[1])
		if err != nil {
			t.Error(err)
			continue
		}
		if strings.TrimSpace(m[2]) != strings.TrimSpace(string(want)) {
			t.Errorf("docs/policy.md prints %s otherwise than the file has it", m[1])
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, line := range []string{"", "a -> b:1/TCP allowed", "a/b -> c/d:1/TCP perhaps", "a/b -> c/d:x/TCP denied", "a/b -> c/d:1/XYZ denied", "a/b -> c/d:65536/TCP denied", "/b -> c/d:1/TCP denied"} {
		if x, err := parse(line); err == nil {
			t.Errorf("%q is taken: %v", line, x)
		}
	}
}
