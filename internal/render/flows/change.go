package flows

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
	"go4.org/netipx"

	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// Options of Compare.
type Options struct {
	// Adopting says that flows may have begun while there were no rules: those that are
	// allowed and were never judged are taken for judged.
	Adopting bool
	// AddOnly says that the new intent may lack something: what it does not know of is no
	// reason to cut a flow. Flows are adopted, and nothing else.
	AddOnly bool
}

// Change is the difference between two intents, as flows see it.
type Change struct {
	desired  intent.Node
	adopting bool
	addOnly  bool
	// all flows are concerned.
	all bool
	// moved are the addresses that had another owner before, or have none any more.
	moved map[netip.Addr]bool
	// changed are the addresses of ports that are judged by other rules now.
	changed map[netip.Addr]bool
	// peers are, by VPC, the addresses that entered or left a set that a list uses, or a
	// tenant.
	peers map[string]*netipx.IPSet
	// users are the addresses of ports with such lists, or of isolated tenants.
	users map[netip.Addr]bool
	// blocks are the node's own, if it is not known who was there before; false is a
	// route out of one.
	blocks *bart.Table[bool]
}

// Compare finds what a change of an intent can mean for flows. Without an old intent it
// is not known what was judged before: every flow is concerned.
func Compare(old *intent.Node, desired intent.Node, o Options) *Change {
	c := &Change{
		desired: desired, adopting: o.Adopting, addOnly: o.AddOnly,
		moved: map[netip.Addr]bool{}, changed: map[netip.Addr]bool{},
		users: map[netip.Addr]bool{},
	}
	if o.AddOnly {
		return c
	}
	if old == nil {
		c.all = true
		c.blocks = &bart.Table[bool]{}
		for _, r := range desired.Routes {
			c.blocks.Insert(r.Dst, r.NextHop.Local)
		}
		return c
	}
	c.ports(*old, desired)
	c.sets(*old, desired)
	return c
}

// ports finds the addresses that ports gave away or took, and the ports that are judged
// in another way.
func (c *Change) ports(old, desired intent.Node) {
	before, now := vnis(old), vnis(desired)
	for _, was := range old.Ports {
		is, _ := lookup(desired.Ports, was)
		for _, a := range was.Addresses {
			if !slices.Contains(is.Addresses, a) {
				c.moved[a] = true
			}
		}
	}
	for _, is := range desired.Ports {
		was, found := lookup(old.Ports, is)
		for _, a := range is.Addresses {
			// Nobody gets through to a vacant address of a block that is here, but a flow
			// may be older than the block: a plane that lets a new port carry forgets such
			// flows before. A port that carries already cannot be helped that way.
			// Elsewhere somebody else may have had the address.
			if !slices.Contains(was.Addresses, a) && (found || !local(old.Routes, is.VPC, a)) {
				c.moved[a] = true
			}
		}
		tenant := was.VPC != is.VPC || was.VNI != is.VNI || before[was.VPC] != now[is.VPC]
		if !found || !tenant && was.Ingress == is.Ingress && was.Egress == is.Egress {
			continue
		}
		for _, a := range is.Addresses {
			c.changed[a] = true
		}
	}
}

// lookup finds a port of the same ID.
func lookup(ports []intent.Port, p intent.Port) (intent.Port, bool) {
	i, found := slices.BinarySearchFunc(ports, p, intent.Port.Compare)
	if !found {
		return intent.Port{}, false
	}
	return ports[i], true
}

// local reports whether the longest route to an address ends on this node.
func local(routes []intent.Route, vpc string, a netip.Addr) (local bool) {
	bits := -1
	for _, r := range routes {
		if r.Dst.Bits() > bits && r.VPC == vpc && r.Dst.Contains(a) {
			bits, local = r.Dst.Bits(), r.NextHop.Local
		}
	}
	return local
}

func vnis(n intent.Node) map[string]uint32 {
	out := make(map[string]uint32, len(n.VPCs))
	for _, v := range n.VPCs {
		out[v.Name] = uint32(v.VNI)
	}
	return out
}

// sets finds the addresses that are in a set now and were not, or were and are not,
// and the ports with lists that use it.
func (c *Change) sets(old, desired intent.Node) {
	differ, used := map[setName]bool{}, map[setName]bool{}
	for vpc, name := range differing(old.AddressSets, desired.AddressSets) {
		n := setName{vpc, name}
		differ[n] = true
		switch _, tenant := (intent.AddressSet{Name: name}).Tenant(); {
		case name == intent.SetSubnets:
			c.all = true // which addresses are in what VPC is everybody's rule
		case tenant && c.isolated(vpc):
			used[n] = true
		}
	}
	if len(differ) == 0 {
		return
	}
	uses := map[string][]setName{} // by list
	for _, l := range desired.RuleLists {
		for _, r := range l.Rules {
			for _, s := range r.Match.Sets {
				if n := (setName{l.VPC, s}); differ[n] && !slices.Contains(uses[l.ID], n) {
					uses[l.ID] = append(uses[l.ID], n)
				}
			}
		}
	}
	for _, p := range desired.Ports {
		for _, id := range []string{p.Ingress, p.Egress} {
			for _, n := range uses[id] {
				used[n] = true
				for _, a := range p.Addresses {
					c.users[a] = true
				}
			}
		}
	}
	c.difference(old, desired, used)
}

