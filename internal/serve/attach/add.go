package attach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Add attaches a container's interface and returns when the plane has applied it.
//
// It is idempotent: the same container, interface, namespace and pod get the
// answer of the first time. If the namespace or the pod is another one, the old
// attachment is removed first. A failed Add leaves nothing behind.
func (s *Service) Add(ctx context.Context, req Request) (Result, error) {
	if err := req.validate(); err != nil {
		return Result{}, err
	}
	id, t := Key{req.ContainerID, req.Interface}.ID(), newTimes()
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.AddTimeout, fmt.Errorf("ADD took more than %s", s.cfg.AddTimeout))
	defer cancel()
	ctx, unlock, err := s.locks.forAdd(ctx, req.ContainerID)
	if err != nil {
		return Result{}, failf(TryAgain, err, "add %s: wait for another call for the same container", id)
	}
	defer unlock()
	t.end("turn")
	if err := s.isRestored(); err != nil {
		return Result{}, err
	}
	if old := s.lookup(id); old != nil {
		if old.answers(req) {
			return s.confirm(ctx, old)
		}
		if err := s.detach(old, "replaced by an ADD for another pod or namespace"); err != nil {
			return Result{}, failf(TryAgain, err, "add %s: remove the attachment that the container had", id)
		}
	}
	if err := s.detachTorn(claims.PortName(req.ContainerID, req.Interface)); err != nil {
		return Result{}, failf(TryAgain, err, "add %s: remove the unreadable record that the container had", id)
	}
	if err := s.checkNetns(req.Netns); err != nil {
		return Result{}, err
	}
	t.end("cleared")
	p, err := s.await(ctx, req)
	t.end("placed")
	switch {
	case err == nil:
		err = s.cfg.Step(StepPlaced)
	case !isNotYet(err) && ctx.Err() == nil:
		return Result{}, failf(Refused, err, "add %s for %s", id, describe(req))
	}
	if err != nil {
		return Result{}, failf(TryAgain, err, "add %s for %s", id, describe(req))
	}
	return s.attach(ctx, req, p, t)
}

// times are those that an ADD spent on each of its steps, for the log: a slow one must tell
// what it waited for.
type times struct {
	start, last time.Time
	steps       []any
}

func newTimes() *times {
	now := time.Now()
	return &times{start: now, last: now}
}

// end notes that a step has ended.
func (t *times) end(step string) {
	now := time.Now()
	t.steps = append(t.steps, slog.Duration(step, now.Sub(t.last)))
	t.last = now
}

func describe(r Request) string {
	if r.Pod == (world.Owner{}) {
		return "a container without a pod"
	}
	return "pod " + podKey(r).String()
}

// answers reports whether the record is what the request asks for.
func (r *record) answers(req Request) bool {
	if r.Netns != req.Netns {
		return false
	}
	if req.Pod == (world.Owner{}) {
		return r.Pod.Namespace == ""
	}
	return r.Pod.Namespace == req.Pod.Namespace && r.Pod.Name == req.Pod.Name && (req.Pod.UID == "" || r.Pod.UID == req.Pod.UID)
}

// confirm answers an ADD whose work is already done: its answer was lost, or the
// agent died before it. The plane may still have to do its part.
func (s *Service) confirm(ctx context.Context, r *record) (Result, error) {
	snapshot, _ := s.cfg.World.Snapshot()
	if err := s.cfg.Applied.Wait(ctx, snapshot.Revision, portRef(r)); err != nil {
		return Result{}, failf(TryAgain, cause(ctx, err), "add %s: the attachment exists, but the data plane cannot apply it", r.ID)
	}
	return s.result(r), nil
}

func (s *Service) result(r *record) Result {
	a := r.Attachment
	a.Addresses = slices.Clone(a.Addresses)
	return Result{Attachment: a, MTU: s.cfg.Applied.MTU()}
}

