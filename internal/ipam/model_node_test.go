package ipam_test

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// modelNode is an agent and its disk.
type modelNode struct {
	*model
	name  string
	alive bool
	gone  bool // the Node object is deleted
	cut   bool // no connection to the datastore

	pool    *ipam.Pool
	tunnel  netip.Addr
	seen    map[netip.Prefix]*dsBlock // what the watch has delivered so far
	seenOf  map[string]map[netip.Addr]int
	offers  map[netip.Addr]*modelOffer
	want    bool
	version int
	flight  *flight                       // a write of the list whose answer is lost
	recalls map[netip.Prefix][]netip.Addr // marked, and not yet decided

	records map[netip.Addr]world.Owner // on disk, with fsync
	saved   []ipam.Block
	savedTn netip.Addr

	freedAt map[netip.Addr]time.Time // since the process started
	plane   map[netip.Addr]bool      // freed, but the plane still has it
	taken   []netip.Addr             // taken back, which is not saved yet

	unlisted map[netip.Prefix]unlisted
}

type modelOffer struct {
	block   netip.Prefix
	version int
	nonce   int
	listed  bool
}

type flight struct {
	rv       int
	borrowed map[netip.Addr]int
}

// join makes a new node of the name, with an empty disk.
func (n *modelNode) join() {
	if n.lists[n.name] == nil {
		n.lists[n.name] = &dsNode{borrowed: map[netip.Addr]int{}}
	}
	n.gone, n.records, n.saved, n.savedTn = false, map[netip.Addr]world.Owner{}, nil, netip.Addr{}
	n.start()
}

// start is the start of the agent from its disk.
func (n *modelNode) start() {
	n.alive, n.pool = true, ipam.NewPool(n.name)
	n.pool.SetSubnet(n.subnet)
	n.seen, n.seenOf = map[netip.Prefix]*dsBlock{}, map[string]map[netip.Addr]int{}
	n.offers, n.want, n.recalls = map[netip.Addr]*modelOffer{}, false, map[netip.Prefix][]netip.Addr{}
	n.freedAt, n.plane = map[netip.Addr]time.Time{}, map[netip.Addr]bool{}
	for _, b := range n.saved {
		b.Allocations = nil
		n.pool.AddBlock(b, n.now)
	}
	var records []ipam.Record
	for _, a := range sorted(n.records) {
		records = append(records, ipam.Record{Subnet: "s", Addr: a, Owner: n.records[a]})
	}
	if n.tunnel = n.savedTn; n.tunnel.IsValid() {
		records = append(records, ipam.Record{Subnet: "s", Addr: n.tunnel, Owner: ipam.TunnelOwner(n.name)})
		n.use(n.tunnel, ipam.TunnelOwner(n.name))
	}
	if conflicts := n.pool.Restore(records); conflicts != nil {
		n.t.Fatalf("%s: records conflict: %v", n.name, conflicts)
	}
	for _, b := range n.saved {
		for _, f := range b.Freed {
			n.pool.Dropped("s", f.Addr)
		}
	}
	n.taken, n.unlisted = nil, map[netip.Prefix]unlisted{}
}

func sorted[V any](m map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}

func byCIDR[V any](m map[netip.Prefix]V) []netip.Prefix {
	return slices.SortedFunc(maps.Keys(m), netip.Prefix.Compare)
}

// use says that an address is really used from now on.
func (n *modelNode) use(a netip.Addr, o world.Owner) {
	if u, taken := n.users[a]; taken && u != (user{n.name, o}) {
		n.t.Fatalf("DUPLICATE: %s is used by %s of %s and given to %s of %s", a, u.owner.Name, u.node, o.Name, n.name)
	}
	if _, ok := n.subnet.CIDROf(a); !ok || n.subnet.Excluded(a) != "" {
		n.t.Fatalf("%s was given, which is never to be given: %s", a, n.subnet.Excluded(a))
	}
	if at, freed := n.freedAt[a]; freed && (n.now.Sub(at) < ipam.RestTime || n.plane[a]) {
		n.t.Fatalf("%s was given %s after it was freed, plane has it: %v", a, n.now.Sub(at), n.plane[a])
	}
	n.users[a] = user{n.name, o}
}

