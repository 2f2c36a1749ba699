package attacks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// The pods of an arena: the attacker and its victims.
const (
	mallory = "arena/mallory" // on node-1
	near    = "arena/near"    // on node-1
	far     = "arena/far"     // on node-2
)

// arena is a lab with an attacker's pod and victims near and far.
type arena struct {
	*labtest.Lab
	t     testing.TB
	mint  *mint
	addrs map[string][]netip.Addr // of pods and nodes
}

const arenaManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: arena}
---
apiVersion: v1
kind: Pod
metadata: {name: mallory, namespace: arena}
spec: {nodeName: node-1, containers: [{name: c, ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: near, namespace: arena}
spec: {nodeName: node-1, containers: [{name: c, ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: arena}
spec: {nodeName: node-2, containers: [{name: c, ports: [{containerPort: 80}]}]}
`

// newArena readies the shared lab for one test.
func newArena(t *testing.T) *arena {
	t.Helper()
	a := &arena{Lab: shared.Get(t), t: t, mint: &mint{}, addrs: map[string][]netip.Addr{}}
	if _, err := labtest.TryGet[datastore.Object](a.Lab, datastore.KindPod, mallory); err != nil {
		a.Apply(arenaManifest)
	}
	for _, pod := range a.WaitPods() {
		name := pod.Namespace + "/" + pod.Name
		for _, ip := range pod.Status.PodIPs {
			a.addrs[name] = append(a.addrs[name], netip.MustParseAddr(ip.IP))
		}
	}
	for _, n := range a.Status().Nodes {
		for _, p := range n.Addresses {
			a.addrs[n.Name] = append(a.addrs[n.Name], p.Addr())
		}
	}
	for _, name := range []string{mallory, near, far, "node-1", "node-2"} {
		if len(a.addrs[name]) != 2 {
			t.Fatalf("%s has the addresses %v, want one of each family", name, a.addrs[name])
		}
	}
	return a
}

// with is the same arena for a subtest.
func (a *arena) with(t testing.TB) *arena {
	return &arena{Lab: a.Lab.With(t), t: t, mint: a.mint, addrs: a.addrs}
}

// later runs a command when the test ends.
func (a *arena) later(where string, command ...string) {
	a.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
		defer cancel()
		if out, err := a.TryExec(ctx, where, command...); err != nil || out.Exit != 0 {
			a.t.Errorf("%s: %q: %v %s", where, command, err, out)
		}
	})
}

// addr is the address of a pod or node, in the family of like.
func (a *arena) addr(name string, is4 bool) netip.Addr {
	a.t.Helper()
	for _, x := range a.addrs[name] {
		if x.Is4() == is4 {
			return x
		}
	}
	a.t.Fatalf("%s has no address of that family: %v", name, a.addrs[name])
	return netip.Addr{}
}

// place opens the network namespace of a pod ("NAMESPACE/NAME"), a node, or a space.
func (a *arena) place(name string) place {
	a.t.Helper()
	path, dev := "", "eth0"
	s := a.Status()
	for _, n := range s.Nodes {
		if n.Name == name {
			path = fmt.Sprintf("/proc/%d/ns/net", n.Pid)
		}
		for _, p := range n.State.Pods {
			if p.Namespace+"/"+p.Name == name {
				path = filepath.Join("/proc", fmt.Sprint(n.Pid), "root/run/netns", p.Netns)
			}
		}
	}
	for _, x := range s.Spaces {
		if x.Name == name {
			path = x.Path
		}
	}
	if name == "router" {
		dev = "segment-1" // its interface in the nodes' segment
	}
	ns, err := os.Open(path)
	if err != nil {
		a.t.Fatalf("open the network namespace of %s: %v", name, err)
	}
	a.t.Cleanup(func() { _ = ns.Close() })
	p := place{name: name, ns: ns, dev: dev}
	if err := netspace.Do(ns, func() error {
		link, err := net.InterfaceByName(dev)
		if err == nil {
			copy(p.mac[:], link.HardwareAddr)
		}
		return err
	}); err != nil {
		a.t.Fatalf("find %s in %s: %v", dev, name, err)
	}
	return p
}

// watchers are taps at all the places where a forged packet could turn up, by name:
// pods and the outside for whatever comes in, nodes for what their own sockets get.
func (a *arena) watchers() map[string][]*tap {
	out := map[string][]*tap{}
	for _, name := range []string{near, far, "outside"} {
		out[name] = append(out[name], a.place(name).listen(a.t))
	}
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		out[name] = a.place(name).listenLocal(a.t)
	}
	return out
}

func count(taps []*tap, k token) int {
	n := 0
	for _, t := range taps {
		n += t.Got(k)
	}
	return n
}

// drops are the packets that a node's agent says were dropped, by reason.
func (a *arena) drops(node string) map[string]uint64 {
	a.t.Helper()
	return labtest.AdminGet[admin.Status](a.Lab, node, "/v1/status").Drops
}

// attack is a packet that must not be delivered.
type attack struct {
	name string
	// frames, each of which bears the token.
	frames func(token) [][]byte
	// node and reason of the counter that must rise; empty where the kernel itself
	// or a missing route does the work.
	node, reason string
}

// reasonOf is the counter of what the planes notice at different places: linux, or ovs.
func (a *arena) reasonOf(linux, ovs string) string {
	if a.OVS() {
		return ovs
	}
	return linux
}

// repeats is how often each forged packet is sent.
const repeats = 3

// repel sends attacks from one place and fails if anything is delivered, if the
// control packet that follows each is not, or if a counter does not rise.
func (a *arena) repel(from *injector, control func(token) []byte, controlAt string, attacks []attack) {
	a.t.Helper()
	taps := a.watchers()
	for _, x := range attacks {
		var before uint64
		if x.reason != "" {
			before = a.drops(x.node)[x.reason]
		}
		forged := a.mint.Next()
		for range repeats {
			from.Send(a.t, x.frames(forged)...)
		}
		a.arrives(from, control, taps[controlAt], fmt.Sprintf("the control packet behind %q does not arrive at %s", x.name, controlAt))
		if x.reason != "" {
			labtest.Eventually(a.t, 5*time.Second, func() error {
				if n := a.drops(x.node)[x.reason] - before; n < repeats {
					return fmt.Errorf("%s: the counter %q of %s rose by %d, want at least %d", x.name, x.reason, x.node, n, repeats)
				}
				return nil
			})
		}
		for where, t := range taps {
			if n := count(t, forged); n != 0 {
				a.t.Errorf("%s: %d packets were delivered at %s", x.name, n, where)
			}
		}
	}
	a.t.Logf("%d attacks, %d packets each: none delivered", len(attacks), repeats)
}

// arrives sends a packet until a tap sees it.
func (a *arena) arrives(from *injector, packet func(token) []byte, at []*tap, otherwise string) {
	a.t.Helper()
	k := a.mint.Next()
	labtest.Eventually(a.t, 5*time.Second, func() error {
		from.Send(a.t, packet(k))
		if count(at, k) == 0 {
			return errors.New(otherwise)
		}
		return nil
	})
}

// fromPod is a UDP packet in the frame that a pod sends.
func (i *injector) fromPod(src, dst netip.Addr, dport uint16, k token) []byte {
	return frame(claims.GatewayMAC, i.mac, ip(src, dst, protoUDP, udp(src, dst, 40000, dport, []byte(k))))
}

// tunnelAddr is a node's own address in the default Subnet: that of its IPBlock's
// allocations which is the node's.
func (a *arena) tunnelAddr(node string, is4 bool) netip.Addr {
	a.t.Helper()
	for _, b := range labtest.List[*v1alpha1.IPBlock](a.Lab, datastore.KindIPBlock) {
		for text, owner := range b.Spec.Allocations {
			addr := netip.MustParseAddr(text)
			if addr.Is4() == is4 && b.Spec.Subnet == "default" && owner.Name == "node/"+node+"/tunnel" {
				return addr
			}
		}
	}
	a.t.Fatalf("no block says which address %s has in its Subnet", node)
	return netip.Addr{}
}

// vni is that of the default VPC.
func (a *arena) vni() packet.VNI {
	a.t.Helper()
	v := labtest.Get[*v1alpha1.VPC](a.Lab, datastore.KindVPC, "default")
	if v.Status.VNI == 0 {
		a.t.Fatal("the default VPC has no VNI")
	}
	return packet.VNI(v.Status.VNI)
}
