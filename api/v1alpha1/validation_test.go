package v1alpha1

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"
)

// goodSubnet is valid; the cases change it.
func goodSubnet() *Subnet {
	s := &Subnet{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: SubnetSpec{CIDRs: []string{"10.128.0.0/14", "fd00:10::/64"}}}
	DefaultSubnet(s)
	return s
}

// wantErrors checks that there is exactly one error for each path, in order, and
// that it has the text.
func wantErrors(t *testing.T, errs field.ErrorList, want ...string) {
	t.Helper()
	for i, err := range errs {
		if i >= len(want) {
			t.Errorf("unexpected: %v", err)
			continue
		}
		path, text, _ := strings.Cut(want[i], "|")
		if err.Field != path || !strings.Contains(err.Error(), text) {
			t.Errorf("error %d: %v\nwant field %s and %q", i, err, path, text)
		}
	}
	if len(errs) < len(want) {
		t.Errorf("%d errors, want %d: %v", len(errs), len(want), want[len(errs):])
	}
}

func TestValidateSubnet(t *testing.T) {
	for name, test := range map[string]struct {
		change func(s *SubnetSpec)
		want   []string
	}{
		"good":             {func(*SubnetSpec) {}, nil},
		"no cidr":          {func(s *SubnetSpec) { s.CIDRs = nil }, []string{"spec.cidrs|at least one CIDR"}},
		"an address":       {func(s *SubnetSpec) { s.CIDRs = []string{"10.0.0.1"} }, []string{"spec.cidrs[0]|add a prefix length"}},
		"garbage":          {func(s *SubnetSpec) { s.CIDRs = []string{"10.1.0.0/16", "ten"} }, []string{"spec.cidrs[1]|is not a CIDR"}},
		"host bits":        {func(s *SubnetSpec) { s.CIDRs = []string{"10.0.0.1/8"} }, []string{"spec.cidrs[0]|10.0.0.0/8 would be right"}},
		"mapped":           {func(s *SubnetSpec) { s.CIDRs = []string{"::ffff:10.0.0.0/104"} }, []string{"spec.cidrs[0]|IPv4-mapped"}},
		"not canonical":    {func(s *SubnetSpec) { s.CIDRs = []string{"fd00:0::/64"} }, []string{"spec.cidrs[0]|write fd00::/64"}},
		"multicast":        {func(s *SubnetSpec) { s.CIDRs = []string{"224.1.0.0/16"} }, []string{"spec.cidrs[0]|multicast"}},
		"multicast v6":     {func(s *SubnetSpec) { s.CIDRs = []string{"ff02::/64"} }, []string{"spec.cidrs[0]|ff00::/8"}},
		"loopback":         {func(s *SubnetSpec) { s.CIDRs = []string{"127.1.0.0/16"} }, []string{"spec.cidrs[0]|127.0.0.0/8"}},
		"loopback v6":      {func(s *SubnetSpec) { s.CIDRs, s.BlockSize.V6 = []string{"::/64"}, 122 }, []string{"spec.cidrs[0]|::/80"}},
		"around mapped":    {func(s *SubnetSpec) { s.CIDRs = []string{"::f000:0:0/84"} }, []string{"spec.cidrs[0]|IPv4-mapped"}},
		"link-local":       {func(s *SubnetSpec) { s.CIDRs = []string{"169.254.0.0/20", "fe80::/64"} }, []string{"spec.cidrs[0]|", "spec.cidrs[1]|"}},
		"everything":       {func(s *SubnetSpec) { s.CIDRs = []string{"0.0.0.0/0"} }, []string{"spec.cidrs[0]|overlaps"}},
		"overlap":          {func(s *SubnetSpec) { s.CIDRs = []string{"10.0.0.0/16", "10.1.0.0/16", "10.0.8.0/24"} }, []string{"spec.cidrs[2]|overlaps spec.cidrs[0]"}},
		"twice":            {func(s *SubnetSpec) { s.CIDRs = []string{"10.0.0.0/16", "10.0.0.0/16"} }, []string{"spec.cidrs[1]|overlaps"}},
		"too many":         {func(s *SubnetSpec) { s.CIDRs = make([]string, 33) }, []string{"spec.cidrs|at most 32"}},
		"small cidr":       {func(s *SubnetSpec) { s.CIDRs = []string{"10.0.0.0/28"} }, []string{"spec.blockSize.v4|use 28 or more"}},
		"small cidr fits":  {func(s *SubnetSpec) { s.CIDRs, s.BlockSize.V4 = []string{"10.0.0.0/28"}, 28 }, nil},
		"small v6 cidr":    {func(s *SubnetSpec) { s.CIDRs = []string{"fd00::/124"} }, []string{"spec.blockSize.v6|use 124 or more"}},
		"block size range": {func(s *SubnetSpec) { s.BlockSize = BlockSize{V4: 33, V6: 12} }, []string{"spec.blockSize.v4|", "spec.blockSize.v6|"}},
		"vpc name":         {func(s *SubnetSpec) { s.VPC = "Red" }, []string{"spec.vpc|"}},
		"transport":        {func(s *SubnetSpec) { s.Transport = "Pigeon" }, []string{`spec.transport|"Overlay"`}},
		"encapsulation":    {func(s *SubnetSpec) { s.Encapsulation = "GRE" }, []string{`spec.encapsulation|"VXLAN"`}},
		"overlay without":  {func(s *SubnetSpec) { s.Encapsulation = "None" }, []string{"spec.encapsulation|VXLAN or CrossSubnet with transport Overlay"}},
		"routed with":      {func(s *SubnetSpec) { s.Transport = "Routed" }, []string{"spec.encapsulation|must be None with transport Routed"}},
		"exclude":          {func(s *SubnetSpec) { s.Exclude = []string{"10.128.0.5", "10.130.0.0/24", "fd00:10::1"} }, nil},
		"exclude outside":  {func(s *SubnetSpec) { s.Exclude = []string{"10.128.0.5", "10.0.0.1", "10.0.0.0/8"} }, []string{"spec.exclude[1]|not inside", "spec.exclude[2]|not inside"}},
		"exclude garbage":  {func(s *SubnetSpec) { s.Exclude = []string{"x"} }, []string{"spec.exclude[0]|"}},
		"gateway":          {func(s *SubnetSpec) { s.Gateway = []string{"10.128.0.1"} }, []string{"spec.gateway|only with transport Underlay"}},
		"selector": {func(s *SubnetSpec) {
			s.Namespaces = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b c"}}
		}, []string{"spec.namespaces.matchLabels|"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := goodSubnet()
			test.change(&s.Spec)
			wantErrors(t, ValidateSubnet(s, nil), test.want...)
		})
	}
}

