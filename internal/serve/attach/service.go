package attach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Config of a Service. All interfaces are required; a zero duration is its default.
type Config struct {
	// Dir is the folder of the records. It belongs to the Service alone.
	Dir        string
	World      *world.Store
	Addresses  Addresses
	Applied    Applied
	Namespaces Namespaces
	Pods       Pods
	Log        *slog.Logger

	// Published returns when other nodes can learn who has a lease's addresses, or when
	// that cannot be waited for. nil: at once.
	Published func(context.Context, Lease)

	// PodTimeout bounds how long ADD waits for the world to know the pod and a
	// Subnet for it; default 5 s. After AskAfter (200 ms) the datastore is asked.
	PodTimeout time.Duration
	AskAfter   time.Duration
	// AddTimeout bounds the whole ADD; default 30 s.
	AddTimeout time.Duration
	// Rest is how long the grave of an attachment stays, so that its addresses rest
	// even if the agent restarts; default 30 s.
	Rest time.Duration
	// SweepEvery is the time between two collections of attachments whose network
	// namespace is dead; default 60 s.
	SweepEvery time.Duration

	// Step is called between the steps of ADD and DEL, with their names (Steps), so
	// that tests can crash there; an error fails an ADD. nil does nothing.
	Step func(name string) error
}

// Steps lists the names that Config.Step is called with: first those of ADD in
// order, then those of DEL. Each is named after what has just been done.
func Steps() []string {
	return []string{
		StepPlaced, StepAllocated, StepRecorded, StepPublished, StepApplied,
		StepBuried, StepWithdrawn, StepReleased,
	}
}

// The steps.
const (
	StepPlaced    = "add: placed"
	StepAllocated = "add: allocated"
	StepRecorded  = "add: recorded"
	StepPublished = "add: published"
	StepApplied   = "add: applied"
	StepBuried    = "del: buried"
	StepWithdrawn = "del: withdrawn"
	StepReleased  = "del: released"
)

// Service owns the attachments of a node. Its methods are safe for concurrent use.
type Service struct {
	cfg   Config
	dir   *directory
	locks locks
	turns chan struct{} // held by whoever waits for the plane

	mu       sync.Mutex
	restored bool
	held     map[string]*record // by ID; never changed once here
	torn     map[string]torn    // by file name
	kept     map[string]string  // ID → why a collection did not remove it
	leaving  []*departure       // in the order of their revisions
	wake     chan struct{}      // Run has something to do
}

