package ovsplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/flows"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// connection is an entry of the datapath's connection tracking.
type connection struct {
	zone     uint16
	protocol packet.Protocol
	// src, dst and the ports are the original tuple; ports are zero for protocols without.
	src, dst         netip.Addr
	srcPort, dstPort uint16
	// replySrc and replyPort are where answers come from: behind destination NAT.
	replySrc  netip.Addr
	replyPort uint16
	mark      uint32
	// ended: both ends of a TCP connection have closed.
	ended bool
	// id, typ and code are of ICMP, as dpctl prints them.
	id, typ, code uint16
}

// tuple identifies a conversation.
type tuple struct {
	zone             uint16
	protocol         packet.Protocol
	src, dst         netip.Addr
	srcPort, dstPort uint16
}

func (c connection) tuple() tuple {
	return tuple{c.zone, c.protocol, c.src, c.dst, c.srcPort, c.dstPort}
}

func (c connection) first() packet.Packet {
	return packet.Packet{Src: c.src, Dst: c.replySrc, Protocol: c.protocol, SrcPort: c.srcPort, DstPort: c.replyPort}
}

// text is the original tuple as dpctl/flush-conntrack takes it.
func (c connection) text() string {
	family := "ct_nw"
	if c.src.Is6() {
		family = "ct_ipv6"
	}
	s := fmt.Sprintf("%s_src=%s,%s_dst=%s,ct_nw_proto=%d", family, c.src, family, c.dst, c.protocol)
	switch {
	case hasPorts(c.protocol):
		s += fmt.Sprintf(",ct_tp_src=%d,ct_tp_dst=%d", c.srcPort, c.dstPort)
	case c.protocol == packet.ICMP || c.protocol == packet.ICMPv6:
		s += fmt.Sprintf(",icmp_id=%d,icmp_type=%d,icmp_code=%d", c.id, c.typ, c.code)
	}
	return s
}

func hasPorts(p packet.Protocol) bool {
	return p == packet.TCP || p == packet.UDP || p == packet.SCTP
}

// parseConnections reads what dpctl/dump-conntrack prints. Lines that are not understood
// are left out: protocols that policy does not know of.
func parseConnections(text string) []connection {
	var out []connection
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if c, ok := parseConnection(lines.Text()); ok {
			out = append(out, c)
		}
	}
	return out
}

// parseConnection reads a line such as
//
//	tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1,dport=2),reply=(…),zone=5,mark=1,protoinfo=(…)
func parseConnection(line string) (c connection, ok bool) {
	name, rest, _ := strings.Cut(line, ",")
	if c.protocol, ok = protocolOf(name); !ok {
		return c, false
	}
	for rest != "" {
		key, value, found := strings.Cut(rest, "=")
		if !found {
			return c, false
		}
		if strings.HasPrefix(value, "(") {
			end := strings.IndexByte(value, ')')
			if end < 0 {
				return c, false
			}
			value, rest = value[1:end], strings.TrimPrefix(value[end+1:], ",")
		} else {
			value, rest, _ = strings.Cut(value, ",")
		}
		if !c.set(key, value) {
			return c, false
		}
	}
	return c, c.src.IsValid() && c.dst.IsValid() && c.replySrc.IsValid() && c.src.Is4() == c.dst.Is4()
}

func protocolOf(name string) (packet.Protocol, bool) {
	for _, p := range []packet.Protocol{packet.TCP, packet.UDP, packet.SCTP, packet.ICMP, packet.ICMPv6} {
		if strings.EqualFold(name, p.String()) {
			return p, true
		}
	}
	n, err := strconv.ParseUint(name, 10, 8)
	return packet.Protocol(n), err == nil
}