func TestValidateUnderlay(t *testing.T) {
	for name, test := range map[string]struct {
		gateway []string
		want    []string
	}{
		"none":          {nil, nil},
		"one each":      {[]string{"10.128.0.1", "fd00:10::1"}, nil},
		"two of a kind": {[]string{"10.128.0.1", "10.128.0.2"}, []string{"spec.gateway[1]|only one gateway a family"}},
		"outside":       {[]string{"10.0.0.1"}, []string{"spec.gateway[0]|not inside"}},
		"mapped":        {[]string{"::ffff:10.128.0.1"}, []string{"spec.gateway[0]|write 10.128.0.1"}},
		"with zone":     {[]string{"fe80::1%eth0"}, []string{"spec.gateway[0]|write fe80::1"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := goodSubnet()
			s.Spec.Transport, s.Spec.Encapsulation, s.Spec.Gateway = TransportUnderlay, EncapsulationNone, test.gateway
			wantErrors(t, ValidateSubnet(s, nil), test.want...)
		})
	}
}

func TestValidateSubnetUpdate(t *testing.T) {
	old := goodSubnet()
	now := goodSubnet()
	now.Spec.CIDRs = []string{"fd00:10::/64", "10.128.0.0/14", "10.1.0.0/16"} // another order, and one more
	now.Spec.Encapsulation = EncapsulationCrossSubnet
	wantErrors(t, ValidateSubnet(now, old))
	now.Spec.CIDRs = []string{"10.128.0.0/13", "fd00:10::/64"}
	now.Spec.VPC, now.Spec.Transport, now.Spec.Encapsulation = "red", TransportRouted, EncapsulationNone
	now.Spec.BlockSize = BlockSize{V4: 27, V6: 123}
	wantErrors(t, ValidateSubnet(now, old),
		"spec.vpc|it was default", "spec.transport|it was Overlay", "spec.blockSize.v4|it was 26", "spec.blockSize.v6|it was 122",
		"spec.cidrs|10.128.0.0/14 is missing")
}

