package flows

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Flow is a flow that the node's connection tracking knows.
type Flow struct {
	// First is its first packet, as policy saw it: with the destination that it had
	// after a Service's address was replaced, and the source before masquerading.
	First packet.Packet
	// Mark is its conntrack mark.
	Mark uint32
}

// Verdict says what becomes of a flow.
type Verdict uint8

// The verdicts.
const (
	// Keep leaves it as it is.
	Keep Verdict = iota
	// Cut makes it silent in both directions.
	Cut
	// Uncut lets a flow through that was cut.
	Uncut
	// Judge takes it for judged and allowed.
	Judge
	// Forget deletes it from connection tracking.
	Forget
)

// String is the verdict in a word.
func (v Verdict) String() string {
	words := [...]string{"keep", "cut", "uncut", "judge", "forget"}
	if int(v) < len(words) {
		return words[v]
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// Mark returns the bits of a flow's mark that a verdict changes, and their new values.
func (v Verdict) Mark() (mark, mask uint32) {
	const both = claims.CTJudged | claims.CTCut
	switch v {
	case Cut:
		return claims.CTCut, claims.CTCut
	case Uncut:
		return claims.CTJudged, both
	case Judge:
		return claims.CTJudged, claims.CTJudged
	}
	return 0, 0
}

// Decider decides about flows, for one goroutine.
type Decider struct {
	*Change
	rules *rules
}

// Decider returns what decides by this change. own are addresses of the node, beside
// those that the intent names: what bears them was sent by the node itself.
func (c *Change) Decider(own []netip.Addr) *Decider {
	return &Decider{Change: c, rules: newRules(c.desired, own)}
}

// Decide says what becomes of a flow, and for people why, if it is cut.
func (d *Decider) Decide(f Flow) (v Verdict, why string) {
	src, dst := f.First.Src, f.First.Dst
	if d.vacant(src) || d.vacant(dst) {
		return Forget, ""
	}
	judged, cut := f.Mark&claims.CTJudged != 0, f.Mark&claims.CTCut != 0
	if !judged && !cut {
		return d.adopt(f)
	}
	if d.addOnly || !d.concerned(src, dst) {
		return Keep, ""
	}
	ok, why := d.rules.judge(f.First)
	switch {
	case !ok && !cut:
		return Cut, why
	case ok && cut:
		return Uncut, ""
	}
	return Keep, ""
}

// vacant reports whether whoever had an address does not have it any more.
func (d *Decider) vacant(a netip.Addr) bool {
	if d.moved[a] {
		return true
	}
	if d.blocks == nil || d.rules.taken[a] || d.rules.own[a] {
		return false
	}
	local, _ := d.blocks.Lookup(a)
	return local
}

// adopt decides about a flow that was never judged. Those of the node itself and those that
// no port is an end of never are, and are nobody's business; what is denied, the rules
// will drop, except answers of the node to its pods.
func (d *Decider) adopt(f Flow) (Verdict, string) {
	src, dst := f.First.Src, f.First.Dst
	sender := d.rules.port(src) != nil
	if !d.adopting || !sender && (d.rules.port(dst) == nil || d.rules.ownOrLoopback(src)) {
		return Keep, ""
	}
	ok, why := d.rules.judge(f.First)
	switch {
	case ok:
		return Judge, ""
	case sender && !d.addOnly:
		return Cut, why
	}
	return Keep, ""
}

// concerned reports whether the change can mean something to a flow between two
// addresses.
func (d *Decider) concerned(src, dst netip.Addr) bool {
	return d.all || d.changed[src] || d.changed[dst] || d.peered(src, dst) || d.peered(dst, src)
}

// peered reports whether a port has an address and its peer entered or left a set.
func (d *Decider) peered(port, peer netip.Addr) bool {
	p := d.rules.port(port)
	if p == nil {
		return false
	}
	s := d.peers[p.VPC]
	return s != nil && s.Contains(peer)
}
