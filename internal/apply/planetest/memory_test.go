package planetest_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply/memplane"
	"github.com/fairlead-sdn/fairlead/internal/apply/planetest"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// The suite itself needs no root: the plane in memory passes it.
func TestMemoryPlane(t *testing.T) {
	planetest.Run(t, func(*testing.T) planetest.Harness {
		fabric := memplane.NewFabric()
		p := fabric.Node("n1")
		return planetest.Harness{
			Plane: p,
			Netns: func(*testing.T) string { return "/run/netns/pod" },
			Break: func(_ *testing.T, port intent.Port) func() {
				p.Fail(port.Ref(), errors.New("broken by the test"))
				return func() { p.Fail(port.Ref(), nil) }
			},
			Damage: func(t *testing.T, r intent.Ref) {
				if !p.Damage(r) {
					t.Errorf("%s was not there", r)
				}
			},
			Probe: func(t *testing.T, from, to intent.Port, addr netip.Addr, proto packet.Protocol) bool {
				return probe(fabric, from, to, addr, proto)
			},
			Open: func(t *testing.T, from, to intent.Port, addr netip.Addr, proto packet.Protocol) func(bool) bool {
				if !probe(fabric, from, to, addr, proto) {
					t.Errorf("%s does not reach %s over %s", from.Pod, addr, proto)
				}
				next := first(from, addr, proto)
				next.SYN = false
				return func(back bool) bool {
					if back {
						return !fabric.Send(memplane.Place{Node: "n1", Port: to.ID}, next.Reverse()).Dropped
					}
					return !fabric.Send(memplane.Place{Node: "n1", Port: from.ID}, next).Dropped
				}
			},
		}
	})
}

// first is the first packet of a conversation.
func first(from intent.Port, addr netip.Addr, proto packet.Protocol) packet.Packet {
	src := from.Addresses[0]
	if addr.Is6() {
		src = from.Addresses[1]
	}
	return packet.Packet{Src: src, Dst: addr, Protocol: proto, SrcPort: 30000, DstPort: 8080, SYN: proto == packet.TCP}
}

// probe asks whether the first packet of a conversation arrives, and its answer.
func probe(fabric *memplane.Fabric, from, to intent.Port, addr netip.Addr, proto packet.Protocol) bool {
	d := fabric.Send(memplane.Place{Node: "n1", Port: from.ID}, first(from, addr, proto))
	if d.Dropped || d.At.Port != to.ID {
		return false
	}
	d = fabric.Send(d.At, d.Packet.Reverse())
	return !d.Dropped && d.At.Port == from.ID
}
