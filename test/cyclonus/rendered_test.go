package cyclonus

import (
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/test/agreement"
)

// rendered is a world as the nodes' kernels have it, to be walked by the simulator.
type rendered struct {
	snap    *world.Snapshot
	cluster *agreement.Cluster
	// next is the source port of the next flow: each is a new one.
	next uint16
}

func render(t *testing.T, snap *world.Snapshot) *rendered {
	t.Helper()
	c, err := agreement.New(snap)
	if err != nil {
		t.Error(err) // Not Fatal: the conformance tests ask from goroutines of their own.
		c = nil
	}
	return &rendered{snap: snap, cluster: c, next: 49152}
}

// reaches reports whether the first packet of a flow between two pods arrives, and its
// way for people.
func (r *rendered) reaches(t *testing.T, from, to world.Key, protocol packet.Protocol, port uint16, family int) (bool, string) {
	t.Helper()
	p := packet.Packet{Protocol: protocol, SrcPort: r.next, DstPort: port, SYN: protocol == packet.TCP}
	r.next++
	at := oracle.Place{Kind: oracle.Pod, Pod: from}
	for b := range r.snap.Blocks.Values() {
		for _, a := range b.Allocations {
			if a.Addr.Is4() != (family == 0) {
				continue
			}
			switch (world.Key{Namespace: a.Owner.Namespace, Name: a.Owner.Name}) {
			case from:
				p.Src, at.Node = a.Addr, b.Node
			case to:
				p.Dst = a.Addr
			}
		}
	}
	return r.send(t, oracle.Probe{From: at, Packet: p})
}

func (r *rendered) send(t *testing.T, p oracle.Probe) (arrives bool, way string) {
	t.Helper()
	if r.cluster == nil {
		return false, "nothing is rendered"
	}
	got, err := r.cluster.Send(p, 0)
	if err != nil {
		t.Error(err)
		return false, err.Error()
	}
	return !got.Dropped, strings.Join(got.Steps, "; ")
}
