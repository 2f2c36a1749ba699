package openflow

// GroupType is how a group chooses among its buckets.
type GroupType uint8

// The types of groups (OpenFlow 1.5.1, 7.3.4.3).
const (
	// GroupAll does every bucket, each on its own copy.
	GroupAll GroupType = iota
	// GroupSelect does one bucket, chosen by a hash of the packet.
	GroupSelect
	// GroupIndirect does its only bucket.
	GroupIndirect
)

// Selection methods of a GroupSelect (ovs-ofctl(8)).
const (
	// SelectDefault leaves the choice to the switch.
	SelectDefault = ""
	// SelectHash hashes the fields that the group lists.
	SelectHash = "hash"
	// SelectDPHash uses the datapath's hash.
	SelectDPHash = "dp_hash"
)

// Group is a list of buckets that flows refer to by number.
type Group struct {
	ID   uint32
	Type GroupType
	// Method, MethodParam and Fields choose how GroupSelect chooses.
	Method      string
	MethodParam uint64
	Fields      []Field
	Buckets     []Bucket
	// Comment is as in Flow.
	Comment string
}

// Bucket is a list of actions.
type Bucket struct {
	// ID is unique in its group.
	ID uint32
	// Weight is the share of a bucket of a GroupSelect; 0 is never chosen.
	Weight  uint16
	Actions []Action
}

// Meter limits a rate.
type Meter struct {
	ID uint32
	// PerPacket counts packets per second, otherwise kilobits per second.
	PerPacket bool
	// Rate is what passes, Burst (0: none named) what may come at once, in packets
	// or kilobits.
	Rate, Burst uint32
	// Comment is as in Flow.
	Comment string
}
