package addresses

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Timing of the loops.
const (
	gather       = 5 * time.Millisecond // changes that come together are published together
	callTimeout  = 3 * time.Second      // of one datastore call
	minBackoff   = 50 * time.Millisecond
	maxBackoff   = 2 * time.Second
	housekeeping = 2 * time.Second
	lendWait     = 4 * time.Second        // how long Allocate waits for a loan or a resting address
	wantLinger   = time.Minute            // how long a wish outlives the caller that had it
	lenderStep   = 300 * time.Millisecond // the next lender waits this long for the one before it
	emptySpare   = 30 * time.Second       // an empty block is given up where another remains
	emptyLast    = 5 * time.Minute        // and the last one
)

// Config of a Service.
type Config struct {
	// Node is this node's name.
	Node  string
	Store datastore.Store
	World *world.Store
	// Records keep what must survive a restart.
	Records Records
	// Applied tells when the plane has dropped a tunnel address; nil: at once.
	Applied attach.Applied
	Logger  *slog.Logger
}

// Service hands out this node's addresses. It implements attach.Addresses. Make it
// with New, call Restore once, and Run it.
type Service struct {
	Config
	kick chan struct{} // something is to be published
	room chan struct{} // tunnels should be looked at
	// keeping: the state file may be stale.
	keeping chan struct{}

	// saving is held while the state file is written, so that states follow one
	// another there. It is taken before mu.
	saving sync.Mutex

	mu       sync.Mutex
	pool     *ipam.Pool
	restored bool
	// incomplete: some record is unreadable, so published allocations are kept.
	incomplete bool
	objects    map[blockKey]*v1alpha1.IPBlock // own blocks as last read or written
	dirty      map[blockKey]bool              // own blocks to be published
	adopt      map[blockKey]bool              // blocks that may be ours by what the world says
	emptySince map[blockKey]time.Time
	tunnels    map[tunnelKey]*tunnel
	lastPod    map[string]time.Time // by Subnet: when a pod last had an address
	unsaved    bool                 // the state file is behind, and must not be
	securing   bool                 // what must not be behind is being written to the state file
	stale      bool                 // the state file is behind, which does little harm
	savedAt    time.Time
	claiming   map[poolKey]chan struct{} // a claim is under way; holds one token
	changed    chan struct{}             // closed when room may have appeared
	written    chan struct{}             // closed when an own block was written, or could not be
	conflicts  map[subnetAddr]string
	lastErr    error
	loans      loans
	wantSeen   map[lenderKey]time.Time // since when other nodes want something
	recalls    map[blockKey][]netip.Addr
	takenBack  []subnetAddr // addresses taken back, which the state file does not know yet
	subnets    map[string]*world.Subnet
	tidied     time.Time // when housekeeping was done
	crowding   crowding
	lookAgain  time.Time // when loans are to be considered again; zero: not before something changes
}

type blockKey struct {
	subnet string
	cidr   netip.Prefix
}

func (k blockKey) name() string { return v1alpha1.BlockName(k.subnet, k.cidr) }

func compareBlocks(a, b blockKey) int {
	return cmp.Or(cmp.Compare(a.subnet, b.subnet), a.cidr.Compare(b.cidr))
}

type poolKey struct {
	subnet string
	family ipam.Family
}

// subnetAddr is an address of a Subnet.
type subnetAddr struct {
	subnet string
	addr   netip.Addr
}

// New reads the state file and takes the node's blocks from it. An unreadable file is
// reported as a problem: the blocks are then taken from the datastore.
func New(c Config) (*Service, error) {
	if c.Node == "" || c.Store == nil || c.World == nil || c.Records == nil || c.Logger == nil {
		return nil, errors.New("addresses: Node, Store, World, Records and Logger are needed")
	}
	s := &Service{
		Config: c, kick: make(chan struct{}, 1), room: make(chan struct{}, 1), keeping: make(chan struct{}, 1),
		pool: ipam.NewPool(c.Node), objects: map[blockKey]*v1alpha1.IPBlock{}, dirty: map[blockKey]bool{},
		adopt: map[blockKey]bool{}, emptySince: map[blockKey]time.Time{}, tunnels: map[tunnelKey]*tunnel{},
		lastPod: map[string]time.Time{}, claiming: map[poolKey]chan struct{}{}, changed: make(chan struct{}), written: make(chan struct{}),
		conflicts: map[subnetAddr]string{}, wantSeen: map[lenderKey]time.Time{},
		recalls: map[blockKey][]netip.Addr{}, subnets: map[string]*world.Subnet{},
	}
	s.loans.init()
	state, err := c.Records.Load()
	if err == nil && state.Node != "" && state.Node != c.Node {
		err = fmt.Errorf("the address state belongs to node %s: ignored", state.Node)
	}
	if err != nil {
		s.lastErr = err
		c.Logger.Error("address state is not usable: blocks come from the datastore once it answers", "err", err)
		state = State{}
	}
	s.load(state)
	snap, _ := c.World.Snapshot()
	s.takeSubnets(snap)
	// The plane's first pass must find them: it would take them for gone.
	s.showTunnels()
	return s, nil
}

