package conformance

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
)

func delCases() []testCase {
	return []testCase{
		{"DEL removes the interface and releases the address", "", testDelRemoves},
		{"DEL twice succeeds", "", testDelTwice},
		{"DEL without ADD succeeds", "", testDelWithoutAdd},
		{"DEL succeeds without CNI_NETNS", "", func(t *testing.T, s *suite) { testDelNamespaceGone(t, s, "") }},
		{"DEL succeeds when the namespace is gone", "", func(t *testing.T, s *suite) { testDelNamespaceGone(t, s, "/run/netns/there-is-no-such-namespace") }},
		{"DEL leaves other containers alone", "", testDelLeavesOthers},
	}
}

func testDelRemoves(t *testing.T, s *suite) {
	// The first attachment of a node may make what stays, such as a bridge.
	other := s.eth0(t)
	other.mustAdd(t)
	before, err := s.nodeInterfaces()
	if err != nil {
		t.Fatalf("list the node's interfaces: %v", err)
	}
	a := s.eth0(t)
	result := a.mustAdd(t)
	a.mustDel(t)
	// The kernel, or a daemon, may need some time after the answer.
	if !eventually(t.Context(), func() bool { return len(a.box.interfaces(t)) == 0 }) {
		t.Errorf("after DEL the container has %+v", a.box.interfaces(t))
	}
	s.wantReleased(t, addresses(result))
	var after []string
	// What is missing was left by an earlier case and is gone only now.
	if !eventually(t.Context(), func() bool {
		after, err = s.nodeInterfaces()
		return err == nil && !slices.ContainsFunc(after, func(name string) bool { return !slices.Contains(before, name) })
	}) {
		t.Errorf("the node's interfaces were %q before ADD and are %q after DEL (%v)", before, after, err)
	}
}

func testDelTwice(t *testing.T, s *suite) {
	a := s.eth0(t)
	a.mustAdd(t)
	prev, err := a.cni.GetNetworkListCachedResult(a.list, a.rt)
	if err != nil || prev == nil {
		t.Fatalf("libcni has no result of the ADD: %v", err)
	}
	a.mustDel(t)
	a.mustDel(t) // without prevResult, libcni has dropped it
	if !atLeast(s.newest(), "0.4.0") {
		return
	}
	conf := s.mustConfig(t, 0, s.newest(), map[string]any{"prevResult": prev})
	out, err := s.execute(t.Context(), 0, conf, a.environment("DEL"))
	if err != nil || out.exit != 0 {
		t.Errorf("a third DEL, with prevResult: exit status %d (%v), stdout %s", out.exit, err, out.stdout)
	}
}

func testDelWithoutAdd(t *testing.T, s *suite) {
	a := s.eth0(t)
	a.mustDel(t)
	// The kernel, or a daemon, may need some time after the answer.
	if !eventually(t.Context(), func() bool { return len(a.box.interfaces(t)) == 0 }) {
		t.Errorf("after DEL the container has %+v", a.box.interfaces(t))
	}
}

func testDelNamespaceGone(t *testing.T, s *suite, path string) {
	a := s.eth0(t)
	result := a.mustAdd(t)
	a.box.destroy(t)
	a.rt.NetNS = path
	a.mustDel(t)
	s.wantReleased(t, addresses(result))
	a.mustDel(t)
}

func testDelLeavesOthers(t *testing.T, s *suite) {
	kept, gone := s.eth0(t), s.eth0(t)
	result := kept.mustAdd(t)
	gone.mustAdd(t)
	gone.mustDel(t)
	compareResult(t, kept, result)
	if atLeast(s.newest(), "0.4.0") {
		if err := kept.check(t.Context()); err != nil {
			t.Errorf("CHECK of the other container: %v", err)
		}
	}
}

// environment is what libcni would set for a command.
func (a *attachment) environment(command string) environment {
	env := environment{
		"CNI_COMMAND": command, "CNI_CONTAINERID": a.rt.ContainerID, "CNI_NETNS": a.rt.NetNS, "CNI_IFNAME": a.rt.IfName,
	}
	for _, arg := range a.rt.Args {
		if env["CNI_ARGS"] != "" {
			env["CNI_ARGS"] += ";"
		}
		env["CNI_ARGS"] += arg[0] + "=" + arg[1]
	}
	return env
}

