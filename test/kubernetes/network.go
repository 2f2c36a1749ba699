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
	for bridge, segment := range map[string]netip.Prefix{"nodes": nodeSegment, "world": outsideSegment} {
		if err := f.AddBridge(bridge); err != nil {
			return err
		}
		if err := fabric.Configure(nil, fabric.Interface{Name: bridge, Addresses: []netip.Prefix{host(segment, 1)}}); err != nil {
			return err
		}
	}
	attach := func(name, bridge string, segment netip.Prefix, number int) error {
		ns := n.namespaces[name]
		if err := f.Attach(bridge, name, "eth0", packet.MAC{}, fabric.Target{NS: ns}); err != nil {
			return err
		}
		return fabric.Configure(ns, fabric.Interface{
			Name: "eth0", Addresses: []netip.Prefix{host(segment, number)}, Gateways: []netip.Addr{host(segment, 1).Addr()},
		})
	}
	if err := attach("outside", "world", outsideSegment, 2); err != nil {
		return err
	}
	if err := attach("control", "nodes", nodeSegment, 2); err != nil {
		return err
	}
	for i := 1; i <= nodes; i++ {
		if err := attach(nodeName(i), "nodes", nodeSegment, 10+i); err != nil {
			return err
		}
	}
	return nil
}