// attach does the steps that leave something behind, and undoes them on failure.
// Undoing is no defer: a crash does not undo either, and tests must be able to tell.
func (s *Service) attach(ctx context.Context, req Request, p place, t *times) (Result, error) {
	id := Key{req.ContainerID, req.Interface}.ID()
	r, err := s.allocate(ctx, req, p)
	t.end("allocated")
	if err != nil {
		return Result{}, failf(ReasonOf(err), cause(ctx, err), "add %s for %s: no address", id, describe(req))
	}
	if err := s.record(ctx, r); err != nil {
		return Result{}, failf(TryAgain, err, "add %s for %s: write the record %s/%s%s", id, describe(req), s.dir.path, r.stem(), suffixLive)
	}
	t.end("recorded")
	s.mu.Lock()
	s.held[r.ID] = r
	s.mu.Unlock()
	among := false
	if err = s.cfg.Step(StepRecorded); err == nil {
		among, err = s.realise(ctx, r, t)
	}
	if err == nil {
		err = s.cfg.Step(StepApplied)
	}
	if err != nil {
		// An error of undoing is kept by the departure, which is tried again.
		_ = s.detach(r, "ADD failed")
		return Result{}, failf(TryAgain, cause(ctx, err), "add %s for %s: the data plane cannot apply it", id, describe(req))
	}
	if among {
		s.awaitPublished(ctx, r)
	}
	t.end("published")
	s.cfg.Log.Info("attached", "attachment", r.ID, "pod", describe(req), "addresses", r.Addresses, "subnet", r.Subnet, "duration", t.last.Sub(t.start), slog.Group("steps", t.steps...))
	return s.result(r), nil
}

// mostAtOnce bounds the attachments that are asked of the plane at once, so that a pass,
// which applies what it finds, is never long: who is first in a burst need not wait for who
// is last, nor do changes that come from elsewhere. While one half is applied the other
// gathers for the next pass. By then their addresses are published.
const mostAtOnce = 8

// realise puts a recorded attachment into the world and waits for the plane. It reports
// whether others were there when it began or ended.
func (s *Service) realise(ctx context.Context, r *record, t *times) (among bool, err error) {
	defer t.end("applied")
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	t.end("queued")
	among = len(s.turns) > 1
	revision := s.cfg.World.Apply(put(r)).Revision
	if err := s.cfg.Step(StepPublished); err != nil {
		return among, err
	}
	err = s.cfg.Applied.Wait(ctx, revision, portRef(r))
	return among || len(s.turns) > 1, err
}

// publishWait bounds how long a pod's start waits until others can know its addresses.
const publishWait = 100 * time.Millisecond

// awaitPublished waits until other nodes can know the pod, whose policies name it by its
// addresses: they drop what it sends before. Publishing began before the plane was asked and
// mostly is over by now; in a burst it falls behind, for the last of it too. Whoever comes
// alone does not wait, as it takes longer to start than others to know. Nor does the datastore
// decide about a pod's start: who waits too long starts all the same.
func (s *Service) awaitPublished(ctx context.Context, r *record) {
	ctx, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	s.cfg.Published(ctx, r.lease())
}

// cause prefers the reason for which a context ended over its bare error.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	return err
}

// allocate tries one Subnet after the other, as long as they are full.
func (s *Service) allocate(ctx context.Context, req Request, p place) (*record, error) {
	var full []error
	for _, subnet := range p.subnets {
		v4, v6 := families(subnet)
		addrs, err := s.cfg.Addresses.Allocate(ctx, AddressRequest{Subnet: subnet.Name, V4: v4, V6: v6, Want: p.want, Owner: p.pod})
		if isFull(err) {
			full = append(full, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := checkAddresses(addrs); err != nil {
			return nil, err
		}
		return &record{
			Attachment: world.Attachment{
				ID: Key{req.ContainerID, req.Interface}.ID(), ContainerID: req.ContainerID, Interface: req.Interface,
				HostInterface: claims.PortName(req.ContainerID, req.Interface), Netns: req.Netns, Pod: p.pod,
				VPC: p.vpc, Subnet: subnet.Name, Addresses: addrs, MAC: packet.PodMAC(p.vpc, addrs[0]),
			},
			Network: req.Network, Created: time.Now(),
		}, nil
	}
	return nil, oneLine(full...)
}

func isFull(err error) bool {
	for _, full := range []error{ErrSubnetFull, ipam.ErrSubnetFull, ipam.ErrResting, ipam.ErrNoRoom} {
		if errors.Is(err, full) {
			return true
		}
	}
	return false
}

// record makes the allocation durable. If that fails nothing was given to anybody,
// and the address is free at once; only a record that is there, but perhaps not
// after a power loss, keeps it until the record is buried.
func (s *Service) record(ctx context.Context, r *record) error {
	err := s.cfg.Step(StepAllocated)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = s.dir.save(r)
	}
	switch {
	case err == nil:
	case errors.Is(err, errNotDurable):
		snapshot, _ := s.cfg.World.Snapshot()
		s.depart(&departure{stem: r.stem(), suffix: suffixLive, lease: r.lease(), ref: portRef(r), revision: snapshot.Revision, since: time.Now(), err: err})
	default:
		s.cfg.Addresses.Cancel(r.lease())
	}
	return err
}

func (s *Service) checkNetns(path string) error {
	state, err := s.cfg.Namespaces.State(path)
	switch {
	case err != nil:
		return failf(TryAgain, err, "look at the network namespace %s", path)
	case state == NamespaceDead:
		return failf(InvalidRequest, nil, "CNI_NETNS: there is no network namespace at %s; is the container gone?", path)
	case state == NamespaceHost:
		return failf(InvalidRequest, nil, "CNI_NETNS: %s is the node's own network namespace, which cannot be attached", path)
	}
	return nil
}

func (s *Service) isRestored() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.restored {
		return failf(TryAgain, nil, "the attachment records are not loaded yet")
	}
	return nil
}

