package sim

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Connection is one entry of the connection tracker.
type Connection struct {
	Zone uint16
	// Original is the tuple of the first packet as it came, Answer that of what answers
	// as it comes: behind NAT the one is not the other's reverse.
	Original, Answer Tuple
	Mark             uint32
	Label            of.Value

	// nat is what happens to packets of the original direction.
	nat of.NATKind
	// answered says that both ends were heard, of what is not TCP.
	answered bool
	// peers are the states of the two ends of a TCP connection, the beginner's first.
	peers [2]tcpState
}

// tcpState is the state of one end, in the order of lib/ct-dpif.h, where it matters.
type tcpState uint8

const (
	tcpClosed tcpState = iota
	tcpSynSent
	tcpEstablished
	tcpClosing
	tcpFinWait2
	tcpTimeWait
)

// Conntrack is the connections of one switch, or one kernel. The zero value is
// empty. It is not safe for concurrent use.
type Conntrack struct {
	known map[connectionKey]direction
}

type connectionKey struct {
	zone  uint16
	tuple Tuple
}

type direction struct {
	conn  *Connection
	reply bool
}

// All are the connections, sorted by zone and original tuple. Marks and labels may be
// changed.
func (c *Conntrack) All() []*Connection {
	var all []*Connection
	for _, d := range c.known {
		if !d.reply {
			all = append(all, d.conn)
		}
	}
	slices.SortFunc(all, func(a, b *Connection) int {
		return cmp.Or(cmp.Compare(a.Zone, b.Zone), a.Original.compare(b.Original))
	})
	return all
}

// Find returns the connection of a tuple, of either direction.
func (c *Conntrack) Find(zone uint16, t Tuple) (conn *Connection, reply, ok bool) {
	d, ok := c.known[connectionKey{zone, t}]
	return d.conn, d.reply, ok
}

// Delete forgets a connection.
func (c *Conntrack) Delete(conn *Connection) {
	delete(c.known, connectionKey{conn.Zone, conn.Original})
	delete(c.known, connectionKey{conn.Zone, conn.Answer})
}

// Clone is a copy that shares nothing.
func (c *Conntrack) Clone() Conntrack {
	out := Conntrack{known: maps.Clone(c.known)}
	copies := map[*Connection]*Connection{}
	for k, d := range out.known {
		if copies[d.conn] == nil {
			conn := *d.conn
			copies[d.conn] = &conn
		}
		out.known[k] = direction{copies[d.conn], d.reply}
	}
	return out
}

func (c *Conntrack) add(conn *Connection) {
	if c.known == nil {
		c.known = map[connectionKey]direction{}
	}
	c.known[connectionKey{conn.Zone, conn.Answer}] = direction{conn, true}
	c.known[connectionKey{conn.Zone, conn.Original}] = direction{conn, false}
}

// tracked is what the datapath remembers with a packet about its last ct.
type tracked struct {
	state uint64
	zone  uint16
}

const natBits = of.CTSNAT | of.CTDNAT

// request is a ct action whose fields were read.
type request struct {
	zone          uint16
	commit, force bool
	nat           *of.NAT
	mark, label   masked
}

// masked sets some bits.
type masked struct{ value, mask of.Value }

func (m masked) apply(v of.Value) of.Value { return v.And(m.mask.Not()).Or(m.value.And(m.mask)) }

// track does a ct action to a packet as it is on the wire (conntrack_execute): it
// fills in the fields of ct, and rewrites the addresses if it is asked to. The result is
// what the tracker says of itself, for people.
func (c *Conntrack) track(p *Packet, was *tracked, r request) string {
	if was.zone != r.zone {
		was.state = 0
	}
	was.zone = r.zone
	key, related, ok := p.key()
	if !ok {
		was.state = of.CTInvalid | of.CTTracked
		p.describe(*was, nil, nil)
		return "not a packet that is tracked"
	}
	conn, reply, note := c.lookup(p, was, r, key, related)
	was.state |= of.CTTracked
	if conn != nil {
		conn.Mark = uint32(r.mark.apply(of.Num(uint64(conn.Mark))).Lo)
		conn.Label = r.label.apply(conn.Label)
	}
	p.describe(*was, conn, &key)
	if conn != nil && reply && note == "" {
		note = "answer"
	}
	return note
}