func (c *connection) set(key, value string) bool {
	switch key {
	case "orig":
		t, ok := parseTuple(value)
		c.src, c.dst, c.srcPort, c.dstPort = t.src, t.dst, t.ports["sport"], t.ports["dport"]
		c.id, c.typ, c.code = t.ports["id"], t.ports["type"], t.ports["code"]
		return ok
	case "reply":
		t, ok := parseTuple(value)
		c.replySrc, c.replyPort = t.src, t.ports["sport"]
		return ok
	case "zone":
		n, err := strconv.ParseUint(value, 10, 16)
		c.zone = uint16(n)
		return err == nil
	case "mark":
		n, err := strconv.ParseUint(value, 0, 32)
		c.mark = uint32(n)
		return err == nil
	case "protoinfo":
		c.ended = ended(value)
	}
	return true
}

// ended reads states of TCP, "state=TIME_WAIT" or one of each end.
func ended(info string) bool {
	found := false
	for part := range strings.SplitSeq(info, ",") {
		if key, state, _ := strings.Cut(part, "="); strings.HasPrefix(key, "state") {
			if !slices.Contains([]string{"CLOSING", "LAST_ACK", "TIME_WAIT", "CLOSED"}, state) {
				return false
			}
			found = true
		}
	}
	return found
}

// parsedTuple is one direction of an entry: ports, or what ICMP has instead, by name.
type parsedTuple struct {
	src, dst netip.Addr
	ports    map[string]uint16
}

func parseTuple(s string) (t parsedTuple, ok bool) {
	t.ports = map[string]uint16{}
	for field := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(field, "=")
		var err error
		switch key {
		case "src":
			t.src, err = netip.ParseAddr(value)
		case "dst":
			t.dst, err = netip.ParseAddr(value)
		default:
			var n uint64
			n, err = strconv.ParseUint(value, 10, 16)
			t.ports[key] = uint16(n)
		}
		if err != nil {
			return t, false
		}
	}
	return t, t.src.Zone() == "" && t.dst.Zone() == "" && !t.src.Is4In6() && !t.dst.Is4In6()
}

// tracks is what is known of conversations that policy follows.
type tracks struct {
	// judged is the intent that all of them are known to obey, nil if none is.
	judged *intent.Node
	// cut are those that are silent.
	cut map[tuple]bool
}

// cutPriority is above all that looks at a flow's mark.
const cutPriority = 65

func isCut(f of.Flow) bool { return f.Table == ovs.TableFlows && f.Priority == cutPriority }

// cutFlow drops every packet of a conversation, whoever sends it: both directions have the
// original tuple.
func cutFlow(t tuple) of.Flow {
	ethType, src, dst := of.EthTypeIPv4, of.CTNwSrc, of.CTNwDst
	if t.src.Is6() {
		ethType, src, dst = of.EthTypeIPv6, of.CTIPv6Src, of.CTIPv6Dst
	}
	terms := []of.Term{
		of.Eq(of.EthType, uint64(ethType)), of.Masked(of.CTState, of.CTTracked, of.CTTracked|of.CTInvalid), of.Eq(of.CTZone, uint64(t.zone)),
		of.Addr(src, t.src), of.Addr(dst, t.dst), of.Eq(of.CTNwProto, uint64(t.protocol)),
	}
	if hasPorts(t.protocol) {
		terms = append(terms, of.Eq(of.CTTpSrc, uint64(t.srcPort)), of.Eq(of.CTTpDst, uint64(t.dstPort)))
	}
	return of.Flow{Table: ovs.TableFlows, Priority: cutPriority, Cookie: claims.OVSCookie, Match: of.NewMatch(terms...), Comment: ovs.FlowCut}
}

