package main

import (
	"net/netip"
	"os"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/lab/fabric"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// network is the network namespaces of a cluster that is being made. They live on in the
// machines that are started in them.
type network struct {
	namespaces map[string]*os.File
}

func (n *network) close() {
	for _, f := range n.namespaces {
		f.Close()
	}
}

// buildNetwork makes a namespace for every machine and joins them.
func buildNetwork(nodes int) (*network, error) {
	n := &network{namespaces: map[string]*os.File{}}
	names := []string{"fabric", "outside", "control"}
	for i := 1; i <= nodes; i++ {
		names = append(names, nodeName(i))
	}
	for _, name := range names {
		ns, err := netspace.New()
		if err != nil {
			return n, err
		}
		n.namespaces[name] = ns
		if err := fabric.Prepare(ns, name == "fabric"); err != nil {
			return n, err
		}
	}
	return n, netspace.Do(n.namespaces["fabric"], func() error { return n.join(nodes) })
}

// join runs in the fabric.
func (n *network) join(nodes int) error {
	f, err := fabric.New(fabricMTU)
	if err != nil {
		return err
	}
	defer f.Close()
	segments := map[string][]netip.Prefix{"nodes": {nodeSegment, nodeSegment6}, "world": {outsideSegment, outsideSegment6}}
	for bridge, segment := range segments {
		if err := f.AddBridge(bridge); err != nil {
			return err
		}
		// A bridge that only forwards needs no addresses of its own; this one routes.
		if err := fabric.Sysctl("ipv6/conf/"+bridge+"/disable_ipv6", "0"); err != nil {
			return err
		}
		if err := fabric.Configure(nil, fabric.Interface{Name: bridge, Addresses: hosts(segment, 1)}); err != nil {
			return err
		}
	}
	attach := func(name, bridge string, number int) error {
		ns := n.namespaces[name]
		if err := f.Attach(bridge, name, "eth0", packet.MAC{}, fabric.Target{NS: ns}); err != nil {
			return err
		}
		var gateways []netip.Addr
		for _, g := range hosts(segments[bridge], 1) {
			gateways = append(gateways, g.Addr())
		}
		return fabric.Configure(ns, fabric.Interface{Name: "eth0", Addresses: hosts(segments[bridge], number), Gateways: gateways})
	}
	if err := attach("outside", "world", 2); err != nil {
		return err
	}
	if err := attach("control", "nodes", 2); err != nil {
		return err
	}
	for i := 1; i <= nodes; i++ {
		if err := attach(nodeName(i), "nodes", 10+i); err != nil {
			return err
		}
	}
	return nil
}

// hosts are the nth addresses of segments.
func hosts(segments []netip.Prefix, n int) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range segments {
		out = append(out, host(s, n))
	}
	return out
}
