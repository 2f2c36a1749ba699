package supervisor

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/lab/fabric"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/lab/topology"
)

// OutsidePorts are the ports of the server on the outside host.
func OutsidePorts() []probe.Port {
	return []probe.Port{{Protocol: "TCP", Number: 80}, {Protocol: "UDP", Number: 80}, {Protocol: "UDP", Number: 53}}
}

// network is everything of the lab that is no process.
type network struct {
	fabric                   *fabric.Fabric
	router, outside, control *os.File
	server                   *probe.Server
}

// buildNetwork makes the bridges, the router between them, the outside host and the
// namespace of the control plane.
func buildNetwork(plan *topology.Plan, mtu int) (*network, error) {
	f, err := fabric.New(mtu)
	if err != nil {
		return nil, err
	}
	n := &network{fabric: f}
	for _, ns := range []struct {
		file   **os.File
		router bool
	}{{&n.router, true}, {&n.outside, false}, {&n.control, false}} {
		if *ns.file, err = netspace.New(); err != nil {
			return nil, err
		}
		if err := fabric.Prepare(*ns.file, ns.router); err != nil {
			return nil, err
		}
	}
	for _, s := range plan.Segments {
		if err := n.addSegment(s, plan); err != nil {
			return nil, fmt.Errorf("segment %s: %w", s.Name, err)
		}
	}
	for _, h := range []struct {
		host topology.Host
		ns   *os.File
	}{{plan.Outside, n.outside}, {plan.Control, n.control}} {
		if err := f.Attach(h.host.Segment, port(h.host.Name), "eth0", h.host.MAC, fabric.Target{NS: h.ns}); err != nil {
			return nil, err
		}
		if err := fabric.Configure(h.ns, iface(h.host)); err != nil {
			return nil, err
		}
	}
	lo := fabric.Interface{Name: "lo"}
	for _, p := range topology.Internet() {
		if viaOutside(p, plan).IsValid() {
			lo.Addresses = append(lo.Addresses, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
		}
	}
	if err := fabric.Configure(n.outside, lo); err != nil {
		return nil, err
	}
	n.server, err = probe.Serve(n.outside, "outside", OutsidePorts())
	return n, err
}

func (n *network) addSegment(s topology.Segment, plan *topology.Plan) error {
	if err := n.fabric.AddBridge(s.Name); err != nil {
		return err
	}
	if err := n.fabric.Attach(s.Name, "rt-"+s.Name, s.Name, packet.MAC{}, fabric.Target{NS: n.router}); err != nil {
		return err
	}
	i := fabric.Interface{Name: s.Name, Addresses: s.Router, Routes: map[netip.Prefix]netip.Addr{}}
	if s.Name == plan.Outside.Segment {
		for _, p := range topology.Internet() {
			if via := viaOutside(p, plan); via.IsValid() {
				i.Routes[p.Masked()] = via
			}
		}
	}
	return fabric.Configure(n.router, i)
}

// viaOutside is the outside host's address of p's family, if it has one.
func viaOutside(p netip.Prefix, plan *topology.Plan) netip.Addr {
	for _, a := range plan.Outside.Addrs() {
		if a.Is4() == p.Addr().Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// spaces says where the host finds the namespaces that have no process.
func (n *network) spaces(pid int) []spec.Space {
	out := []spec.Space{{Name: "fabric", Path: fmt.Sprintf("/proc/%d/ns/net", pid)}}
	for _, s := range []struct {
		name string
		file *os.File
	}{{"router", n.router}, {"outside", n.outside}, {"control", n.control}} {
		out = append(out, spec.Space{Name: s.name, Path: fmt.Sprintf("/proc/%d/fd/%d", pid, s.file.Fd())})
	}
	return out
}

func port(host string) string { return "port-" + host }

func iface(h topology.Host) fabric.Interface {
	return fabric.Interface{Name: "eth0", Addresses: h.Addresses, Gateways: h.Gateways}
}