// followPolicy makes the conversations that connection tracking knows already obey the
// flows that are in force now. If that does not succeed it is not known what was done: the
// next Apply looks at all of them.
func (a *application) followPolicy(ctx context.Context, desired intent.Node) {
	// To what is here only now, somebody may have sent while it was elsewhere.
	if t := &a.tracks; t.judged != nil && !slices.Equal(ownRoutes(*t.judged), ownRoutes(desired)) {
		t.judged = nil
	}
	if a.options.AddOnly {
		return // its world may lack what allows a conversation
	}
	change := flows.Compare(a.tracks.judged, desired, flows.Options{})
	cut := len(a.tracks.cut) > 0
	look := a.options.Refresh && cut || slices.ContainsFunc(change.Queries(), func(q flows.Query) bool { return !q.Cut || cut })
	err := error(nil)
	if look {
		err = a.decide(ctx, change)
	}
	if err == nil {
		err = a.installCut(ctx)
	}
	if err != nil {
		a.tracks.judged = nil
		a.fail(apply.ObjectError{
			Ref: intent.Ref{Kind: "Node", Name: desired.Name},
			Err: fmt.Errorf("flows that began before may not follow policy; the next apply tries again: %w", err),
		})
		return
	}
	a.tracks.judged = &desired
}

// decide asks of every conversation in our zones what becomes of it. Those that have
// ended need not be cut any more.
func (a *application) decide(ctx context.Context, change *flows.Change) error {
	own, err := a.ns.Addresses()
	if err != nil {
		return err
	}
	all, err := a.listed, error(nil)
	if !a.listedAll {
		all, err = a.connections(ctx)
	}
	if err != nil {
		return err
	}
	decider, cut, forget := change.Decider(own), map[tuple]bool{}, false
	decide := func(c connection) (flows.Verdict, string) {
		mark := c.mark
		if a.tracks.cut[c.tuple()] {
			mark |= claims.CTCut
		}
		return decider.Decide(flows.Flow{First: c.first(), Mark: mark})
	}
	for _, c := range all {
		t := c.tuple()
		switch verdict, why := decide(c); verdict {
		case flows.Forget:
			forget = true
		case flows.Cut:
			cut[t] = true
			a.told("cut flow "+c.first().String(), why)
		case flows.Uncut:
			a.told("uncut flow "+c.first().String(), "")
		default:
			if a.tracks.cut[t] {
				cut[t] = true
			}
		}
	}
	a.tracks.cut = cut
	if !forget {
		return nil
	}
	return a.forgetAll(ctx, func(c connection) bool {
		verdict, _ := decide(c)
		return verdict == flows.Forget
	})
}

// vacate makes ports that begin to carry inherit no flow, whatever was sent to their
// addresses before they had them. Their flows are installed, their links are down: with
// these flows nothing is judged that their lists have not seen.
func (a *application) vacate(ctx context.Context, desired intent.Node, links map[string]podLink) error {
	type end struct {
		zone uint16
		addr netip.Addr
	}
	zones, coming := ovs.Zones(desired.VPCs), map[end]bool{}
	for _, p := range desired.Ports {
		if links[p.HostInterface].up {
			continue // it went through this before
		}
		for _, addr := range p.Addresses {
			if !a.tracks.vacant(p, addr) {
				coming[end{zones[p.VPC], addr}] = true
			}
		}
	}
	gone := func(c connection) bool { return coming[end{c.zone, c.src}] || coming[end{c.zone, c.replySrc}] }
	if len(coming) == 0 {
		return nil
	}
	all, err := a.connections(ctx)
	if err != nil || !slices.ContainsFunc(all, gone) {
		a.listed, a.listedAll = all, err == nil
		return err
	}
	return a.forgetAll(ctx, gone)
}

// vacant reports whether nobody can have judged a flow of the address but the port
// itself: it was in a block of this node and nobody's when all flows were last looked
// at, and from then on flows drop what is sent to it.
func (t *tracks) vacant(p intent.Port, addr netip.Addr) bool {
	if t.judged == nil {
		return false
	}
	for _, other := range t.judged.Ports {
		if other.VPC == p.VPC && slices.Contains(other.Addresses, addr) {
			return other.ID == p.ID
		}
	}
	here, bits := false, -1
	for _, r := range t.judged.Routes {
		if r.VPC == p.VPC && r.Dst.Bits() > bits && r.Dst.Contains(addr) {
			here, bits = r.NextHop.Local, r.Dst.Bits()
		}
	}
	return here
}

