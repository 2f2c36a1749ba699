package ipam_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// The model: a datastore of two kinds of objects, nodes that run the protocol of the
// package documentation one small step at a time, and the truth about who really uses
// an address.

// dsBlock is an IPBlock. Every write makes a new value.
type dsBlock struct {
	uid    int
	node   string
	alloc  map[netip.Addr]world.Owner
	lent   map[netip.Addr]string
	recall map[netip.Addr]bool
}

// dsNode is a NodeNetwork: what it lists, each with the nonce of its listing.
type dsNode struct {
	rv       int
	borrowed map[netip.Addr]int
}

// user is who really sends from an address.
type user struct {
	node  string
	owner world.Owner
}

type model struct {
	t      *rapid.T
	rng    *rand.Rand // rapid's own integers prefer small values, which would starve operations
	now    time.Time
	subnet ipam.Subnet
	family ipam.Family
	blocks map[netip.Prefix]*dsBlock
	lists  map[string]*dsNode
	nodes  []*modelNode
	users  map[netip.Addr]user
	// collecting is the controller's half-done recall of a gone node's block.
	collecting map[netip.Prefix]*dsBlock
	serial     int
}

func newModel(t *rapid.T) *model {
	m := &model{
		t: t, rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)), now: t0, family: ipam.IPv4, blocks: map[netip.Prefix]*dsBlock{}, lists: map[string]*dsNode{},
		users: map[netip.Addr]user{}, collecting: map[netip.Prefix]*dsBlock{},
		subnet: ipam.Subnet{Name: "s", CIDRs: prefixes("10.0.0.0/28", "10.0.1.0/29"), BlockBits4: 29, Exclude: prefixes("10.0.0.12/32")},
	}
	if m.rng.IntN(2) == 0 {
		m.family = ipam.IPv6
		m.subnet = ipam.Subnet{Name: "s", CIDRs: prefixes("fd00::/124", "fd00:1::/125"), BlockBits6: 125, Exclude: prefixes("fd00::c/128")}
	}
	for i := range 2 + m.rng.IntN(3) {
		n := &modelNode{model: m, name: fmt.Sprintf("n%d", i)}
		m.nodes = append(m.nodes, n)
		n.join()
	}
	return m
}

func (m *model) chance(percent int) bool { return m.rng.IntN(100) < percent }

// collect is the controller: blocks of gone nodes, by the owner's protocol.
func (m *model) collect() {
	for _, cidr := range byCIDR(m.blocks) {
		b := m.blocks[cidr]
		if !m.isGone(b.node) {
			continue
		}
		if m.collecting[cidr] != b { // Mark first.
			marked := *b
			marked.recall = map[netip.Addr]bool{}
			for a := range b.lent {
				marked.recall[a] = true
			}
			m.blocks[cidr], m.collecting[cidr] = &marked, &marked
			continue
		}
		delete(m.collecting, cidr)
		free := true
		for a, to := range b.lent {
			if l := m.lists[to]; l != nil && !m.isGone(to) && has(l.borrowed, a) {
				free = false
			}
		}
		if free {
			delete(m.blocks, cidr)
		}
	}
}

// exclusive holds that at no moment two nodes may give the same address, long before
// they do.
func (m *model) exclusive() {
	givers := map[netip.Addr]string{}
	may := func(n *modelNode, a netip.Addr) {
		if other, two := givers[a]; two {
			m.t.Fatalf("both %s and %s may give %s", other, n.name, a)
		}
		givers[a] = n.name
	}
	for _, n := range m.nodes {
		if !n.alive {
			continue
		}
		for _, b := range n.pool.Blocks() {
			lent := map[netip.Addr]bool{}
			for _, l := range b.Lent {
				lent[l.Addr] = true
			}
			for a := b.CIDR.Addr(); b.CIDR.Contains(a) && b.State == ipam.Open; a = a.Next() {
				if !lent[a] {
					may(n, a)
				}
			}
		}
		for _, b := range n.pool.Borrowed() {
			if !b.Stray {
				may(n, b.Addr)
			}
		}
	}
}