func TestValidateSubnetAgainst(t *testing.T) {
	other := goodSubnet()
	other.Name = "other"
	red := goodSubnet()
	red.Name, red.Spec.VPC, red.Spec.CIDRs = "red", "red", []string{"10.50.0.0/16"}
	node := &NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: NodeNetworkSpec{Addresses: []string{"172.30.0.11/24", "bad"}}}
	s := goodSubnet()
	s.Spec.CIDRs = []string{"10.129.0.0/16", "10.50.0.0/16", "172.16.0.0/12", "10.0.0.0/16"}
	others, nodes := []*Subnet{other, red, s}, []*NodeNetwork{node}
	wantErrors(t, ValidateSubnetAgainst(s, nil, others, nodes),
		"spec.cidrs[0]|10.128.0.0/14 of Subnet other", "spec.cidrs[2]|172.30.0.0/24 of node n1")
	s.Spec.Transport = TransportUnderlay
	wantErrors(t, ValidateSubnetAgainst(s, nil, others, nodes), "spec.cidrs[0]|Subnet other")
	wantErrors(t, ValidateSubnetAgainst(s, s.DeepCopy(), others, nodes)) // old sins stay
}

func TestValidateIPBlock(t *testing.T) {
	good := func() *IPBlock {
		return &IPBlock{ObjectMeta: metav1.ObjectMeta{Name: "pods.0a800040-26"}, Spec: IPBlockSpec{
			Subnet: "pods", CIDR: "10.128.0.64/26", Node: "n1",
			Allocations: map[string]AddressOwner{"10.128.0.65": {Name: "node/n1/tunnel"}}, Lent: map[string]string{"10.128.0.66": "n2"},
		}}
	}
	for name, test := range map[string]struct {
		change func(b *IPBlock)
		want   []string
	}{
		"good":            {func(*IPBlock) {}, nil},
		"name":            {func(b *IPBlock) { b.Name = "pods.0a800080-26" }, []string{"metadata.name|pods.0a800040-26"}},
		"host bits":       {func(b *IPBlock) { b.Spec.CIDR = "10.128.0.65/26" }, []string{"spec.cidr|10.128.0.64/26"}},
		"node":            {func(b *IPBlock) { b.Spec.Node = "N 1" }, []string{"spec.node|"}},
		"outside":         {func(b *IPBlock) { b.Spec.Allocations["10.128.0.1"] = AddressOwner{Name: "x"} }, []string{"spec.allocations[10.128.0.1]|outside the block"}},
		"other family":    {func(b *IPBlock) { b.Spec.Allocations["fd00::1"] = AddressOwner{Name: "x"} }, []string{"spec.allocations[fd00::1]|outside the block"}},
		"nobody":          {func(b *IPBlock) { b.Spec.Allocations["10.128.0.67"] = AddressOwner{} }, []string{"spec.allocations[10.128.0.67].name|"}},
		"lent outside":    {func(b *IPBlock) { b.Spec.Lent["10.128.0.1"] = "n2" }, []string{"spec.lent[10.128.0.1]|outside"}},
		"lent and used":   {func(b *IPBlock) { b.Spec.Lent["10.128.0.65"] = "n2" }, []string{"spec.lent[10.128.0.65]|either lent or allocated"}},
		"lent to nobody":  {func(b *IPBlock) { b.Spec.Lent["10.128.0.67"] = "" }, []string{"spec.lent[10.128.0.67]|name of a Node"}},
		"address garbage": {func(b *IPBlock) { b.Spec.Lent["x"] = "n2" }, []string{"spec.lent[x]|is not an address"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := good()
			test.change(b)
			wantErrors(t, ValidateIPBlock(b, nil), test.want...)
		})
	}
	moved := good()
	moved.Spec.Node, moved.Spec.Subnet, moved.Name = "n2", "red", "red.0a800040-26"
	wantErrors(t, ValidateIPBlock(moved, good()), "spec.subnet|it was pods", "spec.node|it was n1")
}

func TestValidateOthers(t *testing.T) {
	node := &NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: NodeNetworkSpec{
		Addresses: []string{"172.30.0.11/24", "fd00::11/64"}, VTEPMAC: "0a:58:0a:80:00:01", MTU: 1500, Plane: PlaneLinux,
	}}
	wantErrors(t, ValidateNodeNetwork(node, nil))
	node.Spec = NodeNetworkSpec{Addresses: []string{"172.30.0.11", "172.30.0.11/24", "172.31.0.1/24"}, VTEPMAC: "01:00:5e:00:00:01", MTU: 100, Plane: "x"}
	node.Status.Problems = make([]ObjectProblem, 51)
	node.Status.Borrowed = map[string]AddressOwner{"x": {Name: "p"}}
	wantErrors(t, ValidateNodeNetwork(node, nil), "spec.addresses[0]|", "spec.addresses[2]|only one address a family", "spec.vtepMAC|unicast",
		"spec.mtu|", "spec.plane|", "status.problems|at most 50", "status.borrowed[x]|")
	for _, mac := range []string{"0A:58:0a:80:00:01", "0a:58:0a:80:00:0", "0a-58-0a-80-00-01", "0a:58:0a:80:00:01:02", "xx:58:0a:80:00:01"} {
		if isUnicastMAC(mac) {
			t.Errorf("%s passes as a unicast MAC", mac)
		}
	}

	for vni, ok := range map[int32]bool{-1: false, 0: false, 1: true, 1<<24 - 1: true, 1 << 24: false} {
		n := &NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: NetNamespaceSpec{VNI: vni}}
		if errs := ValidateNetNamespace(n, nil); (len(errs) == 0) != ok {
			t.Errorf("vni %d: %v", vni, errs)
		}
	}
	vpc := &VPC{ObjectMeta: metav1.ObjectMeta{Name: "a.b"}, Spec: VPCSpec{Isolation: "Some"}}
	wantErrors(t, ValidateVPC(vpc, nil), "metadata.name|", `spec.isolation|"None"`)
}

