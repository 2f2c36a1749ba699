package ovs

import (
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// renderedPort is a port's flows and all that they were made of.
type renderedPort struct {
	port   intent.Port
	number of.Port
	vpc    vpc
	// ingress and egress are the numbers of its lists.
	ingress, egress uint32
	flows           []of.Flow
}

func (p renderedPort) same(o renderedPort) bool {
	return p.number == o.number && p.vpc == o.vpc && p.ingress == o.ingress && p.egress == o.egress && p.port.Equal(o.port)
}

// firstReserved is the first number that no port of ours may have.
const firstReserved of.Port = 0xff00

// ports adds the flows of pods. Of two ports that claim the same thing, the first by
// ID has it.
func (r *renderer) ports() {
	numbers := map[of.Port]string{r.gateway: claims.OVSHostPort, r.tunnel: claims.OVSTunnelPort}
	type place struct {
		vpc  string
		addr netip.Addr
	}
	addresses := map[place]string{}
	for _, ip := range r.node.Ports {
		number := r.numbers[ip.HostInterface]
		own, known := r.vpcs[ip.VPC]
		taken := slices.IndexFunc(ip.Addresses, func(a netip.Addr) bool { return addresses[place{ip.VPC, a}] != "" })
		switch {
		case !known:
			r.problem(ip.Ref(), "VPC %q is not among the VPCs", ip.VPC)
			continue
		case number == 0:
			r.problem(ip.Ref(), "the port %s has no number yet", ip.HostInterface)
			continue
		case number >= firstReserved:
			r.problem(ip.Ref(), "the port %s has the number %d, which stands for no port", ip.HostInterface, number)
			continue
		case numbers[number] != "":
			r.problem(ip.Ref(), "the port %s has the number %d, which is that of %s", ip.HostInterface, number, numbers[number])
			continue
		case ip.MAC.IsZero() || ip.MAC[0]&1 != 0:
			r.problem(ip.Ref(), "MAC address %s: want a unicast address", ip.MAC)
			continue
		case slices.ContainsFunc(ip.Addresses, func(a netip.Addr) bool { return !validHost(a) }):
			r.problem(ip.Ref(), "addresses %v: want unicast addresses", ip.Addresses)
			continue
		case taken >= 0:
			r.problem(ip.Ref(), "address %s is already that of %s", ip.Addresses[taken], addresses[place{ip.VPC, ip.Addresses[taken]}])
			continue
		}
		numbers[number] = ip.Ref().String()
		for _, a := range ip.Addresses {
			addresses[place{ip.VPC, a}] = ip.Ref().String()
		}
		p := renderedPort{port: ip, number: number, vpc: own, ingress: r.listNumber(ip.Ingress), egress: r.listNumber(ip.Egress)}
		if old, ok := r.prev.ports[ip.ID]; ok && old.same(p) {
			p = old
		} else {
			p.flows = p.render()
		}
		r.next.ports[ip.ID] = p
		r.part("port "+ip.ID, p.flows)
	}
}

func validHost(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback()
}

func (p renderedPort) render() []of.Flow {
	var w writer
	name := p.port.Ref().String()
	if p.port.Pod != "" {
		name += " of " + p.port.Pod
	}
	in := of.Eq(of.InPort, uint64(p.number))
	w.add(TableClassify, 10, name, when(in),
		load(Source, Pod), load(SourcePort, uint64(p.number)), load(SourceTenant, uint64(p.port.VNI)),
		load(VPC, uint64(p.vpc.vni)), load(Zone, uint64(p.vpc.zone)), load(EgressList, uint64(p.egress)), to(TableSpoof))
	for i, a := range p.port.Addresses {
		if slices.Contains(p.port.Addresses[:i], a) {
			continue
		}
		p.sends(&w, name, a)
		p.receives(&w, name, a)
	}
	w.add(TableEgressPeer, 1020, "to itself: "+name, when(is(SourcePort, uint64(p.number)), is(TargetPort, uint64(p.number))), to(TableCommit))
	w.add(TableDeliver, 10, name, when(is(TargetPort, uint64(p.number))),
		of.SetMAC(of.EthSrc, claims.GatewayMAC), of.SetMAC(of.EthDst, p.port.MAC),
		// A packet of the pod to itself could not go back otherwise.
		of.Set(of.InPort16, 0), of.Output{Port: p.number})
	return w
}

// sends adds what the port may send from an address.
func (p renderedPort) sends(w *writer, name string, a netip.Addr) {
	f := familyOf(a)
	from := []of.Term{of.Eq(of.InPort, uint64(p.number)), of.MAC(of.EthSrc, p.port.MAC)}
	w.add(TableSpoof, 10, name, when(append(from, of.MAC(of.EthDst, claims.GatewayMAC), f.ip, addr(f.src, a))...), to(TableSent))
	if f.is4 {
		w.add(TableSpoof, 20, "ARP of "+name, when(append(append(from, arpRequest()...), of.Addr(of.ARPSPA, a), of.MAC(of.ARPSHA, p.port.MAC))...), to(TableGateway))
	} else {
		w.add(TableSpoof, 20, "neighbour solicitation of "+name, when(append(append(from, solicitation()...), addr(of.IPv6Src, a), of.MAC(of.NDSLL, p.port.MAC))...), to(TableGateway))
	}
	for _, end := range []of.Field{f.ctSrc, f.ctDst} {
		w.add(TableErrors, 10, "ICMP error about a flow of "+name,
			when(is(SourcePort, uint64(p.number)), ctState(of.CTTracked|of.CTRelated, 0), judgedFlow(), f.ip, addr(end, a)), load(Judged, 1), to(TableRoute))
	}
}

// receives adds the way to an address of the port.
func (p renderedPort) receives(w *writer, name string, a netip.Addr) {
	f := familyOf(a)
	actions := []of.Action{load(Target, Pod), load(TargetPort, uint64(p.number)), load(IngressList, uint64(p.ingress))}
	if tenant := p.isolated(); tenant != 0 {
		actions = append(actions, load(TargetTenant, uint64(tenant)))
	}
	w.add(TableTrack, 30, "from the node itself to "+name, when(is(Source, Node), is(VPC, uint64(p.vpc.vni)), f.ip, addr(f.dst, a)), lookUp())
	w.add(TableRoute, routePriority(routeHere, netip.PrefixFrom(a, a.BitLen())), name,
		when(is(VPC, uint64(p.vpc.vni)), f.ip, addr(f.dst, a)), append(actions, to(TableWays))...)
}

// isolated is the port's tenant, 0 if it hears everybody in the VPC.
func (p renderedPort) isolated() packet.VNI {
	if p.port.VNI == p.vpc.vni {
		return 0
	}
	return p.port.VNI
}