// ownRoutes are this node's blocks, and what leads out of them.
func ownRoutes(n intent.Node) (own []string) {
	var blocks []intent.Route
	for _, r := range n.Routes {
		if r.NextHop.Local {
			blocks = append(blocks, r)
		}
	}
	for _, r := range n.Routes {
		if slices.ContainsFunc(blocks, func(b intent.Route) bool {
			return b.VPC == r.VPC && b.Dst.Overlaps(r.Dst) && b.Dst.Bits() <= r.Dst.Bits()
		}) {
			own = append(own, fmt.Sprint(r.Ref(), r.NextHop.Local))
		}
	}
	return own
}

// connections are the entries of our zones.
func (a *application) connections(ctx context.Context) ([]connection, error) {
	text, err := a.control.Call(ctx, "ovs-vswitchd", "dpctl/dump-conntrack", a.datapath.name())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(parseConnections(text), func(c connection) bool {
		return c.zone < claims.OVSZoneFirst || c.zone > claims.OVSZoneLast
	}), nil
}

// forgetAll deletes entries that the flows which are installed now would not make any
// more. What the datapath has cached of earlier flows could: it is looked over first.
func (a *application) forgetAll(ctx context.Context, gone func(connection) bool) error {
	if _, err := a.control.Call(ctx, "ovs-vswitchd", "revalidator/wait"); err != nil {
		return err
	}
	all, err := a.connections(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c connection) bool { return !gone(c) })
	if len(all) == 0 {
		return nil
	}
	for _, c := range all {
		delete(a.tracks.cut, c.tuple())
	}
	a.say("forget %d flows of addresses that pods gave up, or that new pods get", len(all))
	return a.forget(ctx, all)
}

// forget deletes entries; one that has ended meanwhile is no error.
func (a *application) forget(ctx context.Context, gone []connection) error {
	args := make([][]string, len(gone))
	for i, c := range gone {
		args[i] = []string{fmt.Sprintf("zone=%d", c.zone), c.text()}
	}
	refused, err := a.control.Each(ctx, "ovs-vswitchd", "dpctl/flush-conntrack", args)
	if err != nil {
		return err
	}
	var errs []error
	for i, why := range refused {
		if strings.Contains(why.Error(), "No such file") {
			continue
		}
		// Without a name it takes the only datapath; with one, some versions take it for a tuple.
		_, named := a.control.Call(ctx, "ovs-vswitchd", "dpctl/flush-conntrack", append([]string{a.datapath.name()}, args[i]...)...)
		if named != nil && !strings.Contains(named.Error(), "No such file") {
			errs = append(errs, why)
		}
	}
	return errors.Join(errs...)
}

// mostFlows bounds the flows that a Report names one by one.
const mostFlows = 20

func (a *application) told(what, why string) {
	if a.named++; a.named > mostFlows {
		return
	}
	if why != "" {
		what += " (" + why + ")"
	}
	a.report.Changes = append(a.report.Changes, what)
}

// installCut makes the flows that cut conversations those that are needed.
func (a *application) installCut(ctx context.Context) error {
	want := make([]of.Flow, 0, len(a.tracks.cut))
	for t := range a.tracks.cut {
		want = append(want, cutFlow(t))
	}
	changes := openflowconn.Diff(openflowconn.Rules{Flows: a.flows.cut}, openflowconn.Rules{Flows: want})
	if changes.Empty() {
		return nil
	}
	if err := a.conn.Commit(ctx, changes); err != nil {
		a.flows.known = false
		return err
	}
	a.flows.cut = want
	// The datapath goes by what it has cached until somebody has looked that over.
	_, err := a.control.Call(ctx, "ovs-vswitchd", "revalidator/wait")
	return err
}
