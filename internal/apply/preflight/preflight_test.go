package preflight

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// find returns one of the checks.
func find(t *testing.T, checks []Check, name string) Check {
	t.Helper()
	for _, c := range checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("there is no check %q in %+v", name, checks)
	return Check{}
}

func write(t *testing.T, dir string, names ...string) string {
	t.Helper()
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A namespace of its own is a host where the kernel has what it needs and nothing stands in
// the way.
func TestHost(t *testing.T) {
	ns := netnstest.New(t)
	options := Options{
		Subnets: prefixes("10.244.0.0/16", "fd00:10::/64"), Services: prefixes("10.96.0.0/12"),
		ConfDir: t.TempDir(), ConfFile: "10-fairlead.conflist", BPFDir: "/sys/fs/bpf/fairlead",
	}
	run := func() (out []Check) {
		t.Helper()
		if err := ns.Do(func() error { out = Run(options); return nil }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	checks := run()
	for _, name := range []string{"root", "veth", "vxlan", "nftables", "conntrack", "bpf", "port 4789/UDP", "CNI configurations", "prefixes", "routes"} {
		if c := find(t, checks, name); c.State != OK {
			t.Errorf("%+v", c)
		}
	}
	if c := find(t, checks, "underlay"); c.State != Warning || !strings.Contains(c.Found, "no default route") {
		t.Errorf("%+v", c)
	}

	// Now all of it stands in the way.
	write(t, options.ConfDir, "00-other.conflist", "README", "99-late.conf")
	var busy net.PacketConn
	if err := ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "eth0", 1300
		link := &netlink.Veth{LinkAttrs: attrs, PeerName: "other0"}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		address, err := netlink.ParseAddr("10.244.7.1/24")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		own := &net.IPNet{IP: net.IPv4(10, 244, 9, 0), Mask: net.CIDRMask(26, 32)}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Dst: own, Protocol: claims.RouteProtocol}); err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Gw: net.IPv4(10, 244, 7, 254)}); err != nil {
			return err
		}
		busy, err = net.ListenPacket("udp4", ":4789")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	checks = run()
	for name, want := range map[string]string{
		"port 4789/UDP":      "somebody has it",
		"CNI configurations": "00-other.conflist sorts before 10-fairlead.conflist",
		"routes":             "Subnet 10.244.0.0/16 overlaps 10.244.7.0/24, which the host reaches by eth0",
	} {
		c := find(t, checks, name)
		if c.State != Missing || !strings.Contains(c.Found, want) || c.Next == "" {
			t.Errorf("%+v, want %q", c, want)
		}
		if strings.Contains(c.Found, "10.244.9.0") {
			t.Errorf("a route of Fairlead's own is in the way: %+v", c)
		}
	}
	if c := find(t, checks, "underlay"); c.State != Warning || !strings.Contains(c.Found, "the MTU of eth0 is 1300") {
		t.Errorf("%+v", c)
	}

	// A tunnel in the kernel has no process that listens.
	_ = busy.Close()
	if err := ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "flannel.1"
		link := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: 4789}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}); err != nil {
		t.Fatal(err)
	}
	if c := find(t, run(), "port 4789/UDP"); c.State != Missing || !strings.Contains(c.Found, "the tunnel flannel.1") {
		t.Errorf("%+v", c)
	}
}

func TestPrefixes(t *testing.T) {
	for _, tt := range []struct {
		subnets, services []string
		state             State
		want              string
	}{
		{[]string{"10.0.0.0/16"}, []string{"10.96.0.0/12"}, OK, ""},
		{[]string{"10.100.0.0/16"}, []string{"10.96.0.0/12"}, Missing, "Subnet 10.100.0.0/16 overlaps the Services' 10.96.0.0/12"},
		{[]string{"10.0.0.0/8", "10.1.0.0/16"}, []string{"192.0.2.0/24"}, Missing, "Subnet 10.1.0.0/16 overlaps Subnet 10.0.0.0/8"},
		{[]string{"fd00::/48"}, []string{"fd00::/112", "10.96.0.0/12"}, Missing, "overlaps the Services' fd00::/112"},
		{nil, nil, Warning, "no Subnet"},
		{[]string{"10.0.0.0/16"}, nil, Warning, "the Services' range was not named"},
	} {
		if c := checkPrefixes(prefixes(tt.subnets...), prefixes(tt.services...)); c.State != tt.state || !strings.Contains(c.Found, tt.want) {
			t.Errorf("%v, %v: %+v, want %s and %q", tt.subnets, tt.services, c, tt.state, tt.want)
		}
	}
}

func TestConfigurations(t *testing.T) {
	const own = "10-fairlead.conflist"
	for _, tt := range []struct {
		name  string
		files []string
		state State
	}{
		{"ours alone", []string{own, "notes.txt", "00-x.conflist.bak"}, OK},
		{"one before", []string{own, "05-other.conf"}, Missing},
		{"one after", []string{"20-other.conflist"}, Warning},
	} {
		if c := checkConfigurations(write(t, t.TempDir(), tt.files...), own); c.State != tt.state {
			t.Errorf("%s: %+v", tt.name, c)
		}
	}
	if c := checkConfigurations(filepath.Join(t.TempDir(), "gone"), own); c.State != OK {
		t.Errorf("no directory: %+v", c)
	}
}

func TestKernels(t *testing.T) {
	for release, want := range map[[2]int]State{{4, 19}: Missing, {5, 9}: Missing, {5, 10}: Warning, {6, 8}: Warning, {6, 9}: OK, {7, 0}: OK} {
		if c := judgeKernel("x", release[0], release[1]); c.State != want {
			t.Errorf("%v: %+v, want %s", release, c, want)
		}
	}
}

func TestBPFDir(t *testing.T) {
	if c := checkBPFDir(filepath.Join(t.TempDir(), "a", "b")); c.State != Missing || !strings.Contains(c.Next, "mount -t bpf") {
		t.Errorf("%+v", c)
	}
}

// Who may not try is told so; nothing is called well.
func TestWithoutRoot(t *testing.T) {
	for _, c := range features(false) {
		if c.State != Missing || !strings.Contains(c.Found, "needs root") {
			t.Errorf("%+v", c)
		}
	}
}
