package forwarding

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// further are a Subnet whose pods keep their addresses outside, and a VPC of its own.
const further = `
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: bare}
spec: {vpc: default, cidrs: [10.88.0.0/20, "fd00:88::/64"], natOutgoing: false, namespaces: {matchLabels: {subnet: bare}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: bare, labels: {subnet: bare}}
---
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: island}
spec: {namespaces: {matchLabels: {network: island}}}
---
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: island}
spec: {vpc: island, cidrs: [10.99.0.0/16, "fd00:99::/64"]}
---
apiVersion: v1
kind: Namespace
metadata: {name: island, labels: {network: island}}
---
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: tenants}
spec: {isolation: Tenant, namespaces: {matchLabels: {network: tenants}}}
---
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: tenants}
spec: {vpc: tenants, cidrs: [10.97.0.0/16, "fd00:97::/64"]}
---
apiVersion: v1
kind: Namespace
metadata: {name: team, labels: {network: tenants}}
`

// F5: packets take the documented path.
func TestScenarioF5Paths(t *testing.T) {
	l := up(t, lab.Options{Nodes: 2})
	l.Apply(further)
	l.Apply(pod("bare", "x", "node-1") + pod("island", "i1", "node-1") + pod("island", "i2", "node-2") + pod("team", "t1", "node-1") + pod("team", "t2", "node-2"))
	addPods(l, 2, nodes(l)...)
	nic := listenOn(t, inNode(t, l, "node-1"), "eth0")
	vni := func(vpc string) int64 { return int64(labtest.Get[*v1alpha1.VPC](l, datastore.KindVPC, vpc).Status.VNI) }
	team := int64(labtest.Get[*v1alpha1.NetNamespace](l, datastore.KindNetNamespace, "team").Spec.VNI)
	if team == 0 || team == vni("tenants") {
		t.Fatalf("the tenant's VNI is %d, that of its VPC %d", team, vni("tenants"))
	}
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			w := &walk{t: t, l: l.With(t), nic: nic, v6: v6}
			if l.OVS() {
				w.host = listenOn(t, inNode(t, l, "node-1"), claims.OVSHostPort)
			}
			w.sameNode()
			w.acrossNodes("a1", "b1", vni("default"))
			w.acrossNodes("island/i1", "island/i2", vni("island"))
			w.acrossNodes("team/t1", "team/t2", team)
			w.outside("a1", nodeAddress(w.l, "node-1", v6))
			w.outside("bare/x", addressOf(t, w.l, "bare/x", v6))
			w.fromNode()
		})
	}
}

// walk follows packets of one family on node-1.
type walk struct {
	t   *testing.T
	l   *labtest.Lab
	nic *capture
	v6  bool
	// host is the host's own port of the bridge, with Open vSwitch.
	host *capture
}

// atHost wants packets of an address to pass the host's own port, or not to, and none of
// them in a tunnel.
func (w *walk) atHost(what string, about netip.Addr, pass bool) {
	w.t.Helper()
	if w.host == nil {
		return
	}
	got := w.host.frames(w.t, about)
	if pass != (len(got) > 0) {
		w.t.Errorf("%s: the host's port saw %v, want some: %t", what, got, pass)
	}
	if slices.ContainsFunc(got, func(f *frame) bool { return f.inner != nil }) {
		w.t.Errorf("%s: the host's port saw VXLAN: %v", what, got)
	}
}

func qualified(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return "default/" + name
}

// ask sends over UDP and TCP from a pod, and returns what the NIC saw of it.
func (w *walk) ask(from, to string) []*frame {
	w.t.Helper()
	target := addressOf(w.t, w.l, to, w.v6)
	w.nic.frames(w.t, target)
	for _, network := range []string{"udp", "tcp"} {
		f, err := dial(inPod(w.t, w.l, from), network, netip.AddrPortFrom(target, port), qualified(to), netip.Addr{})
		if err != nil {
			w.t.Fatal(err)
		}
		f.ask()
		f.conn.Close()
		if f.trouble != "" {
			w.t.Error(f.trouble)
		}
	}
	return w.nic.frames(w.t, target)
}

func (w *walk) sameNode() {
	w.t.Helper()
	target := addressOf(w.t, w.l, "a2", w.v6)
	var ends []*capture // of the pods' links, on the node
	for _, name := range []string{"a1", "a2"} {
		ends = append(ends, listenOn(w.t, inNode(w.t, w.l, "node-1"), hostEnd(w.l, "node-1", name)))
	}
	if got := w.ask("a1", "a2"); len(got) > 0 {
		w.t.Errorf("traffic between pods of one node touched the NIC: %v", got)
	}
	for _, end := range ends {
		if got := end.frames(w.t, target); len(got) < 4 {
			w.t.Errorf("traffic between pods of one node does not pass both of their links: %v", got)
		}
	}
	w.atHost("between pods of one node", target, false)
}

func (w *walk) acrossNodes(from, to string, vni int64) {
	w.t.Helper()
	got := w.ask(from, to)
	if len(got) < 4 {
		w.t.Errorf("%s → %s: the NIC saw %d frames", from, to, len(got))
	}
	w.encapsulated(got, vni, addressOf(w.t, w.l, from, w.v6))
	w.atHost(from+" → "+to, addressOf(w.t, w.l, to, w.v6), false)
}