// load takes what the state file says.
func (s *Service) load(state State) {
	now := time.Now()
	for _, b := range state.Blocks {
		s.note(s.pool.AddBlock(b.block(s.Node), now))
		s.dirty[blockKey{b.Subnet, b.CIDR}] = true // Publishing verifies it.
	}
	for _, b := range state.Borrowed {
		s.pool.Borrow(b.Subnet, b.Addr, now)
	}
	for _, t := range state.Tunnels {
		s.restoreTunnel(t.Subnet, t.Addr)
		if restored := s.tunnels[tunnelKey{t.Subnet, ipam.FamilyOf(t.Addr)}]; restored != nil {
			restored.saved = true
		}
	}
}

// Run publishes and watches until ctx ends, and saves the state. It returns nil then.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { s.publish(ctx); return nil })
	g.Go(func() error { s.keep(ctx); return nil })
	g.Go(func() error { s.observe(ctx); return nil })
	g.Go(func() error { s.keepTunnels(ctx, g); return nil })
	err := g.Wait()
	if saveErr := s.save(0, func() {}); saveErr != nil {
		s.Logger.Error("the address state cannot be saved at the end", "err", saveErr)
	}
	return err
}

// Restore implements attach.Addresses. Until it was called Allocate refuses.
func (s *Service) Restore(_ context.Context, h attach.Held) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.incomplete = h.Incomplete
	live := records(h.Live)
	blocked := slices.DeleteFunc(records(h.Blocked), func(r ipam.Record) bool {
		if r.Subnet == "" {
			s.pool.Bar(r.Addr)
		}
		return r.Subnet == ""
	})
	keep := map[ipam.Record]bool{}
	for _, r := range append(slices.Clone(live), blocked...) {
		keep[r] = true
	}
	if !h.Incomplete {
		s.releaseOthers(keep, now)
	}
	for _, e := range s.pool.Restore(append(live, blocked...)) {
		s.note([]*ipam.Error{e})
	}
	s.restorePublished(now)
	for _, r := range records(h.Resting) {
		if r.Subnet == "" {
			for _, sn := range s.pool.Subnets() {
				s.pool.Rest(sn.Name, r.Addr, now)
			}
			continue
		}
		s.pool.Rest(r.Subnet, r.Addr, now)
	}
	for _, r := range live {
		s.lastPod[r.Subnet] = now
	}
	s.restored = true
	s.touchAll()
	s.loans.bump()
	return nil
}

// releaseOthers ends allocations that no record holds.
func (s *Service) releaseOthers(keep map[ipam.Record]bool, now time.Time) {
	end := func(subnet string, a netip.Addr, o world.Owner) {
		if (o != world.Owner{}) && !ipam.IsTunnel(o) && !keep[ipam.Record{Subnet: subnet, Addr: a, Owner: o}] {
			s.pool.Release(subnet, a, o, now)
			s.pool.Dropped(subnet, a)
		}
	}
	for _, b := range s.pool.Blocks() {
		for _, a := range b.Allocations {
			end(b.Subnet, a.Addr, a.Owner)
		}
	}
	for _, b := range s.pool.Borrowed() {
		end(b.Subnet, b.Addr, b.Owner)
	}
}

// restorePublished lets rest what the world says this node's blocks have given and no
// record holds; if a record is unreadable it is kept instead.
func (s *Service) restorePublished(now time.Time) {
	snap, _ := s.World.Snapshot()
	for b := range snap.Blocks.Values() {
		if b.Node != s.Node {
			continue
		}
		if _, own := s.pool.Block(b.Subnet, b.CIDR); own {
			s.settle(b.Subnet, b.Allocations, now)
		}
	}
}

// settle decides about published allocations of an own block that no record holds.
func (s *Service) settle(subnet string, published []world.Allocation, now time.Time) {
	for _, a := range published {
		if _, held := s.pool.HolderOf(subnet, a.Addr); held {
			continue
		}
		switch {
		case a.Owner == ipam.TunnelOwner(s.Node) && s.tunnels[tunnelKey{subnet, ipam.FamilyOf(a.Addr)}] == nil:
			s.restoreTunnel(subnet, a.Addr)
		case s.incomplete:
			s.note(s.pool.Restore([]ipam.Record{{Subnet: subnet, Addr: a.Addr, Owner: a.Owner}}))
		default: // It was given and never recorded, or is freed by now: the plane never knew it or has dropped it.
			s.pool.Rest(subnet, a.Addr, now)
			s.pool.Dropped(subnet, a.Addr)
		}
	}
}

func records(leases []attach.Lease) []ipam.Record {
	var out []ipam.Record
	for _, l := range leases {
		o := l.Owner
		if o == (world.Owner{}) {
			o.Name = "a record that cannot be read"
		}
		for _, a := range l.Addresses {
			out = append(out, ipam.Record{Subnet: l.Subnet, Addr: a, Owner: o})
		}
	}
	return out
}

// note remembers conflicts, so that they can be reported.
func (s *Service) note(conflicts []*ipam.Error) {
	for _, e := range conflicts {
		s.conflicts[subnetAddr{e.Subnet, e.Addr}] = e.Error()
		s.Logger.Error("address conflict", "subnet", e.Subnet, "address", e.Addr, "err", e)
	}
}