// Limits of what a runtime may send, in bytes.
const (
	maxContainerID = 1024
	maxName        = 253  // of a pod, as of every DNS name
	maxNetns       = 4096 // PATH_MAX
	maxInterface   = 15   // IFNAMSIZ - 1
)

// validate refuses what cannot be a request, whatever the world says.
func (r Request) validate() error {
	if err := (Key{r.ContainerID, r.Interface}).validate(); err != nil {
		return err
	}
	clean := strings.HasPrefix(r.Netns, "/") && path.Clean(r.Netns) == r.Netns && len(r.Netns) <= maxNetns
	if !clean || strings.ContainsFunc(r.Netns, unicode.IsControl) {
		return failf(InvalidRequest, nil, "CNI_NETNS %q is not an absolute path without . or ..", shorten(r.Netns))
	}
	named := r.Pod.Namespace != "" && r.Pod.Name != ""
	if !named && (r.Pod != (world.Owner{}) || !r.Standalone) {
		return failf(InvalidRequest, nil, `CNI_ARGS: K8S_POD_NAMESPACE or K8S_POD_NAME is missing; a network without pods needs "standalone": true in its configuration`)
	}
	for _, name := range []string{r.Pod.Namespace, r.Pod.Name, r.Pod.UID} {
		if len(name) > maxName || strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '/' }) {
			return failf(InvalidRequest, nil, "CNI_ARGS: %q is no name or UID of a pod", shorten(name))
		}
	}
	if r.Subnet != "" && !isSubnetName(r.Subnet) {
		return failf(Refused, nil, "the network configuration asks for the Subnet %q, which is no name of a Subnet", shorten(r.Subnet))
	}
	if err := checkWant(r.Want); err != nil {
		return failf(Refused, err, "the network configuration asks for addresses")
	}
	return nil
}

// validate accepts what the CNI specification (1.1.0, section 2) calls a container
// ID, and what Linux takes as the name of a link.
func (k Key) validate() error {
	if k.ContainerID == "" || len(k.ContainerID) > maxContainerID || !isAlnum(rune(k.ContainerID[0])) ||
		strings.ContainsFunc(k.ContainerID, func(c rune) bool { return !isAlnum(c) && c != '_' && c != '.' && c != '-' }) {
		return failf(InvalidRequest, nil, "CNI_CONTAINERID %q is not 1 to %d letters, digits, '_', '.' or '-', the first a letter or digit", shorten(k.ContainerID), maxContainerID)
	}
	if k.Interface == "" || len(k.Interface) > maxInterface || k.Interface == "." || k.Interface == ".." ||
		strings.ContainsFunc(k.Interface, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`/:%"\`, c) }) {
		return failf(InvalidRequest, nil, "CNI_IFNAME %q is no name for a network interface: 1 to %d visible ASCII characters without / : %% \" \\", shorten(k.Interface), maxInterface)
	}
	return nil
}

func isAlnum(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
