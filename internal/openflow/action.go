package openflow

import "net/netip"

// Action is one thing done to a packet. The list of actions is done in order; an
// empty list drops.
type Action interface {
	appendText(b []byte) []byte
	appendWire(b []byte) []byte
	check(c *checker) error
}

// Output sends the packet to a port. The switch never sends a packet back to
// where it came from, except through PortInPort.
type Output struct{ Port Port }

// OutputField sends the packet to the port whose number a field holds.
type OutputField struct{ Source Subfield }

// SetField sets the bits of Mask to those of Value. The zero Mask is the whole
// field.
type SetField struct {
	Field Field
	Value Value
	Mask  Value
}

// Set sets a whole field of up to 64 bits.
func Set(f Field, v uint64) SetField { return SetField{Field: f, Value: Num(v)} }

// SetMAC sets a field to an Ethernet address.
func SetMAC(f Field, mac [6]byte) SetField { return SetField{Field: f, Value: MACValue(mac)} }

// SetAddr sets a field to an address. One of the other family gives an action that
// Validate refuses.
func SetAddr(f Field, a netip.Addr) SetField {
	return SetField{Field: ofFamily(f, a), Value: AddrValue(a)}
}

// Load sets a part of a field. OpenFlow 1.5 has no action of that name; it is a
// SetField with a mask. A value that is too wide gives an action that Validate
// refuses.
func Load(s Subfield, v uint64) SetField {
	a := SetField{s.Field, Num(v).Lsh(int(s.Offset)), s.Mask()}
	if a.Mask == s.Field.full() {
		a.Mask = Value{}
	}
	return a
}

// Move copies bits between fields; both parts are equally wide.
type Move struct{ From, To Subfield }

// GotoTable goes on in a later table. It is the last action of a flow.
type GotoTable struct{ Table uint8 }

// Resubmit searches a table, does what is found there, and comes back. Table
// TableAll is the current one.
type Resubmit struct {
	// InPort is the port that the packet seems to come from meanwhile; the zero
	// value is the port that it came from.
	InPort Port
	Table  uint8
	// OriginalTuple searches with the original direction's tuple of a tracked packet.
	OriginalTuple bool
}

// CT sends the packet through the connection tracker.
type CT struct {
	Commit bool
	// Force makes a committed connection have the direction of this packet.
	Force bool
	// Recirc goes on in Table with the packet tracked; the present packet's
	// copy goes on after CT untracked.
	Recirc bool
	Table  uint8
	// Zone is the zone, unless ZoneSource holds a field.
	Zone       uint16
	ZoneSource Subfield
	NAT        *NAT
	// Exec may set CTMark and CTLabel of a connection that is committed.
	Exec []Action
	// ALG is the port of the helper's protocol: 21 FTP, 69 TFTP, 0 none.
	ALG uint16
}

// NATKind is what NAT does.
type NATKind uint8

const (
	// NATRestore does what was decided for the connection when it was committed.
	NATRestore NATKind = iota
	NATSource
	NATDestination
)

// NAT is address translation by the connection tracker.
type NAT struct {
	Kind NATKind
	// Min to Max are the addresses to choose from. The zero Max is Min. The zero
	// Min keeps the address if its port is free.
	Min, Max netip.Addr
	// PortMin to PortMax are the ports to choose from, zero means any.
	PortMin, PortMax uint16
	// Persistent keeps the choice over restarts of the switch; Hash and Random say
	// how a port is chosen.
	Persistent, Hash, Random bool
}

// CTClear forgets what the connection tracker said about the packet.
type CTClear struct{}

// Conjunction says that the flow is one choice of dimension Clause (from 1) out
// of Clauses of conjunction ID; a packet for which each dimension has a choice
// matches the flow with ConjID = ID.
type Conjunction struct {
	ID              uint32
	Clause, Clauses uint8
}

// Clone does actions to a copy of the packet.
type Clone struct{ Actions []Action }

// DecTTL decrements TTL or hop limit, and ends the pipeline if it was 1 or less.
type DecTTL struct{}

// GroupAction hands the packet to a group.
type GroupAction struct{ ID uint32 }

// MeterAction drops the packet if it exceeds a meter.
type MeterAction struct{ ID uint32 }

// Note does nothing. The switch keeps its bytes, padded with zeros to 6 + 8n.
type Note struct{ Data []byte }

// CheckPktLarger sets a bit to whether the packet is longer than Length bytes,
// its Ethernet header included.
type CheckPktLarger struct {
	Length uint16
	To     Subfield
}

// Unknown is an action that a switch told us about and that this package does not
// know. Only its spelling is kept: enough to see that it is not one of ours.
type Unknown struct{ Wire []byte }