// touch marks the own block of an address as to be published.
func (s *Service) touch(subnet string, a netip.Addr) {
	if cidr, ok := s.pool.BlockOf(subnet, a); ok {
		s.dirty[blockKey{subnet, cidr}] = true
	}
	s.stale = true
	wake(s.kick)
}

func (s *Service) touchAll() {
	for _, b := range s.pool.Blocks() {
		s.dirty[blockKey{b.Subnet, b.CIDR}] = true
	}
	s.stale = true
	wake(s.kick)
}

// roomAppeared wakes whoever waits for an address.
func (s *Service) roomAppeared() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Usage is what this node has of every Subnet and family, sorted.
func (s *Service) Usage() []ipam.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []ipam.Usage
	for _, sn := range s.pool.Subnets() {
		for _, f := range ipam.Families() {
			if sn.Has(f) {
				out = append(out, s.pool.Usage(sn.Name, f, time.Now()))
			}
		}
	}
	return out
}

// Err is why the last attempt to publish or to write the state file failed; nil if
// it succeeded.
func (s *Service) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastErr
}

// Problems are what people should know, sorted: lost blocks, conflicting records, and
// Subnets that are nearly full.
func (s *Service) Problems() []world.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []world.Problem
	for _, b := range s.pool.Blocks() {
		if b.State == ipam.Lost {
			out = append(out, world.Problem{
				Kind: world.KindBlock, Key: world.Key{Name: blockKey{b.Subnet, b.CIDR}.name()}, Reason: "BlockLost",
				Message: fmt.Sprintf("block %s no longer belongs to node %s, but %d addresses of it are in use there: delete those pods", b.CIDR, s.Node, len(b.Allocations)),
			})
		}
	}
	for _, b := range s.pool.Borrowed() {
		if b.Stray && s.restored {
			out = append(out, world.Problem{
				Kind: world.KindSubnet, Key: world.Key{Name: b.Subnet}, Reason: "AddressWithoutBlock",
				Message: fmt.Sprintf("%s on node %s has address %s, which is in none of the node's blocks and not lent to it", ipam.OwnerText(b.Owner), s.Node, b.Addr),
			})
		}
	}
	for c, msg := range s.conflicts {
		out = append(out, world.Problem{Kind: world.KindSubnet, Key: world.Key{Name: c.subnet}, Reason: "AddressConflict", Message: msg})
	}
	out = append(out, s.runningOut()...)
	slices.SortFunc(out, world.Problem.Compare)
	return out
}

// crowding is what runningOut found, and when.
type crowding struct {
	problems []world.Problem
	at       time.Time
	took     time.Duration
}

// crowdingShare bounds what counting costs: after a count there is none for so many
// times as long as it took. In a large cluster one takes tens of milliseconds, and
// every pod of every node changes a block.
const crowdingShare = 100

// runningOut names the Subnets of which this node has blocks and that are nearly full.
func (s *Service) runningOut() []world.Problem {
	start := time.Now()
	if c := &s.crowding; start.Sub(c.at) < crowdingShare*c.took {
		return c.problems
	}
	snap, _ := s.World.Snapshot()
	var out []world.Problem
	for _, sn := range s.pool.Subnets() {
		for _, f := range ipam.Families() {
			if s.pool.Usage(sn.Name, f, time.Now()).Blocks == 0 {
				continue
			}
			if u := s.subnetUsage(snap, sn, f); u.Warning {
				out = append(out, world.Problem{
					Kind: world.KindSubnet, Key: world.Key{Name: sn.Name}, Reason: "AddressesRunningOut",
					Message: fmt.Sprintf("%d of %d %s addresses are in use (%d %%): add a CIDR to the Subnet", u.Used, u.Capacity, f, u.Percent),
				})
			}
		}
	}
	s.crowding = crowding{problems: out, at: start, took: time.Since(start)}
	return out
}

// subnetUsage counts a whole Subnet: own blocks by the pool, others by the world.
func (s *Service) subnetUsage(snap *world.Snapshot, sn ipam.Subnet, f ipam.Family) ipam.Usage {
	blocks := map[netip.Prefix]*world.Block{}
	for b := range snap.Blocks.Values() {
		if b.Subnet == sn.Name && b.Node != s.Node {
			blocks[b.CIDR] = b
		}
	}
	for _, b := range s.pool.Blocks() {
		if b.Subnet == sn.Name && b.State != ipam.Lost {
			blocks[b.CIDR] = &world.Block{Subnet: b.Subnet, CIDR: b.CIDR, Node: b.Node, Allocations: b.Allocations, Lent: b.Lent}
		}
	}
	networks := []*world.NodeNetwork{{Name: s.Node, Borrowed: s.borrowedList()}}
	for n := range snap.NodeNetworks.Values() {
		if n.Name != s.Node {
			networks = append(networks, n)
		}
	}
	return ipam.SubnetUsage(sn, f, slices.Collect(maps.Values(blocks)), networks)
}
