package conformance

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

// parallelAdds is how many containers start at once.
const parallelAdds = 20

func versionCases() []testCase {
	return []testCase{
		{"VERSION answers and lists versions", "", testVersion},
	}
}

func addCases() []testCase {
	return []testCase{
		{"ADD result is what its cniVersion demands", "", testResultVersions},
		{"ADD result matches the namespace", "", testResultMatches},
		{"Containers on one node reach each other", "", testContainersReach},
		{"The node reaches its containers", "", testNodeReaches},
		{"ADD twice gives no second address", "", testAddTwice},
		{"ADD after DEL works again", "", testAddAfterDel},
		{"Two interfaces in one container are independent", "", testTwoInterfaces},
		{"Parallel ADDs get distinct addresses", "", testParallelAdds},
	}
}

func testVersion(t *testing.T, s *suite) {
	for i, plugin := range s.list.Plugins {
		out, err := s.execute(t.Context(), i, []byte(`{"cniVersion":"`+s.newest()+`"}`), environment{"CNI_COMMAND": "VERSION"})
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			CNIVersion        string   `json:"cniVersion"`
			SupportedVersions []string `json:"supportedVersions"`
		}
		if err := json.Unmarshal(out.stdout, &answer); err != nil || out.exit != 0 {
			t.Fatalf("%s: exit status %d, stdout %q (%v)", plugin.Network.Type, out.exit, out.stdout, err)
		}
		if answer.CNIVersion == "" || !slices.Contains(answer.SupportedVersions, answer.CNIVersion) {
			t.Errorf("%s: cniVersion %q is not among supportedVersions %q", plugin.Network.Type, answer.CNIVersion, answer.SupportedVersions)
		}
		if s.list.CNIVersion != "" && !slices.Contains(answer.SupportedVersions, s.list.CNIVersion) {
			t.Errorf("%s: the list's cniVersion %s is not among supportedVersions %q", plugin.Network.Type, s.list.CNIVersion, answer.SupportedVersions)
		}
	}
}

func testResultVersions(t *testing.T, s *suite) {
	for _, v := range s.versions {
		t.Run(v, func(t *testing.T) {
			if v == "0.2.0" && len(s.list.Plugins) > 1 {
				t.Skip("not claimed by the specification: chains exist since 0.3.0")
			}
			a := s.attach(t, s.newContainer(t), "eth0", v)
			result := a.mustAdd(t)
			if err := conforms(a.exec.last.stdout, v, a.box.path); err != nil {
				t.Errorf("%v: %s", err, a.exec.last.stdout)
			}
			compareResult(t, a, result)
		})
	}
}

// resultInterface is an entry of a result's interfaces.
type resultInterface struct {
	Sandbox string `json:"sandbox"`
}