func TestBlockName(t *testing.T) {
	for cidr, want := range map[string]string{
		"10.128.0.64/26":   "default.0a800040-26",
		"fd00:10::40/122":  "default.fd000010000000000000000000000040-122",
		"255.255.255.0/24": "default.ffffff00-24",
	} {
		p := netip.MustParsePrefix(cidr)
		got := BlockName("default", p)
		if got != want {
			t.Errorf("BlockName(%s) = %s, want %s", cidr, got, want)
		}
		if subnet, back, err := ParseBlockName(got); err != nil || subnet != "default" || back != p {
			t.Errorf("ParseBlockName(%s) = %s, %s, %v", got, subnet, back, err)
		}
	}
	for _, bad := range []string{
		"", "default", "default.", ".0a800040-26", "default.0a800040", "default.0a800040-026", "default.0A800040-26", "default.0a800041-26",
		"default.0a8000-26", "default.0a800040-33", "default.0a800040--1", "default.0a800040-+26", "default.zz800040-26",
		"default.00000000000000000000ffff0a800040-122",
	} {
		if subnet, p, err := ParseBlockName(bad); err == nil {
			t.Errorf("ParseBlockName(%q) = %s, %s", bad, subnet, p)
		}
	}
}

// Names are unique a block, and give it back.
func TestBlockNameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{4, 16}).Draw(t, "bytes")
		addr, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "address"))
		if addr.Is4In6() {
			t.Skip("never a block")
		}
		cidr, err := addr.Prefix(rapid.IntRange(0, size*8).Draw(t, "bits"))
		if err != nil {
			t.Fatal(err)
		}
		subnet := rapid.StringMatching(`[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?`).Draw(t, "subnet")
		gotSubnet, gotCIDR, err := ParseBlockName(BlockName(subnet, cidr))
		if err != nil || gotSubnet != subnet || gotCIDR != cidr {
			t.Fatalf("%s %s came back as %s %s, %v", subnet, cidr, gotSubnet, gotCIDR, err)
		}
	})
}

// Whatever the strings are, validation neither panics nor lets two CIDRs of one
// Subnet share an address.
func TestValidSubnetsHaveDisjointCIDRs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := goodSubnet()
		s.Spec.CIDRs = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
			if rapid.IntRange(0, 9).Draw(t, "wild") == 0 {
				return rapid.String().Draw(t, "text")
			}
			return fmt.Sprintf("10.%d.0.0/%d", rapid.IntRange(0, 3).Draw(t, "octet"), rapid.IntRange(13, 18).Draw(t, "bits"))
		}), 1, 5).Draw(t, "cidrs")
		if len(ValidateSubnet(s, nil)) > 0 {
			return
		}
		for i, a := range s.Spec.CIDRs {
			for _, b := range s.Spec.CIDRs[:i] {
				if netip.MustParsePrefix(a).Overlaps(netip.MustParsePrefix(b)) {
					t.Fatalf("%s and %s are both accepted", a, b)
				}
			}
		}
	})
}

// What is read of a text is written as the same text: there is one form of everything.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"10.128.0.0/14", "fd00:10::/64", "10.128.0.5", "default.0a800040-26", "10.0.0.1-10.0.0.9", "::ffff:10.0.0.1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := ParseCIDR(text); err == nil && (p.String() != text || p != p.Masked()) {
			t.Errorf("CIDR %q is %s", text, p)
		}
		if a, err := ParseAddr(text); err == nil && a.String() != text {
			t.Errorf("address %q is %s", text, a)
		}
		if subnet, cidr, err := ParseBlockName(text); err == nil && BlockName(subnet, cidr) != text {
			t.Errorf("block %q is %s of %s", text, cidr, subnet)
		}
		if p, err := ParseExclude(text); err == nil && !p.IsValid() {
			t.Errorf("exclude %q is %s", text, p)
		}
	})
}
