package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
	"github.com/fairlead-sdn/fairlead/test/lab/wire"
)

// tenantNames are namespaces of one VPC that isolates tenants.
var tenantNames = []string{"tenant-a", "tenant-b", "tenant-c", "tenant-d"}

func tenantScene() string {
	var out strings.Builder
	out.WriteString(`
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: tenants}
spec: {isolation: Tenant, namespaces: {matchLabels: {vpc: tenants}}}
---
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: tenants}
spec: {vpc: tenants, cidrs: [10.91.0.0/16, "fd00:91::/48"]}
`)
	for _, name := range tenantNames {
		out.WriteString(namespace(name, "vpc: tenants"))
		out.WriteString(pod(name, "one", "node-1", "app: one", "80/UDP") + pod(name, "two", "node-2", "app: two", "80/UDP"))
	}
	return out.String()
}

// P7: tenants join, are isolated and made global in any order.
func TestScenarioP7(t *testing.T) { tenantWalk(t, 12, 7) }

// The same, for longer and by another order.
func TestScenarioP7Long(t *testing.T) {
	labtest.Long(t)
	tenantWalk(t, 80, 77)
}

func tenantWalk(t *testing.T, steps int, seed uint64) {
	c := newCluster(t)
	members := c.scene(tenantScene())
	for _, name := range tenantNames {
		labtest.Eventually(t, labtest.Patience, func() error {
			_, err := labtest.TryGet[datastore.Object](c.Lab, datastore.KindNetNamespace, name)
			return err
		})
	}
	limit := labtest.Limit(t, enforced)
	questions := table(members)
	random := rand.New(rand.NewPCG(seed, seed))
	var slowest time.Duration
	seen := map[int]bool{}
	for range steps {
		args := []string{[]string{"join", "join", "isolate", "isolate", "isolate", "global"}[random.IntN(6)]}
		order := random.Perm(len(tenantNames))
		args = append(args, tenantNames[order[0]])
		if args[0] == "join" {
			args = append(args, tenantNames[order[1]])
		}
		c.cli(append([]string{"tenant"}, args...)...)
		took, allowed := c.agreeOn(questions, limit)
		slowest, seen[allowed] = max(slowest, took), true
		t.Logf("%s: %d of %d reach each other, %s after it", strings.Join(args, " "), allowed, len(questions), took.Round(time.Millisecond))
	}
	if len(seen) < 3 {
		t.Errorf("only %d different tables: the test tests little", len(seen))
	}
	t.Logf("the slowest step of %d was in force after %s", steps, slowest.Round(time.Millisecond))
	c.wrongVNIs(members)
}