// New opens the folder of the records, and makes it if it is missing. Restore must
// come next.
func New(cfg Config) (*Service, error) {
	setDefault(&cfg.PodTimeout, 5*time.Second)
	setDefault(&cfg.AskAfter, 200*time.Millisecond)
	setDefault(&cfg.AddTimeout, 30*time.Second)
	setDefault(&cfg.Rest, 30*time.Second)
	setDefault(&cfg.SweepEvery, time.Minute)
	if cfg.Published == nil {
		cfg.Published = func(context.Context, Lease) {}
	}
	if cfg.Step == nil {
		cfg.Step = func(string) error { return nil }
	}
	dir, err := openDirectory(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the folder of attachment records %s: %w", cfg.Dir, err)
	}
	return &Service{
		cfg: cfg, dir: dir, held: map[string]*record{}, torn: map[string]torn{}, kept: map[string]string{},
		wake: make(chan struct{}, 1), turns: make(chan struct{}, mostAtOnce),
	}, nil
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// Close releases the folder. The attachments stay.
func (s *Service) Close() error { return s.dir.close() }

// Restore reads the records, tells the addresses and puts the attachments into the
// world. It must succeed before anything else is asked of the Service; after an
// error it may be called again.
func (s *Service) Restore(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restored {
		return nil
	}
	c, err := s.dir.load()
	if err != nil {
		return fmt.Errorf("read the attachment records in %s: %w", s.dir.path, err)
	}
	live, doubles := unique(c.live)
	for _, d := range doubles {
		c.torn = append(c.torn, s.dir.setAside(d.record.stem()+suffixLive, d.why))
	}
	if err := s.cfg.Addresses.Restore(ctx, heldBy(live, c)); err != nil {
		return fmt.Errorf("restore the addresses of %d attachments: %w", len(live), err)
	}
	var changes []world.Change
	for _, r := range live {
		s.held[r.ID] = r
		changes = append(changes, put(r))
	}
	snapshot := s.cfg.World.Apply(changes...)
	for _, t := range c.torn {
		s.torn[t.name] = t
		s.cfg.Log.Error("attachment record cannot be read; it was set aside, and its addresses stay blocked", "file", s.dir.path+"/"+t.name, "addresses", t.lease.Addresses, "err", t.err)
	}
	now := time.Now()
	for _, g := range c.gone {
		d := &departure{stem: g.stem, lease: g.lease, buried: true, revision: snapshot.Revision, since: now}
		if g.id != "" && s.held[g.id] == nil {
			d.ref = intent.PortRef(g.id)
		}
		s.leaving = append(s.leaving, d)
	}
	s.restored = true
	s.stir()
	s.cfg.Log.Info("attachments restored", "attachments", len(live), "resting", len(c.gone), "unreadable", len(c.torn))
	return nil
}

type double struct {
	record *record
	why    error
}

// unique finds what can only come from a damaged disk: two records for one
// interface (the later one holds), or one address twice (the earlier one does).
func unique(records []*record) (live []*record, doubles []double) {
	slices.SortStableFunc(records, func(a, b *record) int { return b.Created.Compare(a.Created) })
	byID := map[string]*record{}
	for _, r := range records {
		if first := byID[r.ID]; first != nil {
			doubles = append(doubles, double{r, fmt.Errorf("a later record of the same interface exists: %s", first.stem())})
			continue
		}
		byID[r.ID] = r
		live = append(live, r)
	}
	slices.Reverse(live)
	type place struct {
		vpc  string
		addr netip.Addr
	}
	byAddr := map[place]*record{}
	live = slices.DeleteFunc(live, func(r *record) bool {
		for _, a := range r.Addresses {
			if first := byAddr[place{r.VPC, a}]; first != nil {
				doubles = append(doubles, double{r, fmt.Errorf("the address %s is that of an earlier attachment: %s", a, first.stem())})
				return true
			}
		}
		for _, a := range r.Addresses {
			byAddr[place{r.VPC, a}] = r
		}
		return false
	})
	return live, doubles
}

// heldBy lists the leases, and takes from graves and torn records what a live one
// has: an address that had rested may have been given again while the grave stayed.
func heldBy(live []*record, c contents) Held {
	var h Held
	type place struct {
		subnet string
		addr   netip.Addr
	}
	taken := map[place]bool{}
	free := func(l Lease) Lease {
		l.Addresses = slices.DeleteFunc(slices.Clone(l.Addresses), func(a netip.Addr) bool { return taken[place{l.Subnet, a}] })
		for _, a := range l.Addresses {
			taken[place{l.Subnet, a}] = true
		}
		return l
	}
	for _, r := range live {
		h.Live = append(h.Live, free(r.lease()))
	}
	for i, t := range c.torn {
		h.Incomplete = h.Incomplete || t.link == ""
		c.torn[i].lease = free(t.lease)
		if l := c.torn[i].lease; len(l.Addresses) > 0 {
			h.Blocked = append(h.Blocked, l)
		}
	}
	for i, g := range c.gone {
		c.gone[i].lease = free(g.lease)
		if l := c.gone[i].lease; len(l.Addresses) > 0 {
			h.Resting = append(h.Resting, l)
		}
	}
	return h
}

func key(r *record) world.Key { return world.Key{Name: r.ID} }

// put gives the world a copy: what is in the world belongs to it.
func put(r *record) world.Change {
	a := r.Attachment
	a.Addresses = slices.Clone(a.Addresses)
	return world.Change{Kind: world.KindAttachment, Key: key(r), Object: &a}
}

// Ready returns why ADD cannot be served at all (STATUS): the records are not
// loaded, the datastore has never been seen and there is no checkpoint of it, or
// the plane does not work. A datastore that is lost later, or a full Subnet, is no
// reason: a runtime would take the whole node out of service.
func (s *Service) Ready() error {
	s.mu.Lock()
	restored := s.restored
	s.mu.Unlock()
	if !restored {
		return failf(TryAgain, nil, "the attachment records are not loaded yet")
	}
	snapshot, _ := s.cfg.World.Snapshot()
	var missing []string
	for _, k := range world.DatastoreKinds() {
		if !snapshot.Synced[k] && snapshot.Position[k] == "" {
			missing = append(missing, string(k))
		}
	}
	if len(missing) > 0 {
		return failf(TryAgain, nil, "the datastore has not been read yet (%s): is it reachable from this node?", strings.Join(missing, ", "))
	}
	if err := s.cfg.Applied.Ready(); err != nil {
		return failf(TryAgain, err, "the data plane is not ready")
	}
	return nil
}

// List returns the attachments, sorted by ID.
func (s *Service) List() []world.Attachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]world.Attachment, 0, len(s.held))
	for _, r := range s.held {
		a := r.Attachment
		a.Addresses = slices.Clone(a.Addresses)
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b world.Attachment) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// Problems returns what a person should look at, sorted: records that cannot be
// read, attachments that a collection had to keep, and files that could not be
// removed.
func (s *Service) Problems() []world.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []world.Problem
	add := func(name, reason, message string) {
		list = append(list, world.Problem{Kind: world.KindAttachment, Key: world.Key{Name: name}, Reason: reason, Message: message})
	}
	for name, t := range s.torn {
		add(name, "RecordUnreadable", t.advice(s.dir.path))
	}
	for id, why := range s.kept {
		add(id, "NotCollected", why)
	}
	for _, d := range s.leaving {
		if d.err != nil {
			add(d.stem, "NotReleased", d.err.Error())
		}
	}
	slices.SortFunc(list, world.Problem.Compare)
	return list
}

// Run collects attachments whose network namespace is dead, at once and every
// SweepEvery, and frees the addresses of deleted ones when the plane has dropped
// them. It returns when ctx ends.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.sweepLoop(ctx) })
	g.Go(func() error { return s.departLoop(ctx) })
	if err := g.Wait(); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func (s *Service) lookup(id string) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[id]
}

func portRef(r *record) intent.Ref { return intent.PortRef(r.ID) }
