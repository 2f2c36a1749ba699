package decide

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/decide/addressing"
	"github.com/fairlead-sdn/fairlead/internal/decide/policy"
	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

type ports struct {
	list []intent.Port
	// endpoints say of each port of the list whose it is.
	endpoints []policy.Endpoint
	problems  []world.Problem
}

// exclusive is what only one port may hold: an address of a VPC, or the name of a
// link on the host.
type exclusive struct {
	vpc  string
	addr netip.Addr
	link string
}

// decidePorts reads this node's attachments. The record is the truth: a port
// stays what it was made as until its pod is made anew, finished pods included.
func decidePorts(t *tenancy.Result, s *addressing.Subnets, attachments world.Table[*world.Attachment]) *ports {
	p := &ports{}
	holders := map[exclusive]string{} // → attachment
	byID := slices.SortedFunc(attachments.Values(), func(a, b *world.Attachment) int { return cmp.Compare(a.ID, b.ID) })
	for i, a := range byID {
		if i > 0 && byID[i-1].ID == a.ID {
			continue
		}
		port, ok := p.port(t, s, a)
		if ok && p.claim(holders, a, port) {
			p.list = append(p.list, port)
			p.endpoints = append(p.endpoints, policy.Endpoint{Port: port.ID, VPC: port.VPC, Pod: a.Pod})
		}
	}
	slices.SortFunc(p.problems, world.Problem.Compare)
	return p
}

// claim takes what only one port may hold, or says who has it.
func (p *ports) claim(holders map[exclusive]string, a *world.Attachment, port intent.Port) bool {
	wanted := []exclusive{{link: port.HostInterface}}
	for _, addr := range port.Addresses {
		wanted = append(wanted, exclusive{vpc: port.VPC, addr: addr})
	}
	for _, w := range wanted {
		if first, taken := holders[w]; taken {
			p.problem(a, "Duplicate", fmt.Sprintf("has an address or a link of the attachment %s: it has no network; make the pod anew", first))
			return false
		}
	}
	for _, w := range wanted {
		holders[w] = a.ID
	}
	return true
}

// port makes the port of an attachment, or says why there can be none.
func (p *ports) port(t *tenancy.Result, s *addressing.Subnets, a *world.Attachment) (intent.Port, bool) {
	sn, ok := s.Get(a.Subnet)
	if !ok {
		p.problem(a, "SubnetNotInUse", fmt.Sprintf("has its address from Subnet %s, which is not in use: it has no network; see the Subnet's conditions, or make the pod anew", a.Subnet))
		return intent.Port{}, false
	}
	vpc := cmp.Or(a.VPC, sn.VPC)
	if vpc != sn.VPC {
		p.problem(a, "SubnetMoved", fmt.Sprintf("was attached in VPC %s, and its Subnet %s is now in %s: it has no network; make the pod anew", vpc, sn.Name, sn.VPC))
		return intent.Port{}, false
	}
	addresses, fault := readAddresses(a.Addresses, sn)
	if fault != "" {
		p.problem(a, "InvalidAddress", fault+": it has no network; make the pod anew")
		return intent.Port{}, false
	}
	if home, known := t.VPCOf(a.Pod.Namespace); known && home != vpc {
		p.problem(a, "VPCChanged", fmt.Sprintf("its namespace is now in VPC %s, and it stays in %s until it is made anew: restart the pod", home, vpc))
	}
	vni, err := t.VNI(vpc, a.Pod.Namespace)
	if err != nil {
		p.problem(a, "NoTenant", "it has no network: "+err.Error())
		return intent.Port{}, false
	}
	port := intent.Port{
		ID: a.ID, VPC: vpc, VNI: vni, Netns: a.Netns, Interface: a.Interface, HostInterface: a.HostInterface,
		MAC: a.MAC, Addresses: addresses,
	}
	if a.Pod.Name != "" {
		port.Pod = podKey(a.Pod).String()
	}
	if port.HostInterface == "" {
		port.HostInterface = claims.PortName(a.ContainerID, a.Interface)
	}
	if port.MAC.IsZero() {
		port.MAC = packet.PodMAC(vpc, addresses[0])
	}
	return port, true
}

// readAddresses returns the addresses, IPv4 first, or what is wrong with them.
func readAddresses(addresses []netip.Addr, sn *addressing.Subnet) ([]netip.Addr, string) {
	if len(addresses) == 0 {
		return nil, "its record holds no address"
	}
	sorted := slices.Clone(addresses)
	slices.SortStableFunc(sorted, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	for i, addr := range sorted {
		if !slices.ContainsFunc(sn.CIDRs, func(c netip.Prefix) bool { return c.Contains(addr) }) {
			return nil, fmt.Sprintf("its address %s lies outside of Subnet %s", addr, sn.Name)
		}
		if i > 0 && sorted[i-1].BitLen() == addr.BitLen() {
			return nil, fmt.Sprintf("it has two addresses of one family, %s and %s", sorted[i-1], addr)
		}
	}
	return sorted, ""
}

// problem blames the pod, where there is one.
func (p *ports) problem(a *world.Attachment, reason, message string) {
	problem := world.Problem{Kind: world.KindAttachment, Key: world.Key{Name: a.ID}, Reason: reason, Message: message}
	if a.Pod.Name != "" && a.Pod.Namespace != "" {
		problem.Kind, problem.Key = world.KindPod, podKey(a.Pod)
	}
	p.problems = append(p.problems, problem)
}

func podKey(o world.Owner) world.Key { return world.Key{Namespace: o.Namespace, Name: o.Name} }