// lookup is process_one. It returns the connection, if there is one now.
func (c *Conntrack) lookup(p *Packet, was *tracked, r request, key Tuple, related bool) (*Connection, bool, string) {
	d, known := c.find(r.zone, key, was.state&natBits != 0)
	if known && r.force && d.reply {
		c.Delete(d.conn)
		known = false
	}
	begin := !known
	switch {
	case known:
		begin = c.update(p, was, d, related)
		if r.nat != nil && !begin {
			d.translate(p, was, related)
		}
	case related:
		was.state = of.CTInvalid
		return nil, false, "an error about no connection that is known"
	}
	if !begin {
		return d.conn, d.reply, ""
	}
	if !p.begins() {
		was.state = of.CTInvalid
		return nil, false, "does not begin a connection"
	}
	was.state = of.CTNew
	if !r.commit {
		return nil, false, ""
	}
	conn, err := c.begin(r, key)
	if err != "" {
		return nil, false, err
	}
	if p.has(of.TCPFlags) {
		conn.peers[0] = tcpSynSent
	}
	direction{conn, false}.translate(p, was, false)
	return conn, false, "committed"
}

// find looks a packet up; one that NAT has rewritten already by what would answer it.
func (c *Conntrack) find(zone uint16, key Tuple, natted bool) (direction, bool) {
	if !natted {
		d, ok := c.known[connectionKey{zone, key}]
		return d, ok
	}
	d, ok := c.known[connectionKey{zone, key.Reverse()}]
	d.reply = !d.reply
	return d, ok
}

// update is conn_update_state: it settles the state, and reports whether the connection
// was over and a new one takes its place.
func (c *Conntrack) update(p *Packet, was *tracked, d direction, related bool) (again bool) {
	reply := uint64(0)
	if d.reply {
		reply = of.CTReply
	}
	if related {
		was.state |= of.CTRelated | reply
		return false
	}
	established := false
	if p.has(of.TCPFlags) {
		switch d.conn.tcp(p.num(of.TCPFlags), d.reply) {
		case tcpInvalid:
			was.state = of.CTInvalid
			return false
		case tcpAgain:
			c.Delete(d.conn)
			return true
		case tcpGoesOn:
			established = true
		}
	} else {
		d.conn.answered = d.conn.answered || d.reply
		established = d.conn.answered
	}
	if established {
		was.state = was.state&^of.CTNew | of.CTEstablished | reply
	} else {
		was.state |= of.CTNew
	}
	return false
}

// tcpResult is what a segment is to its connection.
type tcpResult uint8

const (
	// tcpBegins is a SYN of a connection that nobody has gone on with.
	tcpBegins tcpResult = iota
	tcpGoesOn
	tcpInvalid
	// tcpAgain begins a new connection where an old one was over.
	tcpAgain
)

// tcp follows the states of the two ends (tcp_conn_update). Sequence numbers are taken
// to be right.
func (conn *Connection) tcp(flags uint64, reply bool) tcpResult {
	from, to := &conn.peers[0], &conn.peers[1]
	if reply {
		from, to = to, from
	}
	if !validFlags(flags) {
		return tcpInvalid
	}
	if flags&(of.TCPSyn|of.TCPAck) == of.TCPSyn {
		switch {
		case *from >= tcpFinWait2 && *to >= tcpFinWait2:
			return tcpAgain
		case *from <= tcpSynSent:
			*from = tcpSynSent
			return tcpBegins
		}
	}
	*from = max(*from, tcpSynSent)
	if flags&of.TCPFin != 0 {
		*from = max(*from, tcpClosing)
	}
	if flags&of.TCPAck != 0 {
		switch *to {
		case tcpSynSent:
			*to = tcpEstablished
		case tcpClosing:
			*to = tcpFinWait2
		}
	}
	if flags&of.TCPRst != 0 {
		*from, *to = tcpTimeWait, tcpTimeWait
	}
	return tcpGoesOn
}

// begin commits a new connection.
func (c *Conntrack) begin(r request, key Tuple) (*Connection, string) {
	conn := &Connection{Zone: r.zone, Original: key, Answer: key.Reverse()}
	if r.nat != nil && r.nat.Kind != of.NATRestore {
		conn.nat = r.nat.Kind
		answer, ok := c.choose(*r.nat, r.zone, key)
		if !ok {
			return nil, "no address and port is free to translate to"
		}
		conn.Answer = answer
	}
	c.add(conn)
	return conn, ""
}

// maxTries bounds the search for a free tuple.
const maxTries = 1 << 17

// choose finds the tuple of the answers behind NAT: of the first address, and with the
// port as it is, if that is free. A switch chooses by a hash where there is a choice. If
// no destination is free, the source gets another port (nat_get_unique_tuple).
func (c *Conntrack) choose(n of.NAT, zone uint16, key Tuple) (Tuple, bool) {
	answer := key.Reverse()
	addr, port := &answer.Dst, &answer.DstPort
	if n.Kind == of.NATDestination {
		addr, port = &answer.Src, &answer.SrcPort
	}
	minimum, maximum := n.Min, n.Max
	if !minimum.IsValid() {
		minimum = *addr
	}
	if !maximum.IsValid() {
		maximum = minimum
	}
	if minimum.BitLen() != key.Src.BitLen() {
		return Tuple{}, false
	}
	first, last := portRange(n, *port)
	tries := maxTries
	for *addr = minimum; addr.IsValid() && addr.Compare(maximum) <= 0; *addr = addr.Next() {
		if c.free(zone, &answer, port, first, last, &tries) {
			return answer, true
		}
	}
	if n.Kind == of.NATDestination {
		*addr = minimum
		*port = max(*port, first)
		if c.free(zone, &answer, &answer.DstPort, lowestPort, highestPort, &tries) {
			return answer, true
		}
	}
	return Tuple{}, false
}

