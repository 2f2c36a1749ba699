package memplane

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Fabric joins planes: it carries what a node sends on the underlay to the node
// that has the destination address, and all else to the outside.
type Fabric struct {
	mu    sync.Mutex
	nodes map[string]*Plane
}

// NewFabric returns a fabric without nodes.
func NewFabric() *Fabric { return &Fabric{nodes: map[string]*Plane{}} }

// Node returns the plane of a node, and makes it on the first call.
func (f *Fabric) Node(name string) *Plane {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.nodes[name]
	if !ok {
		p = &Plane{
			fabric: f, name: name, faults: map[intent.Ref]error{}, watchers: map[int]func(apply.Foreign){},
			flows: &conntrack{known: map[tuple]direction{}},
		}
		f.nodes[name] = p
	}
	return p
}

// Place is where a packet comes from or ends. Of the zero fields, the last that is
// set decides: a Port of a Node, the Node itself, or the outside.
type Place struct {
	// Node of the Port; or the node itself. For the outside: the node that routers
	// hand packets to pods to, and the one that a packet left from.
	Node string
	// Port is the ID of a port.
	Port string
	// Outside of the cluster.
	Outside bool
}

// String is "port c1/eth0 on n1", "node n1" or "outside via n1".
func (p Place) String() string {
	switch {
	case p.Outside && p.Node == "":
		return "outside"
	case p.Outside:
		return "outside via " + p.Node
	case p.Port != "":
		return "port " + p.Port + " on " + p.Node
	}
	return "node " + p.Node
}

// Delivery is what became of a packet.
type Delivery struct {
	// Dropped: it ended nowhere, and Why says where on its way and for what reason.
	Dropped bool
	Why     string
	// At is where it arrived, Packet how it looked there.
	At     Place
	Packet packet.Packet
	// Frames are what it looked like on the underlay, one a hop.
	Frames []Frame
}

// Frame is a packet on the underlay.
type Frame struct {
	// Outer addresses of a tunnel packet; Invalid for a packet as it is, which goes
	// to the NextHop.
	OuterSrc, OuterDst netip.Addr
	NextHop            netip.Addr
	VNI                packet.VNI
	SrcMAC, DstMAC     packet.MAC
	Inner              packet.Packet
}

// Encapsulated reports whether the frame is a tunnel packet.
func (f Frame) Encapsulated() bool { return f.OuterSrc.IsValid() }

// maxHops ends loops, which a wrong intent may make.
const maxHops = 8

// Send sends a packet and says what becomes of it.
func (f *Fabric) Send(from Place, p packet.Packet) Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := &journey{fabric: f}
	node, ok := f.nodes[from.Node]
	switch {
	case from.Outside:
		j.fromOutside(node, p)
	case !ok:
		j.drop("there is no node %s", from.Node)
	case from.Port != "":
		node.fromPort(j, from.Port, p)
	default:
		node.fromSelf(j, p)
	}
	return j.result
}

// Inject puts a frame on the underlay, whoever may have sent it, and says what
// becomes of it.
func (f *Fabric) Inject(frame Frame) Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := &journey{fabric: f}
	j.transmit(frame)
	return j.result
}

// journey is one packet on its way.
type journey struct {
	fabric *Fabric
	hops   int
	// passed are notes of the nodes that the packet went through, kept if it arrives:
	// what was refused on its way began no conversation anywhere.
	passed []func()
	result Delivery
}

func (j *journey) drop(format string, args ...any) {
	j.result.Dropped, j.result.Why = true, fmt.Sprintf(format, args...)
}

func (j *journey) arrive(at Place, p packet.Packet) {
	for _, keep := range j.passed {
		keep()
	}
	j.result.At, j.result.Packet = at, p
}

// fromOutside: what is for a node goes to it, what is for a pod to the node that
// the routers know, and all else stays outside.
func (j *journey) fromOutside(entry *Plane, p packet.Packet) {
	if !forwarded(p) {
		j.drop("nobody carries packets from %s to %s", p.Src, p.Dst)
		return
	}
	if n := j.fabric.owner(p.Dst); n != nil {
		n.fromUnderlay(j, p)
		return
	}
	if entry != nil {
		if _, inside := entry.subnet(p.Dst); inside {
			entry.fromUnderlay(j, p)
			return
		}
	}
	j.arrive(Place{Outside: true}, p)
}

// forwarded reports whether both ends are single machines on some network, of one
// family.
func forwarded(p packet.Packet) bool {
	return unicast(p.Src) && unicast(p.Dst) && p.Src.BitLen() == p.Dst.BitLen()
}

func unicast(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsMulticast() && !a.IsUnspecified() && !a.IsLinkLocalUnicast()
}

// owner returns the node that has an underlay address.
func (f *Fabric) owner(a netip.Addr) *Plane {
	for _, n := range f.nodes {
		if slices.ContainsFunc(n.actual.Underlay, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return n
		}
	}
	return nil
}

// transmit carries a frame over the underlay.
func (j *journey) transmit(frame Frame) {
	j.hops++
	if j.hops > maxHops {
		j.drop("after %d hops between nodes: a loop", maxHops)
		return
	}
	j.result.Frames = append(j.result.Frames, frame)
	if frame.Encapsulated() {
		if n := j.fabric.owner(frame.OuterDst); n != nil {
			n.fromTunnel(j, frame)
			return
		}
		j.drop("nobody on the underlay has %s", frame.OuterDst)
		return
	}
	if n := j.fabric.owner(frame.NextHop); n != nil {
		n.fromUnderlay(j, frame.Inner)
		return
	}
	j.drop("nobody on the underlay has %s", frame.NextHop)
}