// wrongVNIs sends what a peer could: packets out of the tunnel from a pod of node-2 to
// each pod of node-1, with every VNI of the VPC, and others. What is delivered bears
// the tenant of the receiver, the VPC's (global ones and nodes), or is for a global one.
func (c *cluster) wrongVNIs(members map[string]*member) {
	c.t.Helper()
	vpc := packet.VNI(labtest.Get[*v1alpha1.VPC](c.Lab, datastore.KindVPC, "tenants").Status.VNI)
	other := packet.VNI(labtest.Get[*v1alpha1.VPC](c.Lab, datastore.KindVPC, packet.DefaultVPC).Status.VNI)
	vnis := []packet.VNI{vpc, other, vpc ^ 1}
	tenants := map[string]*v1alpha1.NetNamespace{}
	for _, name := range tenantNames {
		n := labtest.Get[*v1alpha1.NetNamespace](c.Lab, datastore.KindNetNamespace, name)
		tenants[name] = n
		vnis = append(vnis, packet.VNI(n.Spec.VNI))
	}
	slices.Sort(vnis)
	vnis = slices.Compact(vnis)
	peer := newTunnelPeer(c, "node-2", "node-1")
	var mint wire.Mint
	delivered, dropped := 0, 0
	for _, name := range tenantNames {
		to, from := members[name+"/one"], members[name+"/two"]
		tap := wire.Listen(c.t, to.ns, to.key.String())
		for _, is4 := range []bool{true, false} {
			for _, vni := range vnis {
				own := tenants[name]
				want := vni == vpc || vni == packet.VNI(own.Spec.VNI) && !own.Spec.Global
				if own.Spec.Global {
					// It hears every tenant of the VPC.
					want = vni == vpc || slices.ContainsFunc(tenantNames, func(n string) bool { return packet.VNI(tenants[n].Spec.VNI) == vni })
				}
				k := mint.Next()
				peer.send(c.t, vni, from.addr(is4), to.addr(is4), k)
				// A packet behind it that arrives for sure.
				control := mint.Next()
				labtest.Eventually(c.t, labtest.Patience, func() error {
					peer.send(c.t, vpc, from.addr(is4), to.addr(is4), control)
					if tap.Got(control) == 0 {
						return fmt.Errorf("what bears the VPC's VNI does not arrive at %s", to.key)
					}
					return nil
				})
				if got := tap.Got(k) > 0; got != want {
					c.t.Errorf("VNI %d to %s (VNI %d, global %t; the VPC's is %d): delivered is %t, want %t", vni, to.key, own.Spec.VNI, own.Spec.Global, vpc, got, want)
				}
				if want {
					delivered++
				} else {
					dropped++
				}
			}
		}
	}
	c.t.Logf("packets out of the tunnel with %d VNIs: %d delivered, %d dropped", len(vnis), delivered, dropped)
	if delivered == 0 || dropped == 0 {
		c.t.Error("no difference was made")
	}
}

// tunnelPeer sends VXLAN as a node does, with any VNI.
type tunnelPeer struct {
	*wire.Injector
	from, to       netip.Addr
	src, dst, vtep packet.MAC
	// port of the next packet's source: each is a flow of its own.
	port uint16
}

func newTunnelPeer(c *cluster, from, to string) *tunnelPeer {
	c.t.Helper()
	p := &tunnelPeer{port: 20000}
	for _, x := range []struct {
		node string
		addr *netip.Addr
		mac  *packet.MAC
	}{{from, &p.from, &p.src}, {to, &p.to, &p.dst}} {
		for _, a := range c.Node(x.node).Addresses {
			if a.Addr().Is4() {
				*x.addr = a.Addr()
			}
		}
		var err error
		text := c.MustExec(x.node, "cat", "/sys/class/net/eth0/address")
		if *x.mac, err = packet.ParseMAC(strings.TrimSpace(text)); err != nil {
			c.t.Fatal(err)
		}
	}
	var err error
	if p.vtep, err = packet.ParseMAC(labtest.Get[*v1alpha1.NodeNetwork](c.Lab, datastore.KindNodeNetwork, to).Spec.VTEPMAC); err != nil {
		c.t.Fatal(err)
	}
	ns, err := netspace.Open(fmt.Sprintf("/proc/%d/ns/net", c.Node(from).Pid))
	if err != nil {
		c.t.Fatal(err)
	}
	defer ns.Close()
	p.Injector = wire.Inject(c.t, ns, "eth0", from)
	return p
}

func (p *tunnelPeer) send(t testing.TB, vni packet.VNI, src, dst netip.Addr, k wire.Token) {
	t.Helper()
	inner := wire.IP(src, dst, wire.ProtoUDP, wire.UDP(src, dst, p.port, 81, []byte(k)))
	p.port++
	frame := wire.Frame(p.vtep, packet.MAC{2, 0, 0, 0, 0, 1}, inner)
	body := wire.UDP(p.from, p.to, 50000, claims.VXLANPort, wire.VXLAN(vni, frame))
	p.Send(t, wire.Frame(p.dst, p.src, wire.IP(p.from, p.to, wire.ProtoUDP, body)))
}
