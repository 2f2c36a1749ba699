package linuxplane

import (
	"context"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/planetest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/flows"
)

// BenchmarkFollowPolicy is what an Apply does about flows on a node that has 100,000 of
// them, 1,000 to the pod whose policy changes.
func BenchmarkFollowPolicy(b *testing.B) {
	ns := netnstest.New(b)
	var h *netlink.Handle
	err := ns.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	tracked, err := conntrack.Open(ns)
	if err != nil {
		b.Fatal(err)
	}
	defer tracked.Close()
	n := planetest.Node()
	n.Ports = []intent.Port{planetest.Port(2, ns.String()), planetest.Port(3, ns.String())}
	for i := range 100_000 {
		to := n.Ports[min(i%100, 1)].Addresses[0].AsSlice()
		from := netip.AddrFrom4([4]byte{20, 0, byte(i >> 16), byte(i >> 8)}).AsSlice()
		err := h.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET, TimeOut: 1000, Mark: claims.CTJudged,
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: from, DstIP: to, SrcPort: uint16(i&0xff + 1), DstPort: 80},
			Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: to, DstIP: from, SrcPort: 80, DstPort: uint16(i&0xff + 1)},
		})
		if err != nil {
			b.Skipf("this kernel takes no conntrack entries: %v", err)
		}
	}
	deny := intent.NewRuleList(packet.DefaultVPC, intent.Ingress, []intent.Rule{{
		Tier: intent.TierNetworkPolicy, Action: intent.Deny, Origin: intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "a", Name: "b", Index: -1},
	}})
	denied := n
	denied.Ports, denied.RuleLists = []intent.Port{n.Ports[0], n.Ports[1]}, []intent.RuleList{deny}
	denied.Ports[0].Ingress = deny.ID
	change := func(b *testing.B, old *intent.Node, desired intent.Node, o apply.Options) {
		a := application{Plane: &Plane{ns: ns, flows: tracked}, options: o}
		if err := a.decideFlows(context.Background(), desired, flows.Compare(old, desired, flows.Options{AddOnly: o.AddOnly})); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("cut and uncut 1000", func(b *testing.B) {
		for b.Loop() {
			change(b, &n, denied, apply.Options{})
			change(b, &denied, n, apply.Options{})
		}
	})
	b.Run("restart", func(b *testing.B) {
		for b.Loop() {
			change(b, nil, n, apply.Options{})
		}
	})
	b.Run("nothing", func(b *testing.B) {
		for b.Loop() {
			change(b, &n, n, apply.Options{})
		}
	})
}
