package rtnl

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// pod is what a pod's namespace holds.
type pod struct {
	link   link
	addrs  map[addrKey]bool
	neighs map[neighKey]packet.MAC
	routes map[routeKey]route
}

// readPod reads a pod's namespace around its link.
func readPod(c *conn, l link) (pod, error) {
	p := pod{link: l}
	var err error
	if p.addrs, err = c.addresses(); err != nil {
		return p, err
	}
	if p.neighs, err = c.neighbours(); err != nil {
		return p, err
	}
	p.routes, err = c.routes(0)
	return p, err
}

// generated are the IPv6 addresses of a link that had no IPv6 until now: only the
// kernel can have made them.
func (p pod) generated() map[netip.Addr]packet.MAC {
	out := map[netip.Addr]packet.MAC{}
	for k := range p.addrs {
		if a := k.prefix.Addr(); k.index == p.link.index && a.Is6() {
			out[a] = p.link.mac
		}
	}
	return out
}

// podChange is one difference between what a pod ought to have and what it has.
type podChange struct {
	diff apply.Difference
	// theirs marks what the pod's own people may have done on purpose: it is
	// changed only while the port is being set up, not in a running pod.
	theirs  bool
	request request
}

// plan compares a pod's side. given are the addresses that it had from us before.
func (p pod) plan(want linux.Port, given map[netip.Addr]packet.MAC) []podChange {
	return append(p.planLink(want), p.planRest(want, given)...)
}

// planLink compares the link itself. A change of it may take addresses, neighbours
// and routes away.
func (p pod) planLink(want linux.Port) []podChange {
	var out []podChange
	index := p.link.index
	add := func(wants, got string, request request) {
		out = append(out, podChange{diff: apply.Difference{
			Subsystem: "link", Object: want.Name + " of pod " + want.Pod, Problem: differs, Want: wants, Got: got,
		}, request: request})
	}
	if p.link.mac != want.MAC {
		add("mac "+want.MAC.String(), "mac "+p.link.mac.String(), macRequest(index, want.MAC))
	}
	if p.link.mtu != want.MTU {
		add(fmt.Sprintf("mtu %d", want.MTU), fmt.Sprintf("mtu %d", p.link.mtu), mtuRequest(index, want.MTU))
	}
	if !p.link.up {
		add("up true", "up false", linkRequest(linkHeader(index, unix.IFF_UP, unix.IFF_UP)))
	}
	return out
}

// planRest compares what is on the link, in the order in which it can be changed.
func (p pod) planRest(want linux.Port, given map[netip.Addr]packet.MAC) []podChange {
	var out []podChange
	index := p.link.index
	add := func(subsystem, object, problem, wants, got string, theirs bool, request request) {
		out = append(out, podChange{apply.Difference{
			Subsystem: subsystem, Object: object + " of pod " + want.Pod, Problem: problem, Want: wants, Got: got,
		}, theirs, request})
	}
	wanted := map[addrKey]bool{}
	for _, a := range want.Addresses {
		k := addrKey{index, netip.PrefixFrom(a, a.BitLen())}
		wanted[k] = true
		if !p.addrs[k] {
			add("address", k.prefix.String(), missing, "", "", false, addressRequest(k))
		}
	}
	for k := range p.addrs {
		if k.index == index && !wanted[k] {
			_, wasOurs := given[k.prefix.Addr()]
			add("address", k.prefix.String(), unexpected, "", "", !wasOurs, addressRemoval(k))
		}
	}
	for _, gw := range want.Gateways() {
		k := neighKey{index, gw}
		if got, have := p.neighs[k]; !have || got != want.HostMAC {
			add("neighbour", gw.String(), problem(have), want.HostMAC.String(), got.String(), false, neighbourRequest(k, want.HostMAC))
		}
		r := defaultRoute(want.Name, index, gw)
		got, have := p.routes[r.routeKey]
		if have && got.kind == r.kind && len(got.hops) == 1 && got.hops[0] == r.hops[0] {
			continue
		}
		name := func(i int) string { return map[bool]string{true: want.Name, false: fmt.Sprintf("if%d", i)}[i == index] }
		gotText := ""
		if have {
			gotText = got.describe(name)
		}
		add("route", r.dst.String(), problem(have), r.describe(name), gotText, have, routeRequest(r))
	}
	return out
}

func problem(have bool) string {
	if have {
		return differs
	}
	return missing
}

// primary is the interface that every runtime gives a pod first.
const primary = "eth0"

// secondMetric is added to the metric of a further interface's default route, with
// the link's index: each has a route of its own, none takes the first one's place.
const secondMetric = 1024

func defaultRoute(name string, index int, gw netip.Addr) route {
	r := route{kind: unix.RTN_UNICAST, protocol: claims.RouteProtocol, hops: []hop{{index, gw}}}
	r.routeKey = routeKey{netip.PrefixFrom(netip.IPv4Unspecified(), 0), 0}
	if gw.Is6() {
		r.routeKey = routeKey{netip.PrefixFrom(netip.IPv6Unspecified(), 0), 1024}
	}
	if name != primary {
		r.metric += secondMetric + uint32(index)
	}
	return r
}

// joined tells whether a host's end and the link of a pod are two ends of one
// pair. id is how the node's namespace knows the pod's.
func joined(host link, inPod link, id int) bool {
	return host.kind == "veth" && inPod.kind == "veth" && host.peer == inPod.index && host.peerNS == id && id >= 0
}

// checkPod compares a pod's side with the kernel. What the pod's own people added
// is no difference.
func (d *Driver) checkPod(p linux.Port, host link) ([]apply.Difference, error) {
	ns, err := netns.Open(p.Netns)
	if errors.Is(err, netns.ErrGone) {
		return []apply.Difference{{Subsystem: "link", Object: p.Netns, Problem: missing, Want: "a network namespace"}}, nil
	}
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	c, err := d.dial(ns, nil)
	if err != nil {
		return nil, err
	}
	defer c.close()
	l, ok, err := c.link(p.Name)
	if err != nil {
		return nil, err
	}
	id, err := d.conn.namespaceID(ns)
	if err != nil {
		return nil, err
	}
	if !ok || !joined(host, l, id) {
		return []apply.Difference{{
			Subsystem: "link", Object: p.Name + " of pod " + p.Pod, Problem: problem(ok), Want: "the other end of " + p.HostName, Got: l.kind,
		}}, nil
	}
	in, err := readPod(c, l)
	if err != nil {
		return nil, err
	}
	var out []apply.Difference
	for _, ch := range in.plan(p, nil) {
		if ch.diff.Problem != unexpected {
			out = append(out, ch.diff)
		}
	}
	err = ns.Do(func() error {
		diffs, err := sysctlDifferences(p.PodSysctls())
		for _, diff := range diffs {
			diff.Object += " of pod " + p.Pod
			out = append(out, diff)
		}
		return err
	})
	return out, err
}
