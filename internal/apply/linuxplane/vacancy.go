package linuxplane

import (
	"maps"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// vacancy knows the addresses of which conntrack can know no flow that was judged, so
// that a new port with one of them need not read the whole table. They lie in blocks of
// this node for which no packet found a way since all flows of their vacant addresses were
// forgotten: the block's unreachable route has been there all the time, no port has had
// the address since, and no route within the block has led elsewhere.
//
// It is emptied by everything that this could be wrong of: changes that others make,
// passes that only add, and failures. The zero value knows none.
type vacancy struct {
	blocks map[netip.Prefix]bool
	used   map[netip.Addr]bool
}

func (v *vacancy) forget() { *v = vacancy{} }

// has reports whether nobody can have judged a flow of the address.
func (v *vacancy) has(a netip.Addr) bool {
	if v.used[a] {
		return false
	}
	for b := range v.blocks {
		if b.Contains(a) {
			return true
		}
	}
	return false
}

// keeps reports whether the address is vacant in the intent, in a block that is known:
// what is sent to it is unreachable, and a port that gets it makes its flows forgotten, since
// it has been used.
func (v *vacancy) keeps(a netip.Addr, n intent.Node) bool {
	if !v.used[a] {
		return false
	}
	next := vacancy{blocks: maps.Clone(v.blocks), used: map[netip.Addr]bool{}}
	next.follow(n)
	return next.has(a)
}

// follow takes over an intent that is about to be in force: what leaves, what is used.
func (v *vacancy) follow(n intent.Node) {
	if len(v.blocks) == 0 {
		return
	}
	own := ownBlocks(n)
	maps.DeleteFunc(v.blocks, func(b netip.Prefix, _ bool) bool { return !own[b] })
	for _, r := range n.Routes {
		if r.NextHop.Local {
			continue
		}
		for b := range v.blocks {
			if b.Contains(r.Dst.Addr()) && r.Dst.Bits() >= b.Bits() {
				if r.Dst.IsSingleIP() {
					v.used[r.Dst.Addr()] = true
				} else {
					delete(v.blocks, b)
				}
			}
		}
	}
	for _, p := range n.Ports {
		for _, a := range p.Addresses {
			v.used[a] = true
		}
	}
}

// forgotten notes that the flows of all vacant addresses of the node's blocks, and of
// those of the ports that come, were forgotten while all of them were unreachable.
func (v *vacancy) forgotten(n intent.Node) {
	v.blocks, v.used = ownBlocks(n), map[netip.Addr]bool{}
	v.follow(n)
}

func ownBlocks(n intent.Node) map[netip.Prefix]bool {
	own := map[netip.Prefix]bool{}
	for _, r := range n.Routes {
		if r.NextHop.Local {
			own[r.Dst] = true
		}
	}
	return own
}