// free finds a port with which nobody has the tuple, from the present one on.
func (c *Conntrack) free(zone uint16, t *Tuple, port *uint16, first, last uint16, tries *int) bool {
	start, count := int(max(*port, first)-first), int(last)-int(first)+1
	if *port > last {
		start = 0
	}
	for i := range count {
		if hasPorts(t.Protocol) {
			*port = first + uint16((start+i)%count)
		}
		if _, taken := c.known[connectionKey{zone, *t}]; !taken {
			return true
		}
		if *tries--; *tries < 0 || !hasPorts(t.Protocol) {
			return false
		}
	}
	return false
}

const lowestPort, highestPort = 1024, 65535

// portRange is where a port may be chosen; the one that is there is in it, or it
// begins the search at the first.
func portRange(n of.NAT, was uint16) (first, last uint16) {
	switch {
	case n.PortMin == 0 && n.Kind == of.NATDestination:
		return was, was
	case n.PortMin == 0 && was < lowestPort:
		return was, highestPort
	case n.PortMin == 0:
		return lowestPort, highestPort
	}
	return n.PortMin, max(n.PortMin, n.PortMax)
}

func hasPorts(p packet.Protocol) bool {
	return p == packet.TCP || p == packet.UDP || p == packet.SCTP
}

// translate rewrites a packet of a connection, unless that was done before in this
// zone (handle_nat, nat_packet).
func (d direction) translate(p *Packet, was *tracked, related bool) {
	if d.conn.nat == of.NATRestore || was.state&natBits != 0 {
		return
	}
	source := (d.conn.nat == of.NATSource) != d.reply
	want := d.conn.Answer.Reverse()
	if d.reply {
		want = d.conn.Original.Reverse()
	}
	was.state |= of.CTDNAT
	if source {
		was.state ^= natBits
	}
	if source {
		p.setAddr(of.IPSrc, of.IPv6Src, want.Src)
	} else {
		p.setAddr(of.IPDst, of.IPv6Dst, want.Dst)
	}
	if related {
		p.translateQuoted(want, source)
		return
	}
	if s, dst, ok := p.ports(); ok {
		p.set(s, uint64(want.SrcPort))
		p.set(dst, uint64(want.DstPort))
	}
}

// translateQuoted makes the packet that an error quotes the one that its receiver has
// sent.
func (p *Packet) translateQuoted(want Tuple, source bool) {
	quoted := *p.Quoted
	if source {
		quoted.Dst = want.Src
	} else {
		quoted.Src = want.Dst
	}
	if hasPorts(quoted.Protocol) {
		quoted.SrcPort, quoted.DstPort = want.DstPort, want.SrcPort
	}
	p.Quoted = &quoted
}

// describe fills in the fields of ct (write_ct_md).
func (p *Packet) describe(t tracked, conn *Connection, key *Tuple) {
	p.untrack()
	p.set(of.CTState, t.state)
	p.set(of.CTZone, uint64(t.zone))
	if conn != nil {
		p.set(of.CTMark, uint64(conn.Mark))
		p.Set(of.CTLabel, conn.Label)
		key = &conn.Original
	}
	if key == nil {
		return
	}
	p.setAddr(of.CTNwSrc, of.CTIPv6Src, key.Src)
	p.setAddr(of.CTNwDst, of.CTIPv6Dst, key.Dst)
	p.set(of.CTNwProto, uint64(key.Protocol))
	src, dst := key.SrcPort, key.DstPort
	if isICMP(key.Protocol, key.Src) {
		src, dst = uint16(key.ICMPType), 0
	}
	p.set(of.CTTpSrc, uint64(src))
	p.set(of.CTTpDst, uint64(dst))
}

func isICMP(p packet.Protocol, a netip.Addr) bool {
	return p == packet.ICMP && a.Is4() || p == packet.ICMPv6 && a.Is6()
}

// untrack clears the fields of ct (flow_clear_conntrack).
func (p *Packet) untrack() {
	for _, f := range [...]of.Field{
		of.CTState, of.CTZone, of.CTMark, of.CTLabel, of.CTNwProto, of.CTTpSrc, of.CTTpDst,
		of.CTNwSrc, of.CTNwDst, of.CTIPv6Src, of.CTIPv6Dst,
	} {
		p.Set(f, of.Value{})
	}
}
