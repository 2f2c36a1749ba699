package decide

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// TestPorts gives one attachment to a node of two VPCs, default and red.
func TestPorts(t *testing.T) {
	good := world.Attachment{
		ID: "c1/eth0", ContainerID: "c1", Interface: "eth0", HostInterface: "flp1", Netns: "/run/netns/1", VPC: "default", Subnet: "s",
		Pod: world.Owner{Namespace: "web", Name: "a", UID: "1"}, MAC: packet.MAC{2}, Addresses: []netip.Addr{netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("fd10::2")},
	}
	want := intent.Port{
		ID: "c1/eth0", VPC: "default", VNI: 1, Pod: "web/a", Netns: "/run/netns/1", Interface: "eth0", HostInterface: "flp1",
		MAC: packet.MAC{2}, Addresses: good.Addresses,
	}
	for _, tt := range []struct {
		name    string
		change  func(*world.Attachment)
		want    func(*intent.Port) // nil: no port
		problem string
	}{
		{"good", func(*world.Attachment) {}, func(*intent.Port) {}, ""},
		{"IPv6 first", func(a *world.Attachment) { a.Addresses = []netip.Addr{good.Addresses[1], good.Addresses[0]} }, func(*intent.Port) {}, ""},
		{"a record without VPC", func(a *world.Attachment) { a.VPC = "" }, func(*intent.Port) {}, ""},
		{"a record without MAC or link", func(a *world.Attachment) { a.MAC, a.HostInterface = packet.MAC{}, "" }, func(p *intent.Port) {
			p.MAC, p.HostInterface = packet.MAC{0x0a, 0x58, 10, 128, 0, 2}, claims.PortName("c1", "eth0")
		}, ""},
		{"standalone", func(a *world.Attachment) { a.Pod = world.Owner{} }, func(p *intent.Port) { p.Pod = "" }, ""},
		{"namespace unknown", func(a *world.Attachment) { a.Pod.Namespace = "nobody" }, func(p *intent.Port) { p.Pod = "nobody/a" }, ""},
		{"namespace of another VPC", func(a *world.Attachment) { a.Pod.Namespace = "red" }, func(p *intent.Port) { p.Pod = "red/a" }, "Pod/red/a VPCChanged"},
		{"Subnet of another VPC", func(a *world.Attachment) { a.VPC = "red" }, nil, "Pod/web/a SubnetMoved"},
		{"Subnet unknown", func(a *world.Attachment) { a.Subnet = "x" }, nil, "Pod/web/a SubnetNotInUse"},
		{"no address", func(a *world.Attachment) { a.Addresses = nil }, nil, "Pod/web/a InvalidAddress"},
		{"address outside", func(a *world.Attachment) { a.Addresses = []netip.Addr{netip.MustParseAddr("10.1.1.1")} }, nil, "Pod/web/a InvalidAddress"},
		{"two of a family", func(a *world.Attachment) {
			a.Addresses = []netip.Addr{good.Addresses[0], good.Addresses[0].Next()}
		}, nil, "Pod/web/a InvalidAddress"},
		{"address of another", func(a *world.Attachment) { a.ID, a.HostInterface = "c9/eth0", "flp9" }, func(*intent.Port) {}, "Pod/web/a Duplicate"},
		{"link of another", func(a *world.Attachment) {
			a.ID, a.Addresses = "c9/eth0", []netip.Addr{netip.MustParseAddr("10.128.0.9")}
		}, func(*intent.Port) {}, "Pod/web/a Duplicate"},
		{"standalone, isolated", func(a *world.Attachment) {
			a.Pod, a.VPC, a.Subnet = world.Owner{}, "red", "r"
			a.Addresses = []netip.Addr{netip.MustParseAddr("10.129.0.2")}
		}, nil, "Attachment/c1/eth0 NoTenant"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := good
			tt.change(&a)
			changes := []world.Change{
				{Kind: world.KindVPC, Key: world.Key{Name: "default"}, Object: &world.VPC{Name: "default", VNI: 1}},
				{Kind: world.KindVPC, Key: world.Key{Name: "red"}, Object: &world.VPC{Name: "red", VNI: 2, Tenant: true, Created: time.Unix(1e9, 0), Namespaces: &world.Selector{MatchLabels: map[string]string{"team": "red"}}}},
				{Kind: world.KindNamespace, Key: world.Key{Name: "web"}, Object: &world.Namespace{Name: "web"}},
				{Kind: world.KindNamespace, Key: world.Key{Name: "red"}, Object: &world.Namespace{Name: "red", Labels: map[string]string{"team": "red"}}},
				{Kind: world.KindSubnet, Key: world.Key{Name: "s"}, Object: &world.Subnet{Name: "s", VPC: "default", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/24"), netip.MustParsePrefix("fd10::/64")}}},
				{Kind: world.KindSubnet, Key: world.Key{Name: "r"}, Object: &world.Subnet{Name: "r", VPC: "red", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.129.0.0/24")}}},
				{Kind: world.KindNodeNetwork, Key: world.Key{Name: "n1"}, Object: &world.NodeNetwork{Name: "n1", Addresses: []netip.Prefix{netip.MustParsePrefix("172.30.0.1/24")}}},
				{Kind: world.KindAttachment, Key: world.Key{Name: a.ID}, Object: &a},
			}
			if a.ID != good.ID { // It meets the good one.
				changes = append(changes, world.Change{Kind: world.KindAttachment, Key: world.Key{Name: good.ID}, Object: &good})
			}
			n, _, problems := New(Config{Node: "n1"}).Compile(nil, world.NewStore(nil).Apply(changes...))
			var wanted []intent.Port
			if tt.want != nil {
				p := want
				tt.want(&p)
				wanted = append(wanted, p)
			}
			if diff := cmp.Diff(wanted, n.Ports, asValues); diff != "" {
				t.Errorf("ports (-want +got):\n%s", diff)
			}
			var wantProblems, got []string
			if tt.problem != "" {
				wantProblems = append(wantProblems, tt.problem)
			}
			for _, p := range problems {
				got = append(got, string(p.Kind)+"/"+p.Key.String()+" "+p.Reason)
			}
			if diff := cmp.Diff(wantProblems, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCompileOfNothing: no world is a world too.
func TestCompileOfNothing(t *testing.T) {
	n, state, problems := New(Config{Node: "n1"}).Compile(nil, nil)
	if faults := intent.Validate(n); len(faults) > 0 || n.MTU != 1450 || state == nil {
		t.Errorf("%v\n%s", faults, n)
	}
	if len(problems) != 1 || problems[0].Reason != "NoUnderlayAddress" {
		t.Errorf("problems %v", problems)
	}
	// The State of another Compiler is of no use, and does no harm.
	other, _, _ := New(Config{Node: "n2"}).Compile(state, &world.Snapshot{})
	if other.Name != "n2" || other.VTEPMAC == n.VTEPMAC {
		t.Errorf("%s", other)
	}
}
