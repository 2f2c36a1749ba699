package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/decide/addressing"
	"github.com/fairlead-sdn/fairlead/internal/decide/selector"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// held is an address that a block, or where no block says anything an attachment of this
// node or a pod's status, gives to somebody.
type held struct {
	addr  netip.Addr
	owner world.Owner
	vpc   string
	// node is where the owner is.
	node string
}

func (h held) compare(o held) int {
	return cmp.Or(h.addr.Compare(o.addr), cmp.Compare(h.owner.Namespace, o.owner.Namespace), cmp.Compare(h.owner.Name, o.owner.Name), cmp.Compare(h.owner.UID, o.owner.UID))
}

// key of the pod that holds the address; false for what is no pod.
func (h held) key() (world.Key, bool) {
	return world.Key{Namespace: h.owner.Namespace, Name: h.owner.Name}, h.owner.Namespace != ""
}

func (h held) isNodes() bool {
	return h.owner.Namespace == "" && strings.HasPrefix(h.owner.Name, "node/")
}

// source is where addresses are given out: a block in use, or the statuses of the
// pods of a node, and on this node its attachments. held is sorted by address; an address that is given to two is
// nobody's.
type source struct {
	block *world.Block // nil for a node
	in    addressing.BlockInUse
	held  []held
}

func (s *source) list() []held {
	if s == nil {
		return nil
	}
	return s.held
}

// peer is what is kept about a pod: its addresses, and the ports that it names.
type peer struct {
	held  []held
	ports []world.ContainerPort
}

type (
	pod       = selector.Pod[peer]
	podChange = selector.PodChange[peer]
)

// book knows who has which address. It is immutable.
type book struct {
	routes   *addressing.Routes
	byCIDR   []addressing.BlockInUse // InUse by CIDR
	blocks   world.Table[*source]    // in use, by name
	statuses world.Table[*source]    // by node
	byNode   world.Table[*nodePods]
	// strays are addresses that blocks give out that are not in use, sorted.
	strays []netip.Addr
	// nodes are the addresses of pod Subnets that nodes themselves have, sorted.
	nodes []held
	index selector.Index[peer]
}

// nodePods are the pods of a node whose status tells an address.
type nodePods struct{ pods []*world.Pod }

// bookkeeper makes the next book.
type bookkeeper struct {
	*book
	old *book
	was *world.Snapshot
	now *world.Snapshot
	// dirty holds the nodes whose statuses must be read again.
	dirty map[string]bool
	// pods may have changed, order lists them as they were found.
	pods  map[world.Key]*pending
	order []*pending
	// attached are the nodes whose blocks have addresses of this node's attachments.
	attached   map[string]bool
	nodesMoved bool
}

// update makes the book of a world from that of another, and returns the pods that
// changed.
func (b *book) update(was, now *world.Snapshot, routes *addressing.Routes) (*book, []podChange) {
	next := *b
	k := &bookkeeper{
		book: &next, old: b, was: was, now: now, dirty: map[string]bool{}, pods: map[world.Key]*pending{}, attached: map[string]bool{},
	}
	k.readPods()
	k.readRoutes(routes)
	k.readBlocks()
	k.readAttachments()
	k.readStatuses()
	if k.nodesMoved {
		k.collectNodes()
	}
	changes := k.changes()
	if len(changes) > 0 || was.Namespaces != now.Namespaces {
		next.index = b.index.With(now.Namespaces, changes)
	}
	return &next, changes
}

func (k *bookkeeper) readRoutes(routes *addressing.Routes) {
	if k.old.routes == routes {
		return
	}
	k.routes = routes
	k.byCIDR = slices.Clone(routes.InUse)
	slices.SortFunc(k.byCIDR, func(a, b addressing.BlockInUse) int { return a.CIDR.Addr().Compare(b.CIDR.Addr()) })
	inUse := make(map[string]bool, len(routes.InUse))
	for _, in := range routes.InUse {
		inUse[in.Name] = true
	}
	for key, old := range k.old.blocks.All() {
		if !inUse[key.Name] {
			k.replace(old, nil)
			k.blocks = k.blocks.Without(key)
			k.dirty[old.in.Node] = true
		}
	}
}

// readBlocks reads the blocks that changed, and those that lend to nodes that did.
func (k *bookkeeper) readBlocks() {
	moved := k.old.routes != k.routes
	borrowed := false
	for d := range world.Diff(k.was.NodeNetworks, k.now.NodeNetworks) {
		borrowed = borrowed || !d.HadOld || !d.HasNew || !slices.Equal(d.Old.Borrowed, d.New.Borrowed)
	}
	strays := moved
	if moved || borrowed {
		for _, in := range k.routes.InUse {
			k.readBlock(in)
		}
	} else {
		for d := range world.Diff(k.was.Blocks, k.now.Blocks) {
			if i, found := slices.BinarySearchFunc(k.routes.InUse, d.Key.Name, func(in addressing.BlockInUse, name string) int { return cmp.Compare(in.Name, name) }); found {
				k.readBlock(k.routes.InUse[i])
			} else {
				strays = true
			}
		}
	}
	if strays {
		k.readStrays()
	}
}