// recount compares every node's figures with a count of what it holds.
func (m *model) recount() {
	for _, n := range m.nodes {
		if !n.alive {
			continue
		}
		u := n.pool.Usage("s", n.family, n.now)
		want := ipam.Usage{Subnet: "s", Family: n.family, Percent: u.Percent, Warning: u.Warning}
		usable := uint64(0)
		count := func(o world.Owner) {
			if ipam.IsTunnel(o) {
				want.Tunnels++
			} else {
				want.Used++
			}
		}
		outline := n.pool.Outline()
		for i, b := range n.pool.Blocks() {
			if o := (ipam.Block{Subnet: b.Subnet, CIDR: b.CIDR, Node: b.Node, State: b.State, Cursor: b.Cursor, Lent: b.Lent}); !reflect.DeepEqual(outline[i], o) {
				m.t.Fatalf("%s: outline %+v, want %+v", n.name, outline[i], o)
			}
			want.Blocks++
			for a := b.CIDR.Addr(); b.CIDR.Contains(a); a = a.Next() {
				if b.State != ipam.Lost && n.subnet.Excluded(a) == "" {
					usable++
				}
			}
			for _, a := range b.Allocations {
				count(a.Owner)
			}
			want.Lent += uint64(len(b.Lent))
			for _, f := range b.Freed {
				if b.State != ipam.Lost && (!f.Dropped || n.now.Sub(f.At) < ipam.RestTime) {
					want.Resting++
				}
			}
		}
		for _, b := range n.pool.Borrowed() {
			if b.Stray {
				continue
			}
			want.Borrowed++
			usable++
			if b.Owner != (world.Owner{}) {
				count(b.Owner)
			} else if b.Used {
				want.Resting++
			}
		}
		want.Capacity = usable - min(want.Tunnels, usable)
		want.Free = want.Capacity - min(want.Capacity, want.Used+want.Lent+want.Resting)
		if u != want {
			m.t.Fatalf("%s: usage %+v, a recount says %+v", n.name, u, want)
		}
		for a, o := range n.records {
			if held, ok := n.pool.HolderOf("s", a); !ok || held != o {
				m.t.Fatalf("%s: the record of %v says %s, the pool %v", n.name, o, a, held)
			}
		}
	}
}

func (m *model) step() {
	n := m.nodes[m.rng.IntN(len(m.nodes))]
	type op struct {
		name   string
		weight int
		run    func()
	}
	ops := []op{
		{"advance", 4, func() { m.now = m.now.Add(time.Duration(1+m.rng.IntN(40)) * time.Second) }},
		{"arrive", 3, n.arrive},
		{"collect", 4, m.collect},
	}
	cut := 1
	if n.cut {
		cut = 15
	}
	switch {
	case n.gone:
		ops = append(ops, op{"join", 5, n.join})
	case n.alive:
		ops = append(ops,
			op{"allocate", 20, n.allocate}, op{"release", 10, n.release}, op{"drop", 12, n.drop}, op{"claim", 8, n.claim},
			op{"watch", 14, n.watch}, op{"verify", 4, n.verify}, op{"publish", 5, n.publish}, op{"lend", 6, n.lend},
			op{"write list", 14, n.writeList}, op{"confirm", 12, n.confirm}, op{"give back", 3, n.giveBack},
			op{"mark", 6, n.mark}, op{"read lists", 6, n.readLists}, op{"take back", 6, n.takeBack},
			op{"close empty", 3, n.closeEmpty}, op{"give up", 5, n.giveUp}, op{"drain", 2, n.drain}, op{"crash", 3, n.start},
			op{"cut", cut, func() { n.cut = !n.cut }}, op{"die", 1, n.die},
		)
	}
	total := 0
	for _, o := range ops {
		total += o.weight
	}
	pick := m.rng.IntN(total)
	for _, o := range ops {
		if pick -= o.weight; pick < 0 {
			m.t.Log(n.name, o.name)
			o.run()
			break
		}
	}
	m.recount()
	m.exclusive()
}

// checkModel runs random operations with crashes, partitions, lost answers, late writes
// and deleted nodes: never a duplicate, never an address that must not be given, never
// one that rests, and counters that equal a recount.
func checkModel(t *testing.T, steps int) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		for range steps {
			m.step()
		}
	})
}

// TestModel runs 5,000 operations.
func TestModel(t *testing.T) { checkModel(t, 50) } // A10, A6

// TestModelLong runs 10⁵, if FAIRLEAD_LONG is set.
func TestModelLong(t *testing.T) { // A10, A6
	if os.Getenv("FAIRLEAD_LONG") == "" {
		t.Skip("set FAIRLEAD_LONG=1 for 10⁵ operations")
	}
	checkModel(t, 1000)
}
