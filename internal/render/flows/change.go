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
	// tenant. narrowed are those of them by which something that was allowed may be denied;
	// widens says that there are others, which can only make more allowed than before.
	peers, narrowed map[string]*netipx.IPSet
	widens          bool
	// users are the addresses of ports that narrowed is about.
	users map[netip.Addr]bool
	// fresh are, by VPC, the addresses of new ports that nobody can have a flow with: while
	// they were vacant they were unreachable.
	fresh map[string][]netip.Addr
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
		users: map[netip.Addr]bool{}, fresh: map[string][]netip.Addr{},
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
			switch {
			case slices.Contains(was.Addresses, a):
			case found || !local(old.Routes, is.VPC, a):
				c.moved[a] = true
			case !c.moved[a]:
				c.fresh[is.VPC] = append(c.fresh[is.VPC], a)
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
	differ, used := map[setName]bool{}, map[setName]narrows{}
	for vpc, name := range differing(old.AddressSets, desired.AddressSets) {
		n := setName{vpc, name}
		differ[n] = true
		switch _, tenant := (intent.AddressSet{Name: name}).Tenant(); {
		case name == intent.SetSubnets:
			c.all = true // which addresses are in what VPC is everybody's rule
		case tenant && c.isolated(vpc):
			used[n] = narrows{entering: true, leaving: true}
		}
	}
	if len(differ) == 0 {
		return
	}
	lists := map[string]map[setName]narrows{}
	for _, l := range desired.RuleLists {
		for _, r := range l.Rules {
			for _, s := range r.Match.Sets {
				if n := (setName{l.VPC, s}); differ[n] {
					if lists[l.ID] == nil {
						lists[l.ID] = map[setName]narrows{}
					}
					lists[l.ID][n] = lists[l.ID][n].or(narrowing(r.Action))
				}
			}
		}
	}
	asked := map[string][]netip.Addr{} // by list
	for _, p := range desired.Ports {
		for _, id := range []string{p.Ingress, p.Egress} {
			if lists[id] != nil {
				asked[id] = append(asked[id], p.Addresses...)
			}
		}
	}
	for id, addrs := range asked {
		for n, how := range lists[id] {
			used[n] = used[n].or(how)
		}
		for _, a := range addrs {
			c.users[a] = true
		}
	}
	c.difference(old, desired, used)
}

// narrows says by what a set may make rules allow less than before: addresses that enter it,
// or that leave it.
type narrows struct{ entering, leaving bool }

func (n narrows) or(o narrows) narrows {
	return narrows{entering: n.entering || o.entering, leaving: n.leaving || o.leaving}
}

// narrowing is what the peers of a rule mean: one more that is accepted, or one less that
// is denied, makes the list allow no less, whatever its other rules say.
func narrowing(a intent.Action) narrows {
	return narrows{entering: a != intent.Accept, leaving: a != intent.Deny}
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

// difference fills peers, narrowed and widens.
func (c *Change) difference(old, desired intent.Node, sets map[setName]narrows) {
	peers, narrowed := map[string]*netipx.IPSetBuilder{}, map[string]*netipx.IPSetBuilder{}
	for n, how := range sets {
		if peers[n.vpc] == nil {
			peers[n.vpc], narrowed[n.vpc] = &netipx.IPSetBuilder{}, &netipx.IPSetBuilder{}
		}
		left, entered := difference(find(old.AddressSets, n), find(desired.AddressSets, n), c.fresh[n.vpc])
		for _, part := range []struct {
			set     *netipx.IPSet
			narrows bool
		}{{left, how.leaving}, {entered, how.entering}} {
			peers[n.vpc].AddSet(part.set)
			if part.narrows {
				narrowed[n.vpc].AddSet(part.set)
			} else {
				c.widens = c.widens || len(part.set.Ranges()) > 0
			}
		}
	}
	c.peers, c.narrowed = built(peers), built(narrowed)
}

func built(builders map[string]*netipx.IPSetBuilder) map[string]*netipx.IPSet {
	out := make(map[string]*netipx.IPSet, len(builders))
	for vpc, b := range builders {
		// The builder fails for invalid prefixes only, which intent.Validate refuses.
		out[vpc], _ = b.IPSet()
	}
	return out
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

// difference returns the addresses that are in one of two sorted lists only, without some.
// The prefixes that both have are taken out first: sets are large and changes small.
func difference(old, desired []netip.Prefix, without []netip.Addr) (left, entered *netipx.IPSet) {
	var a, b netipx.IPSetBuilder
	for len(old) > 0 || len(desired) > 0 {
		switch {
		case len(desired) == 0 || len(old) > 0 && intent.ComparePrefix(old[0], desired[0]) < 0:
			a.AddPrefix(old[0])
			old = old[1:]
		case len(old) == 0 || intent.ComparePrefix(old[0], desired[0]) > 0:
			b.AddPrefix(desired[0])
			desired = desired[1:]
		default:
			old, desired = old[1:], desired[1:]
		}
	}
	for _, addr := range without {
		a.Remove(addr)
		b.Remove(addr)
	}
	return only(&a, &b), only(&b, &a)
}

// only is what is in a and not in b.
func only(a, b *netipx.IPSetBuilder) *netipx.IPSet {
	out := a.Clone()
	if s, _ := b.IPSet(); s != nil {
		out.RemoveSet(s)
	}
	if s, _ := out.IPSet(); s != nil {
		return s
	}
	return &netipx.IPSet{}
}

// Query is a part of a node's flows.
type Query struct {
	// End is the source of the flow's first packet or of its answers; the zero Addr is
	// every address.
	End netip.Addr
	// Unjudged: only flows that were never judged. Cut: only flows that were cut.
	Unjudged, Cut bool
}

// Peer reports whether an address entered or left a set that matters. A Query for flows
// that were cut finds only those with such an end.
func (c *Change) Peer(a netip.Addr) bool {
	for _, s := range c.peers {
		if s != nil && s.Contains(a) {
			return true
		}
	}
	return false
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
	if c.widens {
		out = append(out, Query{Cut: true})
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
	for _, s := range c.narrowed {
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
