package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/ovshost"
)

// ovsShare is how much of the performance of a plain bridge ours must reach.
const ovsShare = 0.9

// benchOVSPath compares traffic between pods of a lab on Open vSwitch with that over other
// bridges of the very same Open vSwitch: one that commits every connection and is a
// learning switch otherwise, and one that is a learning switch only.
func benchOVSPath(ctx context.Context, e *environment) (_ []figure, err error) {
	l, err := lab.Up(ctx, lab.Options{
		Name: labName("ovs"), Nodes: 2, Plane: "ovs",
		Agent: e.program("fairlead-agent"), Controller: e.program("fairlead-controller"), CNI: e.program("fairlead-cni"),
	}, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Down(context.WithoutCancel(ctx))) }()
	pods, err := e.pods(ctx, l, map[string]string{"a": "node-1", "b": "node-1", "c": "node-2"})
	if err != nil {
		return nil, err
	}
	spaces := map[string]*os.File{}
	defer func() {
		for _, f := range spaces {
			err = errors.Join(err, f.Close())
		}
	}()
	for name, p := range pods {
		if spaces[name], err = netspace.Open(p.netns); err != nil {
			return nil, err
		}
	}
	tracked, err := buildSwitches(ctx, l, spaces, "tracked", 77, "ct(commit),NORMAL")
	if err != nil {
		return nil, err
	}
	plain, err := buildSwitches(ctx, l, spaces, "plain", 78, "NORMAL")
	if err != nil {
		return nil, err
	}
	loads := pathLoads()
	loads = append(loads[:1:1], loads[2:]...) // four streams are no other path
	var figures []figure
	for i, place := range []struct{ name, server string }{{"one node", "b"}, {"across nodes", "c"}} {
		ours := endpoints{
			client: spaces["a"], server: spaces[place.server], addr: firstIPv4(pods[place.server].state.IPs), forwarders: tracked[i].forwarders,
		}
		more, err := comparePaths(ctx, e, place.name, ovsShare, loads, ours, tracked[i], besidePath{"NORMAL alone", plain[i]})
		figures = append(figures, more...)
		if err != nil {
			return figures, fmt.Errorf("%s: %w", place.name, err)
		}
	}
	return figures, nil
}

// buildSwitches adds to each of the two nodes a bridge with the same flow for all IP, two
// pods on the first node and one on the second, and a VXLAN between them. It returns the
// ends of the ways on one node and across both. The namespaces are put into spaces.
func buildSwitches(ctx context.Context, l *lab.Lab, spaces map[string]*os.File, bridge string, vni int, actions string) (ways [2]endpoints, err error) {
	s, err := l.Status(ctx)
	if err != nil {
		return ways, err
	}
	var underlay []netip.Addr
	for _, n := range s.Nodes {
		for _, a := range n.Addresses {
			if a.Addr().Is4() {
				underlay = append(underlay, a.Addr())
			}
		}
	}
	for i, n := range s.Nodes {
		pods := [][]string{{"1", "2"}, {"3"}}[i]
		h := ovshost.Host{Run: fmt.Sprintf("/proc/%d/root%s", n.Pid, machine.OVSRunDir)}
		tunnel := bridge + "-tun"
		args := append(learning(bridge), "--", "add-port", bridge, tunnel, "--", "set", "interface", tunnel, "type=vxlan",
			fmt.Sprint("options:local_ip=", underlay[i]), fmt.Sprint("options:remote_ip=", underlay[1-i]), fmt.Sprint("options:key=", vni))
		node := fmt.Sprintf("%s-node%d", bridge, i+1)
		if spaces[node], err = netspace.Open(fmt.Sprintf("/proc/%d/ns/net", n.Pid)); err != nil {
			return ways, err
		}
		for _, p := range pods {
			if err := handMadePod(ctx, spaces, node, bridge+p, fmt.Sprintf("10.%d.0.%s/24", 130+vni, p)); err != nil {
				return ways, err
			}
			args = append(args, "--", "add-port", bridge, bridge+p)
		}
		err = errors.Join(
			switchTool(ctx, h, "", "ovs-vsctl", args...),
			switchTool(ctx, h, "priority=0,actions=NORMAL\npriority=1,ip,actions="+actions+"\n", "ovs-ofctl", "-O", "OpenFlow15", "--bundle", "add-flows", bridge, "-"))
		if err != nil {
			return ways, err
		}
	}
	forwarders := []int{s.Nodes[0].State.Switch.Pid, s.Nodes[1].State.Switch.Pid}
	addr := func(p string) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("10.%d.0.%s", 130+vni, p)) }
	return [2]endpoints{
		{spaces[bridge+"1"], spaces[bridge+"2"], addr("2"), forwarders[:1]},
		{spaces[bridge+"1"], spaces[bridge+"3"], addr("3"), forwarders},
	}, nil
}

// handMadePod makes a namespace that has a link with an address, whose other end in a node
// has its name.
func handMadePod(ctx context.Context, spaces map[string]*os.File, node, name, addr string) (err error) {
	if spaces[name], err = netspace.New(); err != nil {
		return err
	}
	for _, s := range []struct{ space, input string }{
		{node, "link add NAME mtu 1450 type veth peer name eth0 mtu 1450 netns POD\nlink set NAME up"},
		{name, "link set lo up\naddr add ADDR dev eth0\nlink set eth0 up"},
	} {
		fill := strings.NewReplacer("NAME", name, "POD", path(spaces[name]), "ADDR", addr)
		if err := typed(ctx, spaces[s.space], "ip", fill.Replace(s.input)); err != nil {
			return fmt.Errorf("make the pod %s: %w", name, err)
		}
	}
	return finishFrames(spaces[name])
}