// readBlock reads one block, unless nothing of it can have changed.
func (k *bookkeeper) readBlock(in addressing.BlockInUse) {
	key := world.Key{Name: in.Name}
	old, _ := k.old.blocks.Get(key)
	block, ok := k.now.Blocks.Get(key)
	if !ok || old != nil && old.block == block && old.in == in && len(block.Lent) == 0 {
		return
	}
	s := &source{block: block, in: in, held: k.heldOf(block, in)}
	k.dirty[in.Node] = true
	if old != nil {
		k.dirty[old.in.Node] = true
	}
	k.replace(old, s)
	k.blocks = k.blocks.With(key, s)
}

// heldOf reads who holds the addresses of a block. A lent address is whose the
// borrower says; the block's own allocation does not count for it.
func (k *bookkeeper) heldOf(block *world.Block, in addressing.BlockInUse) []held {
	list := make([]held, 0, len(block.Allocations)+len(block.Lent))
	lent := make(map[netip.Addr]bool, len(block.Lent))
	for _, l := range block.Lent {
		if lent[l.Addr] || l.Node == in.Node || !in.CIDR.Contains(l.Addr) {
			continue
		}
		lent[l.Addr] = true
		n, known := k.now.NodeNetworks.Get(world.Key{Name: l.Node})
		if !known {
			continue
		}
		if i := slices.IndexFunc(n.Borrowed, func(a world.Allocation) bool { return a.Addr == l.Addr }); i >= 0 {
			list = append(list, held{addr: l.Addr, owner: n.Borrowed[i].Owner, vpc: in.VPC, node: l.Node})
		}
	}
	for _, a := range block.Allocations {
		if in.CIDR.Contains(a.Addr) && !lent[a.Addr] {
			list = append(list, held{addr: a.Addr, owner: a.Owner, vpc: in.VPC, node: in.Node})
		}
	}
	return unambiguous(list)
}

// unambiguous sorts, and leaves out the addresses that are given to two.
func unambiguous(list []held) []held {
	slices.SortFunc(list, held.compare)
	list = slices.Compact(list)
	out := list[:0]
	for i := 0; i < len(list); {
		j := i + 1
		for j < len(list) && list[j].addr == list[i].addr {
			j++
		}
		if j == i+1 {
			out = append(out, list[i])
		}
		i = j
	}
	return out
}

func (k *bookkeeper) readStrays() {
	var strays []netip.Addr
	for b := range k.now.Blocks.Values() {
		_, inUse := slices.BinarySearchFunc(k.routes.InUse, b.Name, func(in addressing.BlockInUse, name string) int { return cmp.Compare(in.Name, name) })
		if inUse {
			continue
		}
		for _, a := range b.Allocations {
			strays = append(strays, a.Addr)
		}
	}
	slices.SortFunc(strays, netip.Addr.Compare)
	if slices.Equal(strays, k.strays) {
		return
	}
	k.strays = strays
	for node := range k.byNode.All() {
		k.dirty[node.Name] = true
	}
}

// readPods follows the pods' own objects. It comes first: it finds most pods in order.
func (k *bookkeeper) readPods() {
	moves := map[string][]world.Delta[*world.Pod]{}
	for d := range world.Diff(k.was.Pods, k.now.Pods) {
		k.expect(&pending{key: d.Key, object: d.New})
		if d.HadOld && tells(d.Old) {
			moves[d.Old.Node] = append(moves[d.Old.Node], world.Delta[*world.Pod]{Key: d.Key, Old: d.Old, HadOld: true})
		}
		if d.HasNew && tells(d.New) {
			moves[d.New.Node] = append(moves[d.New.Node], world.Delta[*world.Pod]{Key: d.Key, New: d.New, HasNew: true})
		}
	}
	for node, deltas := range moves {
		key := world.Key{Name: node}
		k.dirty[node] = true
		gone := map[*world.Pod]bool{}
		var pods []*world.Pod
		for _, d := range deltas {
			if d.HadOld {
				gone[d.Old] = true
			}
			if d.HasNew {
				pods = append(pods, d.New)
			}
		}
		if list, ok := k.byNode.Get(key); ok {
			for _, p := range list.pods {
				if !gone[p] {
					pods = append(pods, p)
				}
			}
		}
		if len(pods) == 0 {
			k.byNode = k.byNode.Without(key)
			continue
		}
		k.byNode = k.byNode.With(key, &nodePods{pods: pods})
	}
}

