package linuxplane

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/planetest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// node is a namespace that plays a node, with a NIC that is up.
type node struct {
	ns  *netns.NS
	out *netlink.Handle
	dir string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{ns: netnstest.New(t), dir: t.TempDir()}
	n.out = handle(t, n.ns)
	other := netnstest.New(t)
	err := n.out.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "nic"}, PeerName: "nic", PeerNamespace: netlink.NsFd(other.FD())})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []*netlink.Handle{handle(t, other), n.out} {
		nic, err := h.LinkByName("nic")
		if err == nil {
			err = h.LinkSetUp(nic)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	nic, err := n.out.LinkByName("nic")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range planetest.Node().Underlay {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
		if err := n.out.AddrAdd(nic, a); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func handle(t *testing.T, ns *netns.NS) *netlink.Handle {
	t.Helper()
	var h *netlink.Handle
	err := ns.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// mountBPF mounts a BPF file system of the test's own.
func mountBPF(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Skipf("cannot mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func (n *node) open(t *testing.T, bpfDir string) *Plane {
	t.Helper()
	p, err := Open(t.Context(), n.options(bpfDir))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (n *node) options(bpfDir string) Options {
	return Options{NS: n.ns, BPFDir: filepath.Join(bpfDir, "fairlead"), SavedSysctls: filepath.Join(n.dir, "sysctls.json"), FlowCache: true}
}

func TestContract(t *testing.T) {
	planetest.Run(t, func(t *testing.T) planetest.Harness {
		n := newNode(t)
		bpfDir := mountBPF(t)
		pods := map[string]*netns.NS{} // by path
		p := n.open(t, bpfDir)
		return planetest.Harness{
			Plane: p,
			Reopen: func(t *testing.T) apply.Plane {
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				p = n.open(t, bpfDir)
				return p
			},
			Netns: func(t *testing.T) string {
				ns := netnstest.New(t)
				pods[ns.String()] = ns
				loopbackUp(t, ns)
				netnstest.Serve(t, ns, 8080)
				return ns.String()
			},
			Break: func(t *testing.T, p intent.Port) func() {
				netnstest.Remove(t, p.Netns)
				return func() {}
			},
			Damage: n.damage,
			Probe: func(t *testing.T, from, _ intent.Port, addr netip.Addr, proto packet.Protocol) bool {
				_, err := netnstest.Probe(t.Context(), pods[from.Netns], strings.ToLower(proto.String()), netip.AddrPortFrom(addr, 8080))
				return err == nil
			},
		}
	})
}

// loopbackUp does what container runtimes do in a pod's namespace: it may talk to itself.
func loopbackUp(t *testing.T, ns *netns.NS) {
	t.Helper()
	h := handle(t, ns)
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatalf("set up the loopback of a pod: %v", err)
	}
}

// damage deletes the link of a port, or a route.
func (n *node) damage(t *testing.T, r intent.Ref) {
	t.Helper()
	if r.Kind == "Port" {
		i := slices.IndexFunc(allPorts(), func(p intent.Port) bool { return p.Ref() == r })
		l, err := n.out.LinkByName(allPorts()[i].HostInterface)
		if err == nil {
			err = n.out.LinkDel(l)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	_, dst, _ := strings.Cut(r.Name, " ")
	p := netip.MustParsePrefix(dst)
	err := n.out.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}})
	if err != nil {
		t.Fatal(err)
	}
}

func allPorts() []intent.Port {
	var out []intent.Port
	for i := 2; i < 31; i++ {
		out = append(out, planetest.Port(i, "/"))
	}
	return out
}

func TestUninstallLeavesNothing(t *testing.T) {
	n, dir := newNode(t), mountBPF(t)
	p := n.open(t, dir)
	desired := planetest.Node()
	desired.Ports = []intent.Port{planetest.Port(2, netnstest.New(t).String())}
	if r, err := p.Apply(t.Context(), desired, apply.Options{}); err != nil || len(r.Failed) > 0 {
		t.Fatal(err, r.Failed)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Uninstall(t.Context(), n.options(dir)); err != nil {
		t.Fatal(err)
	}
	if pins, err := os.ReadDir(n.options(dir).BPFDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pins after Uninstall: %v %v", pins, err)
	}
	p = n.open(t, dir)
	empty := intent.Node{Name: "n1"}
	links, err := p.links.Audit(t.Context(), linux.RenderState(empty))
	if err != nil || len(links) > 0 {
		t.Errorf("left after Uninstall: %v %v", links, err)
	}
	left, err := n.out.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range left {
		names = append(names, l.Attrs().Name)
	}
	if diff := cmp.Diff([]string{"lo", "nic"}, names); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

// fakes are a Filter and a Wire that remember the order of calls and can refuse.
type fakes struct {
	calls     []string
	filterErr error
	wireErr   error
	guardErr  error
	// attach is called while links get their programs.
	attach func()
	out    *netlink.Handle
}

// links tells which links are up when a call happens.
func (f *fakes) note(call string) {
	links, _ := f.out.LinkList()
	var up []string
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp != 0 && l.Attrs().Name != "nic" {
			up = append(up, l.Attrs().Name)
		}
	}
	slices.Sort(up)
	f.calls = append(f.calls, call+" with "+strings.Join(up, ",")+" up")
}

type fakeFilter struct{ *fakes }

func (f fakeFilter) Apply(context.Context, nftables.Table, apply.Options) ([]string, error) {
	f.note("filter")
	return nil, f.filterErr
}

func (f fakeFilter) Audit(context.Context, nftables.Table) ([]apply.Difference, error) {
	return nil, nil
}

func (f fakeFilter) Watch(ctx context.Context, _ func(apply.Foreign)) error {
	<-ctx.Done()
	return ctx.Err()
}
func (f fakeFilter) Delete(context.Context) error { return nil }
func (f fakeFilter) Close() error                 { return nil }

type fakeWire struct{ *fakes }

func (f fakeWire) Apply(context.Context, linux.Wire, apply.Options) ([]string, error) {
	f.note("maps")
	return nil, f.wireErr
}

func (f fakeWire) ApplyPorts(context.Context, []linux.Guard, apply.Options) ([]string, error) {
	f.note("ports")
	return nil, f.guardErr
}
func (f fakeWire) AuditPorts([]linux.Guard) ([]apply.Difference, error) { return nil, nil }
func (f fakeWire) AttachPort(int) ([]string, error) {
	if f.attach != nil {
		f.attach()
	}
	return nil, nil
}
func (f fakeWire) PortAttached(int) (bool, error)    { return true, nil }
func (f fakeWire) Cache(bool, int) ([]string, error) { return nil, nil }
func (f fakeWire) Invalidate() error                 { return nil }

func (f fakeWire) Attach(int) ([]string, error) {
	f.note("programs")
	return nil, nil
}
func (f fakeWire) Attached(int) (bool, error)                   { return true, nil }
func (f fakeWire) Audit(linux.Wire) ([]apply.Difference, error) { return nil, nil }
func (f fakeWire) Close() error                                 { return nil }

func newFake(t *testing.T) (*node, *fakes, *Plane) {
	t.Helper()
	n := newNode(t)
	f := &fakes{out: n.out}
	tracked, err := conntrack.Open(n.ns)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{
		NS: n.ns, Table: func(intent.Node, rendernft.Options) nftables.Table { return nftables.Table{} },
		Filter: fakeFilter{f}, Wire: fakeWire{f}, Flows: tracked,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return n, f, p
}

// Rules are there before a link is up, and as long as it is.
func TestRulesComeFirstAndGoLast(t *testing.T) {
	_, f, p := newFake(t)
	desired := planetest.Node()
	desired.Ports = []intent.Port{planetest.Port(2, netnstest.New(t).String()), planetest.Port(3, netnstest.New(t).String())}
	for _, ports := range [][]intent.Port{desired.Ports[:1], desired.Ports, desired.Ports[1:]} {
		desired.Ports = ports
		if r, err := p.Apply(t.Context(), desired, apply.Options{}); err != nil || len(r.Failed) > 0 {
			t.Fatal(err, r.Failed)
		}
	}
	if _, err := p.Apply(t.Context(), intent.Node{Name: "n1", MTU: 1430}, apply.Options{AddOnly: true}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"ports with  up", "filter with  up", "maps with  up", "programs with  up",
		// Where ports only join, their programs, which are for links that are not up yet, keep nobody waiting.
		"filter with fl.vxlan,flptest02 up", "maps with fl.vxlan,flptest02 up", "ports with fl.vxlan,flptest02 up",
		"ports with fl.vxlan,flptest03 up", "filter with fl.vxlan,flptest03 up", "maps with fl.vxlan,flptest03 up",
		"ports with fl.vxlan,flptest03 up", "filter with fl.vxlan,flptest03 up", "maps with fl.vxlan,flptest03 up",
	}
	if diff := cmp.Diff(want, f.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// Rules of what comes meanwhile do not wait for links, where they may come before.
func TestRulesComeAhead(t *testing.T) {
	_, f, p := newFake(t)
	ports := []intent.Port{planetest.Port(2, netnstest.New(t).String()), planetest.Port(3, netnstest.New(t).String()), planetest.Port(4, netnstest.New(t).String()), planetest.Port(5, netnstest.New(t).String())}
	with := func(ports ...intent.Port) intent.Node {
		n := planetest.Node()
		n.Ports = ports
		return n
	}
	ahead := func(n intent.Node, want int) {
		t.Helper()
		before := len(f.calls)
		_, err := p.Ahead(t.Context(), n)
		if got := len(f.calls) - before; got != want || (err != nil) != (f.filterErr != nil) {
			t.Errorf("%d calls, want %d: %v (%v)", got, want, f.calls[before:], err)
		}
	}
	step := func(n intent.Node, o apply.Options, meanwhile func()) {
		t.Helper()
		f.attach = meanwhile
		if r, err := p.Apply(t.Context(), n, o); err != nil || len(r.Failed) > 0 {
			t.Fatal(err, r.Failed)
		}
		f.attach = nil
		ahead(with(ports...), 0) // No Apply is under way.
	}
	ahead(with(ports...), 0)
	step(with(ports[:1]...), apply.Options{}, func() { ahead(with(ports[:2]...), 0) })              // The rules of the first come late.
	step(with(ports[:2]...), apply.Options{AddOnly: true}, func() { ahead(with(ports[:3]...), 0) }) // It may not know all that was there.
	step(with(ports[1:2]...), apply.Options{}, nil)                                                 // A port goes.
	step(with(ports[1:3]...), apply.Options{}, func() {
		ahead(with(ports[2:]...), 0) // A port that is here is not there.
		ahead(with(ports[1:]...), 2)
		ahead(with(ports[1:3]...), 0) // Nor is one that came ahead.
		f.filterErr = errors.New("refused")
		ahead(with(ports[1:]...), 2)
		f.filterErr = nil
		ahead(with(ports[1:]...), 0) // It is not known what is in force.
	})
	f.calls = nil
	step(with(ports[1:]...), apply.Options{}, nil)
	if len(f.calls) == 0 || !strings.HasPrefix(f.calls[0], "filter") {
		t.Errorf("calls %v, want the filter first: ports only join", f.calls)
	}
}

func TestNoRulesNoNetwork(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(*fakes, error)
	}{
		{"filter", func(f *fakes, err error) { f.filterErr = err }},
		{"maps", func(f *fakes, err error) { f.wireErr = err }},
		{"ports", func(f *fakes, err error) { f.guardErr = err }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, f, p := newFake(t)
			desired := planetest.Node()
			desired.Ports = []intent.Port{planetest.Port(2, netnstest.New(t).String())}
			refused := errors.New("refused")
			tc.set(f, refused)
			r, err := p.Apply(t.Context(), desired, apply.Options{})
			if !errors.Is(err, refused) || !errors.Is(r.Err(desired.Ports[0].Ref()), refused) {
				t.Errorf("apply: %v, port: %v; want both to say %q", err, r.Err(desired.Ports[0].Ref()), refused)
			}
			for _, name := range []string{claims.VXLANDevice, desired.Ports[0].HostInterface} {
				l, err := n.out.LinkByName(name)
				if err != nil || l.Attrs().Flags&net.FlagUp != 0 {
					t.Errorf("link %s is up without rules (%v)", name, err)
				}
			}
			tc.set(f, nil)
			if r, err := p.Apply(t.Context(), desired, apply.Options{}); err != nil || len(r.Failed) > 0 {
				t.Error(err, r.Failed)
			}
		})
	}
}

func TestProblemsOfTheIntentAreFailures(t *testing.T) {
	_, _, p := newFake(t)
	desired := planetest.Node()
	bad := planetest.Port(2, netnstest.New(t).String())
	bad.Interface = "../../../kernel"
	desired.Ports = []intent.Port{bad, planetest.Port(3, netnstest.New(t).String())}
	r, err := p.Apply(t.Context(), desired, apply.Options{})
	if err != nil || r.Err(bad.Ref()) == nil || len(r.Failed) != 1 {
		t.Errorf("apply: %v, failed %v, want the port with the bad name alone", err, r.Failed)
	}
}