// encapsulated wants every frame to be as docs/wire.md says.
func (w *walk) encapsulated(got []*frame, vni int64, source netip.Addr) {
	w.t.Helper()
	here, there := nodeAddress(w.l, "node-1", false), nodeAddress(w.l, "node-2", false)
	macs := map[netip.Addr]string{}
	for node, other := range map[string]string{"node-1": "node-2", "node-2": "node-1"} {
		peers := labtest.AdminGet[[]admin.Peer](w.l, other, "/v1/peers")
		i := slices.IndexFunc(peers, func(p admin.Peer) bool { return p.Name == node })
		if i < 0 {
			w.t.Fatalf("%s does not know %s", other, node)
		}
		macs[nodeAddress(w.l, node, false)] = peers[i].VTEPMAC
	}
	for _, f := range got {
		switch {
		case f.inner == nil:
			w.t.Errorf("not encapsulated: %s", f)
		case int64(f.vni) != vni:
			w.t.Errorf("VNI %d, want %d: %s", f.vni, vni, f)
		case f.from != here && f.from != there || f.to != here && f.to != there || f.from == f.to:
			w.t.Errorf("the outer addresses are not those of the nodes: %s", f)
		case f.inner.srcMAC.String() != macs[f.from] || f.inner.dstMAC.String() != macs[f.to]:
			w.t.Errorf("the inner MACs are not those of the nodes' tunnels (%v): %s", macs, f)
		case f.from == here && f.inner.from != source:
			w.t.Errorf("the inner source is not %s: %s", source, f)
		}
	}
}

// outside wants the outside host to see a source address, unencapsulated.
func (w *walk) outside(from string, source netip.Addr) {
	w.t.Helper()
	target := outside4
	if w.v6 {
		target = outside6
	}
	w.nic.frames(w.t, target)
	f, err := dial(inPod(w.t, w.l, from), "udp", netip.AddrPortFrom(target, port), "outside", source)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.conn.Close()
	if _, err := f.conn.Write([]byte("?\n")); err != nil {
		w.t.Fatal(err)
	}
	var got []*frame
	labtest.Eventually(w.t, labtest.Patience, func() error {
		if got = append(got, w.nic.frames(w.t, target)...); len(got) == 0 {
			return fmt.Errorf("nothing of %s → outside came out of the NIC", from)
		}
		return nil
	})
	for _, g := range got {
		// An ICMP error is about an answer that came after its flow had ended.
		if g.inner == nil && g.from != target && g.proto == unix.IPPROTO_UDP && g.from != source {
			w.t.Errorf("%s went out as %s, want %s", from, g, source)
		}
	}
	if slices.ContainsFunc(got, func(g *frame) bool { return g.inner != nil }) {
		w.t.Errorf("%s → outside was encapsulated: %v", from, got)
	}
	w.atHost(from+" → outside", target, true)
}

// fromNode: a node reaches its own pods directly, and those of others through the
// tunnel with its own address of the Subnet.
func (w *walk) fromNode() {
	w.t.Helper()
	node := inNode(w.t, w.l, "node-1")
	local := addressOf(w.t, w.l, "a1", w.v6)
	w.nic.frames(w.t, local)
	tunnel := w.tunnelAddress()
	if err := reach(node, local, "default/a1", tunnel); err != nil {
		w.t.Error(err)
	}
	if got := w.nic.frames(w.t, local); len(got) > 0 {
		w.t.Errorf("node → own pod touched the NIC: %v", got)
	}
	w.atHost("node → own pod", local, true)
	remote := addressOf(w.t, w.l, "b1", w.v6)
	w.nic.frames(w.t, remote)
	if err := reach(node, remote, "default/b1", tunnel); err != nil {
		w.t.Error(err)
	}
	got := w.nic.frames(w.t, remote)
	if len(got) < 2 {
		w.t.Errorf("node → pod of another node: the NIC saw %v", got)
	}
	w.encapsulated(got, int64(labtest.Get[*v1alpha1.VPC](w.l, datastore.KindVPC, "default").Status.VNI), tunnel)
}

// tunnelAddress is node-1's own address in the default Subnet.
func (w *walk) tunnelAddress() netip.Addr {
	w.t.Helper()
	for _, o := range labtest.List[*v1alpha1.IPBlock](w.l, datastore.KindIPBlock) {
		for a, owner := range o.Spec.Allocations {
			addr, err := netip.ParseAddr(a)
			if err == nil && o.Spec.Subnet == "default" && owner.Name == "node/node-1/tunnel" && addr.Is6() == w.v6 {
				return addr
			}
		}
	}
	w.t.Fatal("node-1 has no address of its own in the default Subnet")
	return netip.Addr{}
}

// Without encapsulation the pods' packets are on the wire as they are.
func TestScenarioF5PathsWithoutEncapsulation(t *testing.T) {
	l := up(t, lab.Options{Nodes: 2, Encapsulation: "None"})
	addPods(l, 2, nodes(l)...)
	nic := listenOn(t, inNode(t, l, "node-1"), "eth0")
	for _, v6 := range []bool{false, true} {
		w := &walk{t: t, l: l, nic: nic, v6: v6}
		w.sameNode()
		got := w.ask("a1", "b1")
		if len(got) < 4 {
			t.Errorf("the NIC saw %d frames", len(got))
		}
		for _, f := range got {
			if f.inner != nil || f.from != addressOf(t, l, "a1", v6) && f.from != addressOf(t, l, "b1", v6) {
				t.Errorf("not a pod's own packet: %s", f)
			}
		}
		w.outside("a1", nodeAddress(l, "node-1", v6))
	}
}