func checkCases() []testCase {
	const since = "0.4.0"
	return []testCase{
		{"CHECK succeeds after ADD", since, testCheck},
		{"CHECK notices a missing interface", since, testCheckInterface},
		{"CHECK notices a missing address", since, testCheckAddress},
		{"CHECK notices a missing route", since, testCheckRoute},
		{"CHECK notices a prevResult with another address", since, testCheckPrevResult},
	}
}

func testCheck(t *testing.T, s *suite) {
	for _, v := range s.versions {
		if !atLeast(v, "0.4.0") {
			continue
		}
		t.Run(v, func(t *testing.T) {
			a := s.attach(t, s.newContainer(t), "eth0", v)
			a.mustAdd(t)
			for range 2 {
				if err := a.check(t.Context()); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			}
		})
	}
}

// damaged attaches a container that passes CHECK, and calls damage on it.
func damaged(t *testing.T, s *suite, damage func(*netlink.Handle, netlink.Link, *types100.Result) error) *attachment {
	t.Helper()
	a := s.eth0(t)
	result := a.mustAdd(t)
	if err := a.check(t.Context()); err != nil {
		t.Fatalf("CHECK before any damage: %v", err)
	}
	handle := a.box.open(t)
	link, err := handle.LinkByName("eth0")
	if err == nil {
		err = damage(handle, link, result)
	}
	if err != nil {
		t.Fatalf("damage the container: %v", err)
	}
	return a
}

func testCheckInterface(t *testing.T, s *suite) {
	a := damaged(t, s, func(h *netlink.Handle, link netlink.Link, _ *types100.Result) error { return h.LinkDel(link) })
	err := a.check(t.Context())
	// A plugin that repairs its interfaces by itself may have been faster.
	if _, repaired := a.box.interfaceNamed(t, "eth0"); err != nil || !repaired {
		wantRefused(t, "CHECK without the interface", err)
	}
	a.mustDel(t)
}

func testCheckAddress(t *testing.T, s *suite) {
	families := 0
	for index := 0; index == 0 || index < families; index++ {
		a := damaged(t, s, func(h *netlink.Handle, link netlink.Link, r *types100.Result) error {
			families = len(r.IPs)
			t.Logf("remove %s", r.IPs[index].Address.String())
			return h.AddrDel(link, &netlink.Addr{IPNet: &r.IPs[index].Address})
		})
		wantRefused(t, "CHECK without the address", a.check(t.Context()))
	}
}

func testCheckRoute(t *testing.T, s *suite) {
	routes := 0
	for index := 0; index == 0 || index < routes; index++ {
		a := damaged(t, s, func(h *netlink.Handle, link netlink.Link, r *types100.Result) error {
			if routes = len(r.Routes); routes == 0 {
				return nil
			}
			t.Logf("remove the route to %s", r.Routes[index].Dst.String())
			return h.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &r.Routes[index].Dst})
		})
		if routes == 0 {
			t.Skip("not claimed by the plugin: the result of ADD lists no route")
		}
		wantRefused(t, "CHECK without the route", a.check(t.Context()))
	}
}

func testCheckPrevResult(t *testing.T, s *suite) {
	a := s.eth0(t)
	result := a.mustAdd(t)
	changed, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	var prev map[string]any
	if err := json.Unmarshal(changed, &prev); err != nil {
		t.Fatal(err)
	}
	check := func() output {
		prev["cniVersion"] = s.newest()
		if !atLeast(s.newest(), "1.0.0") {
			for i, ip := range prev["ips"].([]any) {
				ip.(map[string]any)["version"] = map[bool]string{true: "4", false: "6"}[addresses(result)[i].Is4()]
			}
		}
		out, err := s.execute(t.Context(), 0, s.mustConfig(t, 0, s.newest(), map[string]any{"prevResult": prev}), a.environment("CHECK"))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := check(); out.exit != 0 {
		t.Fatalf("CHECK with the true prevResult: exit status %d, %s", out.exit, out.stdout)
	}
	address := prefixOf(&result.IPs[0].Address)
	other := netip.PrefixFrom(address.Addr().Next(), address.Bits())
	prev["ips"].([]any)[0].(map[string]any)["address"] = other.String()
	if _, err := refusalOf(check()); err != nil {
		t.Errorf("CHECK with %s in place of %s in prevResult: %v", other, address, err)
	}
}