// conforms checks the keys of a result against its version of the specification.
func conforms(stdout []byte, v, sandbox string) error {
	var r struct {
		CNIVersion string            `json:"cniVersion"`
		IP4        json.RawMessage   `json:"ip4"`
		IP6        json.RawMessage   `json:"ip6"`
		Interfaces []resultInterface `json:"interfaces"`
		IPs        []struct {
			Version   *string `json:"version"`
			Address   string  `json:"address"`
			Interface *int    `json:"interface"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(stdout, &r); err != nil {
		return err
	}
	if r.CNIVersion != v {
		return fmt.Errorf("cniVersion is %q, want %q", r.CNIVersion, v)
	}
	if v == "0.2.0" {
		if r.IP4 == nil && r.IP6 == nil || r.IPs != nil || r.Interfaces != nil {
			return fmt.Errorf("a result of 0.2.0 has ip4 or ip6 and neither ips nor interfaces")
		}
		return nil
	}
	if r.IP4 != nil || r.IP6 != nil {
		return fmt.Errorf("a result of %s has neither ip4 nor ip6", v)
	}
	if !slices.ContainsFunc(r.Interfaces, func(i resultInterface) bool { return i.Sandbox == sandbox }) {
		return fmt.Errorf("no interface has the sandbox %s", sandbox)
	}
	for _, ip := range r.IPs {
		prefix, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			return err
		}
		if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
			return fmt.Errorf("the interface of %s is not an index of interfaces", prefix)
		}
		want := "4"
		if prefix.Addr().Is6() {
			want = "6"
		}
		switch old := !atLeast(v, "1.0.0"); {
		case old && (ip.Version == nil || *ip.Version != want):
			return fmt.Errorf("ips of %s have a version, here %q", v, want)
		case !old && ip.Version != nil:
			return fmt.Errorf("ips of %s have no version", v)
		}
	}
	return nil
}

func testResultMatches(t *testing.T, s *suite) {
	a := s.eth0(t)
	compareResult(t, a, a.mustAdd(t))
}

// compareResult holds a result against what netlink shows in the container and on
// the node.
func compareResult(t *testing.T, a *attachment, result *types100.Result) {
	t.Helper()
	got, ok := a.box.interfaceNamed(t, a.rt.IfName)
	if !ok {
		t.Fatalf("the container has no %s; it has %v", a.rt.IfName, a.box.interfaces(t))
	}
	if !got.Up {
		t.Errorf("%s is down", got.Name)
	}
	node, err := a.s.nodeInterfaces()
	if err != nil {
		t.Fatalf("list the node's interfaces: %v", err)
	}
	for _, i := range result.Interfaces {
		switch {
		case i.Sandbox == "" && !slices.Contains(node, i.Name):
			t.Errorf("the result names %s on the node, which has %q", i.Name, node)
		case i.Sandbox == a.box.path && i.Name == got.Name && i.Mac != "" && i.Mac != got.MAC:
			t.Errorf("the result's MAC is %s, the interface's %s", i.Mac, got.MAC)
		case i.Sandbox == a.box.path && i.Name == got.Name && i.Mtu != 0 && i.Mtu != got.MTU:
			t.Errorf("the result's MTU is %d, the interface's %d", i.Mtu, got.MTU)
		case i.Sandbox != "" && i.Sandbox != a.box.path:
			t.Errorf("the sandbox of %s is %s, want CNI_NETNS, %s", i.Name, i.Sandbox, a.box.path)
		}
	}
	if diff := cmp.Diff(prefixes(result), got.Addrs, cmp.Comparer(samePrefix)); diff != "" {
		t.Errorf("addresses (-result +namespace):\n%s", diff)
	}
	compareRoutes(t, a, result)
	a.s.wantHeld(t, addresses(result))
}

func compareRoutes(t *testing.T, a *attachment, result *types100.Result) {
	t.Helper()
	routes := a.box.routes(t)
	for _, want := range result.Routes {
		dst, gw, found := prefixOf(&want.Dst), addrOf(want.GW), false
		for _, r := range routes {
			got := prefixOf(r.Dst)
			if r.Dst == nil { // netlink's way to say "default"
				got = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
				if r.Family == netlink.FAMILY_V4 {
					got = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
				}
			}
			found = found || got == dst && (!gw.IsValid() || addrOf(r.Gw) == gw)
		}
		if !found {
			t.Errorf("the result's route %s via %s is not in the container; it has %v", dst, gw, routes)
		}
	}
}

// prefixes returns the result's addresses with their lengths, sorted.
func prefixes(result *types100.Result) []netip.Prefix {
	var list []netip.Prefix
	for _, ip := range result.IPs {
		list = append(list, prefixOf(&ip.Address))
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return list
}

// addresses returns the result's addresses, sorted.
func addresses(result *types100.Result) []netip.Addr {
	var list []netip.Addr
	for _, p := range prefixes(result) {
		list = append(list, p.Addr())
	}
	return list
}

func testAddTwice(t *testing.T, s *suite) {
	a := s.eth0(t)
	first := a.mustAdd(t)
	before := a.box.interfaces(t)
	heldBefore, _ := s.held(t)

	// A runtime that lost the answer has no cached result either.
	again := s.attach(t, a.box, "eth0", s.newest())
	second, err := again.add(t.Context())
	if err == nil {
		if diff := cmp.Diff(addresses(first), addresses(second), cmp.Comparer(sameAddr)); diff != "" {
			t.Errorf("the second ADD succeeded with other addresses (-first +second):\n%s", diff)
		}
	} else {
		wantRefused(t, "the second ADD", err)
	}
	if diff := cmp.Diff(before, a.box.interfaces(t), cmp.Comparer(samePrefix)); diff != "" {
		t.Errorf("the container's interfaces changed (-before +after):\n%s", diff)
	}
	if heldAfter, ok := s.held(t); ok && !slices.Equal(heldBefore, heldAfter) {
		t.Errorf("held addresses were %v, now %v", heldBefore, heldAfter)
	}
	if atLeast(s.newest(), "0.4.0") {
		if err := a.check(t.Context()); err != nil {
			t.Errorf("CHECK of the first ADD fails after the second: %v", err)
		}
	}
}

func sameAddr(a, b netip.Addr) bool     { return a == b }
func samePrefix(a, b netip.Prefix) bool { return a == b }

func testAddAfterDel(t *testing.T, s *suite) {
	a := s.eth0(t)
	for range 2 {
		a.mustAdd(t)
		a.mustDel(t)
	}
	compareResult(t, a, a.mustAdd(t))
}

func testTwoInterfaces(t *testing.T, s *suite) {
	c := s.newContainer(t)
	eth0, net1 := s.attach(t, c, "eth0", s.newest()), s.attach(t, c, "net1", s.newest())
	first, second := eth0.mustAdd(t), net1.mustAdd(t)
	for _, addr := range addresses(second) {
		if slices.Contains(addresses(first), addr) {
			t.Errorf("both interfaces have %s", addr)
		}
	}
	compareResult(t, eth0, first)
	if got, ok := c.interfaceNamed(t, "net1"); !ok || !got.Up || !slices.Equal(got.Addrs, prefixes(second)) {
		t.Errorf("net1 is %+v, want it up with %v", got, prefixes(second))
	}
	net1.mustDel(t)
	if !eventually(t.Context(), func() bool { _, there := c.interfaceNamed(t, "net1"); return !there }) {
		t.Error("net1 is still there after its DEL")
	}
	s.wantReleased(t, addresses(second))
	if got, ok := c.interfaceNamed(t, "eth0"); !ok || !slices.Equal(got.Addrs, prefixes(first)) {
		t.Errorf("after the DEL of net1, eth0 is %+v, want it with %v", got, prefixes(first))
	}
	if atLeast(s.newest(), "0.4.0") {
		if err := eth0.check(t.Context()); err != nil {
			t.Errorf("CHECK of eth0 fails after the DEL of net1: %v", err)
		}
	}
}

func testParallelAdds(t *testing.T, s *suite) {
	var all []*attachment
	for range parallelAdds {
		all = append(all, s.eth0(t))
	}
	results, errs := make([]*types100.Result, len(all)), make([]error, len(all))
	inParallel(all, func(i int, a *attachment) { results[i], errs[i] = a.add(t.Context()) })
	owner := map[netip.Addr]string{}
	var given []netip.Addr
	for i, a := range all {
		if errs[i] != nil {
			t.Errorf("ADD of %s: %v", a.box.id, errs[i])
			continue
		}
		for _, addr := range addresses(results[i]) {
			if other, ok := owner[addr]; ok {
				t.Errorf("%s was given to %s and to %s", addr, other, a.box.id)
			}
			owner[addr] = a.box.id
			given = append(given, addr)
		}
		if got, ok := a.box.interfaceNamed(t, "eth0"); !ok || !slices.Equal(got.Addrs, prefixes(results[i])) {
			t.Errorf("eth0 of %s is %+v, want %v", a.box.id, got, prefixes(results[i]))
		}
	}
	inParallel(all, func(i int, a *attachment) { errs[i] = a.del(t.Context()) })
	for i, err := range errs {
		if err != nil {
			t.Errorf("DEL of %s: %v", all[i].box.id, err)
		}
	}
	s.wantReleased(t, given)
}

func inParallel(all []*attachment, do func(int, *attachment)) {
	var wg sync.WaitGroup
	for i, a := range all {
		wg.Go(func() { do(i, a) })
	}
	wg.Wait()
}