// save writes the state file.
func (n *modelNode) save() {
	n.saved = n.pool.Blocks()
	n.saved = slices.DeleteFunc(n.saved, func(b ipam.Block) bool { return b.State == ipam.Lost })
	if n.savedTn = n.tunnel; n.tunnel.IsValid() {
		n.use(n.tunnel, ipam.TunnelOwner(n.name))
	}
	for _, a := range n.taken {
		n.pool.Dropped("s", a)
	}
	n.taken = nil
}

// allocate is a CNI ADD: an address, then the record, at any point a crash.
func (n *modelNode) allocate() {
	if !n.tunnel.IsValid() {
		if got, err := n.pool.Allocate(ipam.Request{Subnet: "s", Owner: ipam.TunnelOwner(n.name)}, n.now); err == nil {
			n.tunnel = got[0]
		}
	}
	n.serial++
	r := ipam.Request{Subnet: "s", Owner: pod(n.serial)}
	if n.chance(20) {
		b := n.subnet.CIDRs[n.rng.IntN(2)].Addr().As16()
		b[15] += byte(n.rng.IntN(16))
		r.Want = []netip.Addr{netip.AddrFrom16(b).Unmap()}
	}
	got, err := n.pool.Allocate(r, n.now)
	if err != nil {
		n.want = true
		return
	}
	a := got[0]
	if cidr, own := n.pool.BlockOf("s", a); own {
		if b, _ := n.pool.Block("s", cidr); b.State != ipam.Open {
			n.t.Fatalf("%s gave %s of a block that is %s", n.name, a, b.State)
		}
	}
	switch {
	case n.chance(5): // The agent dies before the record is written.
		n.start()
	case n.chance(5):
		n.pool.Cancel("s", a, r.Owner, n.now)
	default:
		n.records[a] = r.Owner
		n.use(a, r.Owner)
	}
}

// release is a CNI DEL.
func (n *modelNode) release() {
	if len(n.records) == 0 {
		return
	}
	a := sorted(n.records)[n.rng.IntN(len(n.records))]
	o := n.records[a]
	delete(n.records, a)
	delete(n.users, a)
	if !n.pool.Release("s", a, o, n.now) {
		n.t.Fatalf("%s: %s was not held by %v", n.name, a, o)
	}
	n.freedAt[a], n.plane[a] = n.now, true
}

func (n *modelNode) drop() {
	for _, a := range sorted(n.plane) {
		delete(n.plane, a)
		n.pool.Dropped("s", a)
	}
}

// claim creates an IPBlock by what the node has seen; the answer may be lost.
func (n *modelNode) claim() {
	if n.cut {
		return
	}
	taken := byCIDR(n.seen)
	for _, b := range n.pool.Blocks() {
		taken = append(taken, b.CIDR)
	}
	cidr, ok := ipam.NextBlock(n.subnet, taken, n.name, n.family)
	if !ok {
		return
	}
	if n.blocks[cidr] != nil {
		n.seen[cidr] = n.blocks[cidr]
		return
	}
	n.serial++
	n.blocks[cidr] = &dsBlock{uid: n.serial, node: n.name}
	if !n.chance(10) {
		n.pool.AddBlock(ipam.Block{Subnet: "s", CIDR: cidr, Node: n.name}, n.now)
	}
}

// watch delivers everything, and what follows from it without the datastore.
func (n *modelNode) watch() {
	if n.cut {
		return
	}
	n.seen, n.seenOf = maps.Clone(n.blocks), map[string]map[netip.Addr]int{}
	for name, l := range n.lists {
		n.seenOf[name] = l.borrowed
	}
	for _, cidr := range byCIDR(n.seen) {
		b := n.seen[cidr]
		if n.want && b.node != n.name {
			n.takeOffers(cidr, b)
		}
	}
}

func (n *modelNode) takeOffers(cidr netip.Prefix, b *dsBlock) {
	held := map[netip.Addr]bool{}
	for _, x := range n.pool.Borrowed() {
		held[x.Addr] = true
	}
	for _, a := range sorted(b.lent) {
		if b.lent[a] == n.name && !held[a] && n.offers[a] == nil {
			n.serial++
			n.version++
			n.offers[a] = &modelOffer{block: cidr, version: n.version, nonce: n.serial}
		}
	}
}

