package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// attachShare is how much of what ovs-vsctl and ovs-ofctl take an attach may.
const attachShare = 0.3

// otherBridge is one beside ours, as a person would use it.
const otherBridge = "other"

// benchOVSSwitch compares what the plane does to Open vSwitch with the programs for people.
func benchOVSSwitch(ctx context.Context, e *environment) (_ []figure, err error) {
	n, err := newOVSNode(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := switchTool(ctx, n.host, "", "ovs-vsctl", learning(otherBridge)...); err != nil {
		return nil, err
	}
	var figures []figure
	desired := policyIntent(0, 0)
	desired.Ports = nil
	// The addresses are of a block of the node, as those of pods are: nobody else had them before.
	block := netip.MustParsePrefix("10.213.1.0/24")
	desired.Subnets = []intent.Subnet{{VPC: "default", Name: "default", CIDRs: []netip.Prefix{block}}}
	desired.Tunnels = []intent.TunnelAddress{{VPC: "default", Subnet: "default", Addr: block.Addr().Next()}}
	desired.Routes = []intent.Route{{VPC: "default", Dst: block, NextHop: intent.NextHop{Local: true}}}
	for _, beside := range []int{0, 50} {
		for len(desired.Ports) < beside {
			if err := n.addPod(&desired); err != nil {
				return figures, err
			}
		}
		more, err := benchAttach(ctx, n, desired, e.rounds(40))
		figures = append(figures, more...)
		if err != nil {
			return figures, fmt.Errorf("attach: %w", err)
		}
	}
	replace, err := benchReplace(ctx, n, e.rounds(10))
	return append(figures, replace...), err
}

// addPod adds a port, and makes the namespace of its pod.
func (n *ovsNode) addPod(desired *intent.Node) error {
	i := len(n.spaces)
	port := intent.Port{
		ID: fmt.Sprintf("pod%03d/eth0", i), VPC: "default", VNI: 1, HostInterface: fmt.Sprintf("flppod%d", i),
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 213, 1, byte(i + 10)})},
	}
	if err := n.pod(&port); err != nil {
		return err
	}
	desired.Ports = append(slices.Clip(desired.Ports), port)
	return nil
}

// apply wants all to succeed.
func (n *ovsNode) apply(ctx context.Context, desired intent.Node) error {
	r, err := n.plane.Apply(ctx, desired, apply.Options{})
	for _, f := range r.Failed {
		err = errors.Join(err, fmt.Errorf("%s: %w", f.Ref, f.Err))
	}
	return err
}

// attachByHand gives a link that is there, and flows, to the other bridge, and takes both
// away again.
func (n *ovsNode) attachByHand(ctx context.Context, into *samples, flows string) error {
	const link = "byhand"
	if err := typed(ctx, n.spaces["node"], "ip", "link add "+link+" type veth peer name "+link+"p"); err != nil {
		return err
	}
	start := time.Now()
	err := errors.Join(
		switchTool(ctx, n.host, "", "ovs-vsctl", "add-port", otherBridge, link),
		switchTool(ctx, n.host, flows, "ovs-ofctl", "-O", "OpenFlow15", "--bundle", "add-flows", otherBridge, "-"))
	into.add(time.Since(start))
	return errors.Join(err,
		switchTool(ctx, n.host, "", "ovs-vsctl", "del-port", otherBridge, link),
		switchTool(ctx, n.host, "", "ovs-ofctl", "-O", "OpenFlow15", "del-flows", otherBridge),
		typed(ctx, n.spaces["node"], "ip", "link del "+link))
}