// isolated notes the ports of a VPC's isolated tenants as users of the tenants' sets, and
// reports whether there are any.
func (c *Change) isolated(vpc string) (are bool) {
	own := vnis(c.desired)[vpc]
	for _, p := range c.desired.Ports {
		if p.VPC == vpc && uint32(p.VNI) != own {
			are = true
			for _, a := range p.Addresses {
				c.users[a] = true
			}
		}
	}
	return are
}

// setName names a set.
type setName struct{ vpc, name string }

func (c *Change) difference(old, desired intent.Node, sets map[setName]bool) {
	builders := map[string]*netipx.IPSetBuilder{}
	for n := range sets {
		if builders[n.vpc] == nil {
			builders[n.vpc] = &netipx.IPSetBuilder{}
		}
		addDifference(builders[n.vpc], find(old.AddressSets, n), find(desired.AddressSets, n))
	}
	c.peers = map[string]*netipx.IPSet{}
	for vpc, b := range builders {
		// The builder fails for invalid prefixes only, which intent.Validate refuses.
		c.peers[vpc], _ = b.IPSet()
	}
}

// differing yields VPC and name of the sets that say something else.
func differing(old, desired []intent.AddressSet) func(yield func(vpc, name string) bool) {
	return func(yield func(vpc, name string) bool) {
		for len(old) > 0 || len(desired) > 0 {
			order := -1
			if len(old) == 0 {
				order = 1
			} else if len(desired) > 0 {
				order = old[0].Compare(desired[0])
			}
			var s intent.AddressSet
			same := false
			switch {
			case order < 0:
				s, old = old[0], old[1:]
			case order > 0:
				s, desired = desired[0], desired[1:]
			default:
				s, same = desired[0], old[0].Equal(desired[0])
				old, desired = old[1:], desired[1:]
			}
			if !same && !yield(s.VPC, s.Name) {
				return
			}
		}
	}
}

func find(sets []intent.AddressSet, n setName) []netip.Prefix {
	i, found := slices.BinarySearchFunc(sets, intent.AddressSet{VPC: n.vpc, Name: n.name}, intent.AddressSet.Compare)
	if !found {
		return nil
	}
	return sets[i].Prefixes
}

// addDifference adds the addresses that are in exactly one of two sorted lists. The
// prefixes that both have are taken out first: sets are large and changes small.
func addDifference(to *netipx.IPSetBuilder, a, b []netip.Prefix) {
	var left, right netipx.IPSetBuilder
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && intent.ComparePrefix(a[0], b[0]) < 0:
			left.AddPrefix(a[0])
			a = a[1:]
		case len(a) == 0 || intent.ComparePrefix(a[0], b[0]) > 0:
			right.AddPrefix(b[0])
			b = b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
	l, _ := left.IPSet()
	r, _ := right.IPSet()
	if l == nil || r == nil {
		return
	}
	for _, side := range [][2]*netipx.IPSet{{l, r}, {r, l}} {
		var only netipx.IPSetBuilder
		only.AddSet(side[0])
		only.RemoveSet(side[1])
		if s, _ := only.IPSet(); s != nil {
			to.AddSet(s)
		}
	}
}

// Query is a part of a node's flows.
type Query struct {
	// End is the source of the flow's first packet or of its answers; the zero Addr is
	// every address.
	End netip.Addr
	// Unjudged: only flows that were never judged.
	Unjudged bool
}

// maxEnds bounds the addresses that are asked for one by one: whoever goes through all
// flows for each soon does more than if it handed over everything once.
const maxEnds = 8

// Queries are the flows that a Decider has to be asked about; for all others it says Keep.
// None: the change means nothing to any flow.
func (c *Change) Queries() []Query {
	if c.all {
		return []Query{{}}
	}
	var out []Query
	if c.adopting {
		out = append(out, Query{Unjudged: true})
	}
	ends, few := c.ends()
	if !few {
		return []Query{{}}
	}
	for _, a := range ends {
		out = append(out, Query{End: a})
	}
	return out
}

// ends are the addresses one of which every concerned flow has, if they are few.
func (c *Change) ends() (ends []netip.Addr, few bool) {
	found := map[netip.Addr]bool{}
	for _, set := range []map[netip.Addr]bool{c.moved, c.changed} {
		for a := range set {
			found[a] = true
		}
	}
	// A flow has a peer in the difference and a port with the list: either finds it.
	peers, ok := c.peerAddresses()
	if !ok || len(peers) > len(c.users) {
		peers = c.users
	}
	for a := range peers {
		found[a] = true
	}
	if len(found) > maxEnds {
		return nil, false
	}
	for a := range found {
		ends = append(ends, a)
	}
	slices.SortFunc(ends, netip.Addr.Compare)
	return ends, true
}

func (c *Change) peerAddresses() (map[netip.Addr]bool, bool) {
	out := map[netip.Addr]bool{}
	for _, s := range c.peers {
		if s == nil {
			continue
		}
		for _, r := range s.Ranges() {
			for a := r.From(); a.IsValid() && a.Compare(r.To()) <= 0; a = a.Next() {
				if len(out) == maxEnds {
					return nil, false
				}
				out[a] = true
			}
		}
	}
	return out, true
}