// verify reads the own blocks: lost, gone, or to be adopted.
func (n *modelNode) verify() {
	if n.cut {
		return
	}
	for _, b := range n.pool.Blocks() {
		switch o := n.blocks[b.CIDR]; {
		case o != nil && o.node != n.name:
			n.pool.SetState("s", b.CIDR, ipam.Lost)
			if len(b.Allocations) == 0 {
				n.pool.RemoveBlock("s", b.CIDR)
			}
		case o == nil && len(b.Allocations)+len(b.Lent) == 0:
			n.pool.RemoveBlock("s", b.CIDR)
		}
	}
	for _, cidr := range byCIDR(n.blocks) {
		o := n.blocks[cidr]
		if _, own := n.pool.Block("s", cidr); own || o.node != n.name {
			continue
		}
		lent := []world.Loan{}
		for _, a := range sorted(o.lent) {
			lent = append(lent, world.Loan{Addr: a, Node: o.lent[a]})
		}
		n.pool.AddBlock(ipam.Block{Subnet: "s", CIDR: cidr, Node: n.name, Lent: lent}, n.now)
		if a := n.tunnel; !a.IsValid() { // An earlier life's tunnel address.
			for _, x := range sorted(o.alloc) {
				if o.alloc[x] == ipam.TunnelOwner(n.name) && len(n.pool.Restore([]ipam.Record{{Subnet: "s", Addr: x, Owner: o.alloc[x]}})) == 0 {
					n.tunnel = x
				}
			}
		}
	}
}

// publish saves, and writes one own block.
func (n *modelNode) publish() {
	n.save()
	if n.cut {
		return
	}
	for _, b := range n.saved {
		if o := n.blocks[b.CIDR]; b.State == ipam.Open && o != nil && o.node == n.name {
			n.write(b, o.uid, nil, nil)
		}
	}
}

// write makes a block's object say what a saved block says.
func (n *modelNode) write(b ipam.Block, uid int, recall, without []netip.Addr) {
	o := &dsBlock{uid: uid, node: n.name, alloc: map[netip.Addr]world.Owner{}, lent: map[netip.Addr]string{}, recall: map[netip.Addr]bool{}}
	for _, a := range b.Allocations {
		o.alloc[a.Addr] = a.Owner
	}
	for _, l := range b.Lent {
		if !slices.Contains(without, l.Addr) {
			o.lent[l.Addr] = l.Node
		}
	}
	for _, a := range recall {
		o.recall[a] = true
	}
	n.blocks[b.CIDR] = o
}

func (n *modelNode) lend() {
	to := n.nodes[n.rng.IntN(len(n.nodes))]
	if to != n && !to.gone {
		_, _, _ = n.pool.Lend("s", n.family, to.name, n.now)
	}
}

// writeList writes the node's list; the answer may be lost, and the write late.
func (n *modelNode) writeList() {
	if n.cut {
		return
	}
	list := map[netip.Addr]int{}
	for _, b := range n.pool.Borrowed() {
		list[b.Addr] = 0
	}
	for a, o := range n.offers {
		list[a] = o.nonce
	}
	cur := n.lists[n.name]
	if n.chance(15) {
		n.flight = &flight{cur.rv, list}
		return
	}
	if !maps.Equal(cur.borrowed, list) {
		n.lists[n.name] = &dsNode{cur.rv + 1, list}
	}
	for _, o := range n.offers {
		o.listed = o.version <= n.version
	}
}

// arrive lets a late write arrive; it fails if anything was written since.
func (n *modelNode) arrive() {
	if f, cur := n.flight, n.lists[n.name]; f != nil {
		n.flight = nil
		if cur != nil && cur.rv == f.rv && !maps.Equal(cur.borrowed, f.borrowed) {
			n.lists[n.name] = &dsNode{f.rv + 1, f.borrowed}
		}
	}
}

// confirm is the second half of the borrower's protocol.
func (n *modelNode) confirm() {
	if n.cut {
		return
	}
	for _, a := range sorted(n.offers) {
		o := n.offers[a]
		if !o.listed {
			continue
		}
		delete(n.offers, a)
		if b := n.blocks[o.block]; b != nil && b.lent[a] == n.name && !b.recall[a] {
			n.pool.Borrow("s", a, n.now)
		}
		n.version++
	}
}