// benchAttach attaches a pod with the plane, and in turns with ovs-vsctl and ovs-ofctl,
// which get a link that is there and the same flows.
// Each takes its own away again before the next one's turn.
func benchAttach(ctx context.Context, n *ovsNode, desired intent.Node, rounds int) ([]figure, error) {
	with := desired
	if err := errors.Join(n.addPod(&with), n.apply(ctx, desired)); err != nil {
		return nil, err
	}
	flows := of.Text(flowsOf(with, with.Ports[len(with.Ports)-1]))
	var whole, part, base, again samples
	for i := range rounds {
		for k := range 3 {
			var err error
			switch (i + k) % 3 {
			case 0:
				err = n.attachByHand(ctx, &base, flows)
			case 1:
				err = n.attach(ctx, desired, with, &whole, &part)
			case 2:
				err = n.attachByHand(ctx, &again, flows)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	beside := fmt.Sprintf("one pod beside %d: ", len(desired.Ports))
	goal := target{limit: attachShare, ratio: true}
	return []figure{
		{name: beside + "port and flows realised", ours: part, base: base, again: again, target: goal},
		{name: beside + "that, and links, addresses, routes", ours: whole, base: base, again: again, target: goal},
	}, nil
}

// attach attaches the last pod: whole, and once more when its port was taken out of the
// bridge and its link is there, as for who attaches by hand.
func (n *ovsNode) attach(ctx context.Context, without, with intent.Node, whole, part *samples) error {
	start := time.Now()
	err := n.apply(ctx, with)
	whole.add(time.Since(start))
	link := with.Ports[len(with.Ports)-1].HostInterface
	err = errors.Join(err, switchTool(ctx, n.host, "", "ovs-vsctl", "del-port", claims.OVSBridge, link))
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = poll(wait, time.Millisecond, func() (bool, error) {
		missing, err := n.plane.Audit(wait, with)
		return len(missing) > 0, err
	})
	start = time.Now()
	err = errors.Join(err, n.apply(ctx, with))
	part.add(time.Since(start))
	return errors.Join(err, n.apply(ctx, without))
}

// flowsOf are the flows of one port.
func flowsOf(n intent.Node, p intent.Port) []of.Flow {
	n.Ports = []intent.Port{p}
	numbers := ovs.Numbers{claims.OVSHostPort: ovs.HostPortNumber, p.HostInterface: 1000}
	for _, part := range ovs.Render(n, numbers, ovs.Options{}).Parts {
		if part.Name == "port "+p.ID {
			return part.Flows
		}
	}
	return nil
}

// benchReplace replaces 10,000 flows of a bridge in one atomic bundle, and in turns with
// ovs-ofctl.
func benchReplace(ctx context.Context, n *ovsNode, rounds int) (_ []figure, err error) {
	ctx, cancel := context.WithCancel(ctx)
	c := openflowconn.New(openflowconn.Config{Socket: n.host.Management(otherBridge), MaxBundle: 20_000, Probe: 20 * time.Second})
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()
	if err := switchTool(ctx, n.host, "", "ovs-ofctl", "-O", "OpenFlow15", "del-flows", otherBridge); err != nil {
		return nil, err
	}
	if _, err := c.Await(ctx); err != nil {
		return nil, err
	}
	var ours, base, again samples
	have := openflowconn.Rules{}
	version := 0
	next := func() openflowconn.Rules {
		version++
		return openflowconn.Rules{Flows: manyFlows(uint64(version % 2))}
	}
	byNative := func(into *samples) error {
		want := next()
		changes := openflowconn.Diff(have, want)
		start := time.Now()
		err := c.Commit(ctx, changes)
		into.add(time.Since(start))
		have = want
		return err
	}
	byHand := func(into *samples) error {
		want := next()
		text := of.Text(want.Flows)
		start := time.Now()
		err := switchTool(ctx, n.host, text, "ovs-ofctl", "-O", "OpenFlow15", "--bundle", "add-flows", otherBridge, "-")
		into.add(time.Since(start))
		have = want
		return err
	}
	if err := byNative(&samples{}); err != nil {
		return nil, err
	}
	for i := range rounds {
		for k := range 3 {
			var err error
			switch (i + k) % 3 {
			case 0:
				err = byHand(&base)
			case 1:
				err = byNative(&ours)
			case 2:
				err = byHand(&again)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return []figure{{name: "10,000 flows replaced atomically", ours: ours, base: base, again: again}}, nil
}

// manyFlows are 10,000 flows; those of another version differ in their actions.
func manyFlows(version uint64) []of.Flow {
	flows := make([]of.Flow, 10_000)
	for i := range flows {
		flows[i] = of.Flow{
			Table: 1, Priority: 10,
			Match:   of.NewMatch(of.Eq(of.EthType, of.EthTypeIPv4), of.Addr(of.IPSrc, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))),
			Actions: []of.Action{of.Load(ovs.PeerClass, version+1), of.GotoTable{Table: 2}},
		}
	}
	return flows
}