// readAttachments finds the nodes of whose blocks this node's own attachments have
// addresses, which is this one, and has it read again if they changed. Blocks say the
// same a moment later, when the datastore has them: pods of a node need not wait for that
// to reach each other.
func (k *bookkeeper) readAttachments() {
	if k.was.Attachments == k.now.Attachments && len(k.dirty) == 0 {
		return
	}
	for _, table := range []world.Table[*world.Attachment]{k.was.Attachments, k.now.Attachments} {
		for at := range table.Values() {
			for _, a := range at.Addresses {
				if in, ok := k.blockOf(a); ok {
					k.attached[in.Node] = true
				}
			}
		}
	}
	if k.was.Attachments != k.now.Attachments {
		maps.Copy(k.dirty, k.attached)
	}
}

// tells reports whether the addresses of a pod's status may be its own.
func tells(p *world.Pod) bool { return !p.HostNetwork && !p.Finished && len(p.Addresses) > 0 }

// readStatuses reads what attachments and pods' statuses say where no block says
// anything: the address must be of a block of the pod's node.
func (k *bookkeeper) readStatuses() {
	for node := range k.dirty {
		key := world.Key{Name: node}
		var list []held
		if on, ok := k.byNode.Get(key); ok {
			for _, p := range on.pods {
				for _, a := range p.Addresses {
					if in, ok := k.unsaid(a, node); ok {
						list = append(list, held{addr: a, owner: world.Owner{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, vpc: in.VPC, node: node})
					}
				}
			}
		}
		if k.attached[node] {
			list = append(list, k.attachedTo(node)...)
		}
		old, had := k.statuses.Get(key)
		if len(list) == 0 && !had {
			continue
		}
		s := &source{held: unambiguous(list)}
		k.replace(old, s)
		if len(s.held) == 0 {
			k.statuses = k.statuses.Without(key)
		} else {
			k.statuses = k.statuses.With(key, s)
		}
	}
}

// attachedTo are the addresses of attachments that are of a node's blocks, where no block
// says anything.
func (k *bookkeeper) attachedTo(node string) (list []held) {
	for at := range k.now.Attachments.Values() {
		for _, a := range at.Addresses {
			if in, ok := k.unsaid(a, node); ok && at.Pod.Namespace != "" {
				list = append(list, held{addr: a, owner: at.Pod, vpc: in.VPC, node: node})
			}
		}
	}
	return list
}

// unsaid returns the block of a node that an address is of, if no block says whose
// it is.
func (k *bookkeeper) unsaid(a netip.Addr, node string) (addressing.BlockInUse, bool) {
	in, ok := k.blockOf(a)
	if !ok || in.Node != node {
		return addressing.BlockInUse{}, false
	}
	s, ok := k.blocks.Get(world.Key{Name: in.Name})
	if !ok {
		return addressing.BlockInUse{}, false
	}
	if _, stray := slices.BinarySearchFunc(k.strays, a, netip.Addr.Compare); stray {
		return addressing.BlockInUse{}, false
	}
	// What is not in held may be allocated all the same: to two, or lent.
	if _, said := slices.BinarySearchFunc(s.held, a, func(h held, a netip.Addr) int { return h.addr.Compare(a) }); said {
		return addressing.BlockInUse{}, false
	}
	lent := slices.ContainsFunc(s.block.Lent, func(l world.Loan) bool { return l.Addr == a })
	allocated := slices.ContainsFunc(s.block.Allocations, func(l world.Allocation) bool { return l.Addr == a })
	return in, !lent && !allocated
}

// blockOf returns the block in use that an address is of.
func (k *bookkeeper) blockOf(a netip.Addr) (addressing.BlockInUse, bool) {
	i, found := slices.BinarySearchFunc(k.byCIDR, a, func(in addressing.BlockInUse, a netip.Addr) int { return in.CIDR.Addr().Compare(a) })
	if !found {
		i--
	}
	if i < 0 || !k.byCIDR[i].CIDR.Contains(a) {
		return addressing.BlockInUse{}, false
	}
	return k.byCIDR[i], true
}

// replace notes what differs between two versions of a source.
func (k *bookkeeper) replace(old, now *source) {
	a, b := old.list(), now.list()
	for len(a) > 0 || len(b) > 0 {
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = a[0].addr.Compare(b[0].addr)
		}
		if order == 0 && a[0] == b[0] {
			a, b = a[1:], b[1:]
			continue
		}
		if order <= 0 {
			if p := k.holder(a[0]); p != nil {
				p.gone = append(p.gone, a[0])
			}
			a = a[1:]
		}
		if order >= 0 {
			if p := k.holder(b[0]); p != nil {
				p.come = append(p.come, b[0])
			}
			b = b[1:]
		}
	}
}

// holder returns the pod that has an address, nil where that is no pod.
func (k *bookkeeper) holder(h held) *pending {
	if key, ok := h.key(); ok {
		return k.pod(key)
	}
	k.nodesMoved = k.nodesMoved || h.isNodes()
	return nil
}

func (k *bookkeeper) collectNodes() {
	k.nodes = nil
	for s := range k.blocks.Values() {
		for _, h := range s.held {
			if h.isNodes() {
				k.nodes = append(k.nodes, h)
			}
		}
	}
	slices.SortFunc(k.nodes, held.compare)
}