func (n *modelNode) giveBack() {
	n.want = n.chance(30)
	for _, b := range n.pool.Borrowed() {
		if !b.Stray && (b.Used || !n.want) {
			n.pool.Return("s", b.Addr, n.now)
			n.version++
		}
	}
	if !n.want {
		n.offers = map[netip.Addr]*modelOffer{}
		n.version++
	}
}

// mark is the first half of the owner's protocol.
func (n *modelNode) mark() {
	n.save()
	if n.cut {
		return
	}
	for _, b := range n.saved {
		o := n.blocks[b.CIDR]
		if b.State != ipam.Open || o == nil || o.node != n.name || len(b.Lent) == 0 {
			continue
		}
		var recall []netip.Addr
		for _, l := range b.Lent {
			if _, listed := n.seenOf[l.Node][l.Addr]; !listed {
				recall = append(recall, l.Addr)
			}
		}
		n.write(b, o.uid, recall, nil)
		n.recalls[b.CIDR] = recall
	}
}

// readLists is the second half: which of the marked addresses are not listed.
func (n *modelNode) readLists() {
	if n.cut {
		return
	}
	for _, cidr := range byCIDR(n.recalls) {
		o := n.blocks[cidr]
		addrs := n.recalls[cidr]
		delete(n.recalls, cidr)
		if o == nil || o.node != n.name {
			continue
		}
		back := []netip.Addr{}
		for _, a := range addrs {
			to := o.lent[a]
			if l := n.lists[to]; o.recall[a] && to != "" && (l == nil || n.isGone(to) || !has(l.borrowed, a)) {
				back = append(back, a)
			}
		}
		n.unlisted[cidr] = unlisted{o, back}
	}
}

// unlisted is what may be taken back if the block is still what it was when marked.
type unlisted struct {
	marked *dsBlock
	addrs  []netip.Addr
}

// takeBack ends the loans.
func (n *modelNode) takeBack() {
	if n.cut {
		return
	}
	for _, cidr := range byCIDR(n.unlisted) {
		u := n.unlisted[cidr]
		delete(n.unlisted, cidr)
		if n.blocks[cidr] != u.marked { // The compare-and-swap fails.
			continue
		}
		n.save()
		b, ok := n.pool.Block("s", cidr)
		if !ok {
			continue
		}
		n.write(b, u.marked.uid, nil, u.addrs)
		if n.chance(10) { // The agent dies before it hears of that.
			n.start()
			return
		}
		for _, a := range u.addrs {
			n.pool.TakeBack("s", a, n.now)
			n.taken = append(n.taken, a)
		}
	}
}

func has(m map[netip.Addr]int, a netip.Addr) bool { _, ok := m[a]; return ok }

func (m *model) isGone(name string) bool {
	return slices.ContainsFunc(m.nodes, func(n *modelNode) bool { return n.name == name && n.gone })
}

// closeEmpty closes empty blocks, which is saved before anything is deleted.
func (n *modelNode) closeEmpty() {
	for _, b := range n.pool.Blocks() {
		n.pool.Close("s", b.CIDR, n.now)
	}
	n.save()
}

// giveUp deletes closing blocks; the answer may be lost.
func (n *modelNode) giveUp() {
	if n.cut {
		return
	}
	for _, b := range n.pool.Blocks() {
		if b.State != ipam.Closing {
			continue
		}
		o := n.blocks[b.CIDR]
		ours := o != nil && o.node == n.name
		if len(b.Allocations)+len(b.Lent) > 0 || ours && len(o.lent) > 0 {
			n.pool.SetState("s", b.CIDR, ipam.Open)
			continue
		}
		if ours {
			delete(n.blocks, b.CIDR)
			if n.chance(30) {
				continue
			}
		}
		n.pool.RemoveBlock("s", b.CIDR)
	}
}

// drain ends all pods of the node.
func (n *modelNode) drain() {
	for len(n.records) > 0 {
		n.release()
	}
	n.drop()
}

// die deletes the node with all its pods.
func (n *modelNode) die() {
	n.alive, n.gone, n.flight = false, true, nil
	for a, u := range n.users {
		if u.node == n.name {
			delete(n.users, a)
		}
	}
	n.records, n.saved, n.savedTn, n.tunnel = nil, nil, netip.Addr{}, netip.Addr{}
}
