package rtnl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// minIPv6MTU is the smallest MTU of a link with IPv6, in bytes (RFC 8200 §5).
const minIPv6MTU = 1280

// verified is a port whose pod's side was right when we last looked, and the index
// of its host's end then.
type verified struct {
	port  linux.Port
	index int
}

// preparePorts sets up the ports that are new, changed, unfinished or not yet
// looked at.
func (d *Driver) preparePorts(ctx context.Context, want linux.State, o apply.Options, r *Result) {
	index := d.shadow.byName()
	var todo []linux.Port
	for _, p := range want.Ports {
		l := d.shadow.links[index[p.HostName]]
		v, known := d.verified[p.HostName]
		if !known || v.index != l.index || !v.port.Equal(p) || len(planHostEnd(l, p)) > 0 {
			todo = append(todo, p)
		}
	}
	if len(todo) == 0 {
		return
	}
	wanted := make(map[string]bool, len(want.Ports))
	for _, p := range want.Ports {
		wanted[p.HostName] = true
	}
	results := make([]portResult, len(todo))
	// The shadow is only read until all have ended.
	d.spread(len(todo), func(c *conn, i int) {
		s := setup{Driver: d, node: c, port: todo[i], wanted: wanted, mayRemove: !o.AddOnly}
		results[i] = s.run(ctx)
	})
	for i, p := range todo {
		res := results[i]
		r.Changes = append(r.Changes, res.changes...)
		for _, gone := range res.removed {
			d.shadow.forget(gone)
			delete(d.shadow.links, gone)
		}
		d.stale = d.stale || res.stale
		if res.host.index != 0 {
			d.shadow.links[res.host.index] = res.host
		}
		if res.err != nil {
			d.failed[p.HostName] = true
			delete(d.verified, p.HostName)
			r.fail(p.Ref, fmt.Errorf("set up %s of pod %s: %w", p.Name, p.Pod, res.err))
			continue
		}
		d.verified[p.HostName] = verified{p, res.host.index}
		if res.fresh {
			d.fresh[p.HostName] = true
		}
	}
}

// portResult is what became of one port.
type portResult struct {
	err     error
	host    link
	changes []string
	// removed are links that were in the way.
	removed []int
	// stale says that the kernel may have dropped more than we know.
	stale bool
	// fresh says that the pod was given an IPv6 address.
	fresh bool
}

// setup is the work on one port.
type setup struct {
	*Driver
	node      *conn // in the node's namespace
	port      linux.Port
	wanted    map[string]bool
	mayRemove bool

	res portResult
	ns  *netns.NS
	in  *conn // inside of the pod
}

func (s *setup) say(format string, args ...any) {
	s.res.changes = append(s.res.changes, fmt.Sprintf(format, args...))
}

func (s *setup) run(ctx context.Context) portResult {
	if s.res.err = ctx.Err(); s.res.err != nil {
		return s.res
	}
	s.res.err = s.all(ctx)
	return s.res
}

func (s *setup) all(ctx context.Context) (err error) {
	if s.ns, err = netns.Open(s.port.Netns); err != nil {
		return err
	}
	defer s.ns.Close()
	if s.ns.ID() == s.Driver.ns.ID() {
		return fmt.Errorf("%s is the node's own network namespace", s.port.Netns)
	}
	if err := s.remover.wait(ctx, s.port.HostName); err != nil {
		return err
	}
	defer func() {
		if s.in != nil {
			s.in.close()
		}
	}()
	host, there := s.shadow.named(s.port.HostName)
	if !there {
		return s.fresh(ctx)
	}
	inPod, there, err := s.adopt(host)
	if err != nil {
		return err
	}
	if !there {
		return s.fresh(ctx)
	}
	s.res.host = host
	if err := s.correctHost(); err != nil {
		return err
	}
	// With the right MTU, which configure sets, the pod's end may have IPv6 again.
	if err := s.settings(); err != nil && (!errors.Is(err, errNoIPv6) || inPod.mtu == s.port.MTU) {
		return err
	}
	in, err := readPod(s.in, inPod)
	if err != nil {
		return err
	}
	return s.configure(in, !host.up)
}

// enter opens a socket in the pod.
func (s *setup) enter() (err error) {
	if s.in == nil {
		s.in, err = s.dial(s.ns, nil)
	}
	return err
}

// fresh makes a pair and all that the pod's side needs.
func (s *setup) fresh(ctx context.Context) error {
	if err := s.create(ctx); err != nil {
		return err
	}
	host, there, err := s.node.link(s.port.HostName)
	if err != nil || !there {
		return errors.Join(fmt.Errorf("link %s is not where it was made", s.port.HostName), err)
	}
	s.res.host = host
	inside := func() error { return setFresh(s.port.PodSysctls()) }
	if s.in == nil {
		s.in, err = s.dial(s.ns, inside)
	} else {
		err = s.ns.Do(inside)
	}
	if err == nil {
		err = s.Driver.ns.Do(func() error { return setFresh(s.port.HostSysctls()) })
	}
	if err != nil {
		return err
	}
	in := pod{link: link{index: host.peer, name: s.port.Name, kind: "veth", mac: s.port.MAC, mtu: s.port.MTU, peer: host.index}}
	changes := append(in.planLink(s.port), in.planRest(s.port, nil)...)
	return s.make(changes, true)
}

// adopt looks whether the link with our name is one end of the pair that the port
// wants. One whose other end is elsewhere is removed: it is what is left of
// another try.
func (s *setup) adopt(host link) (link, bool, error) {
	if host.kind != "veth" {
		return link{}, false, fmt.Errorf("a foreign link (kind %q) bears the name %s: remove or rename it", host.kind, host.name)
	}
	if err := s.enter(); err != nil {
		return link{}, false, err
	}
	inPod, ok, err := s.in.link(s.port.Name)
	if err != nil {
		return link{}, false, err
	}
	id, err := s.node.namespaceID(s.ns)
	if err != nil {
		return link{}, false, err
	}
	if ok && joined(host, inPod, id) {
		return inPod, true, nil
	}
	return link{}, false, s.discard(host)
}

// discard removes a link of ours that is in the way, and waits until it is gone.
func (s *setup) discard(l link) error {
	if err := s.node.removeLink(l.index); err != nil {
		return fmt.Errorf("remove link %s, whose other end is not %s in %s: %w", l.name, s.port.Name, s.port.Netns, err)
	}
	s.res.removed = append(s.res.removed, l.index)
	s.say("remove link %s", l.name)
	return nil
}

// create makes the pair. If the pod has a link of that name already it may be the
// other end of a port that nobody wants any more, or that is about to go; else it
// is foreign.
func (s *setup) create(ctx context.Context) error {
	err := s.node.addPair(s.port, s.ns)
	if errors.Is(err, unix.EEXIST) {
		blocker, found, findErr := s.blocker()
		if findErr == nil && found && s.mayRemove {
			findErr = s.discard(blocker)
		}
		if findErr == nil {
			findErr = s.remover.flush(ctx)
		}
		if findErr != nil {
			return findErr
		}
		err = s.node.addPair(s.port, s.ns)
	}
	if err != nil {
		return s.explain(err)
	}
	s.say("add link %s to %s of pod %s", s.port.HostName, s.port.Name, s.port.Pod)
	return nil
}

// blocker finds the link of ours, of no wanted port, whose other end bears the
// name that we need in the pod.
func (s *setup) blocker() (link, bool, error) {
	if err := s.enter(); err != nil {
		return link{}, false, err
	}
	inPod, ok, err := s.in.link(s.port.Name)
	if err != nil || !ok {
		return link{}, false, err
	}
	id, err := s.node.namespaceID(s.ns)
	if err != nil {
		return link{}, false, err
	}
	l, ok := s.shadow.links[inPod.peer]
	return l, ok && isPort(l.name) && !s.wanted[l.name] && joined(l, inPod, id), nil
}

func (s *setup) explain(err error) error {
	if !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add link %s (MTU %d): %w", s.port.HostName, s.port.MTU, err)
	}
	if l, ok, findErr := s.in.link(s.port.Name); findErr == nil && ok {
		return fmt.Errorf("the pod has a foreign link %s already (kind %q, MAC address %s): remove or rename it: %w", l.name, l.kind, l.mac, err)
	}
	s.res.stale = true
	return fmt.Errorf("add link %s: %w", s.port.HostName, err)
}

// correctHost changes what is wrong with a host's end that is there.
func (s *setup) correctHost() error {
	host := &s.res.host
	if host.mac != s.port.HostMAC {
		if err := s.node.setMAC(host.index, s.port.HostMAC); err != nil {
			return fmt.Errorf("set MAC address %s of link %s: %w", s.port.HostMAC, host.name, err)
		}
		s.say("set MAC address of link %s to %s", host.name, s.port.HostMAC)
		host.mac, s.res.stale = s.port.HostMAC, true // neighbours went with it
	}
	if host.mtu != s.port.MTU {
		if err := s.node.setMTU(host.index, s.port.MTU); err != nil {
			return fmt.Errorf("set MTU %d of link %s: %w", s.port.MTU, host.name, err)
		}
		s.say("set MTU of link %s to %d", host.name, s.port.MTU)
		host.mtu, s.res.stale = s.port.MTU, true
	}
	if !host.noARP {
		if err := s.node.setNoARP(host.index); err != nil {
			return fmt.Errorf("set link %s to noarp: %w", host.name, err)
		}
		s.say("set link %s to noarp", host.name)
		host.noARP, s.res.stale = true, true // as above
	}
	return nil
}

// settings sets the sysctls of both ends.
func (s *setup) settings() error {
	err := s.ns.Do(func() error {
		changes, err := setSysctls(s.port.PodSysctls())
		for _, c := range changes {
			s.say("%s of pod %s", c, s.port.Pod)
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.Driver.ns.Do(func() error {
		changes, err := setSysctls(s.port.HostSysctls())
		s.res.changes = append(s.res.changes, changes...)
		return err
	})
}

// configure makes the pod's side, which in tells. In a pod that is in use, what its
// own people may have changed is left to them.
func (s *setup) configure(in pod, unfinished bool) error {
	link := in.planLink(s.port)
	if err := s.make(link, unfinished); err != nil {
		return err
	}
	given := s.shadow.givenTo(s.res.host.index)
	if len(link) > 0 {
		narrow := in.link.mtu < minIPv6MTU
		// The kernel makes IPv6 on a link anew when the MTU has been below that.
		err := s.settings()
		if err != nil {
			return err
		}
		if in, err = readPod(s.in, in.link); err != nil {
			return err
		}
		if narrow {
			maps.Copy(given, in.generated())
		}
	}
	return s.make(in.planRest(s.port, given), unfinished)
}

func (s *setup) make(changes []podChange, unfinished bool) error {
	changes = slices.DeleteFunc(changes, func(c podChange) bool { return c.theirs && !unfinished })
	requests := make([]request, len(changes))
	for i, c := range changes {
		requests[i] = c.request
	}
	var first error
	errs := s.in.batch(requests)
	for i, c := range changes {
		var err error
		if errs != nil {
			err = errs[i]
		}
		if c.diff.Problem == unexpected {
			err = gone(err)
		}
		if err == nil {
			s.say("%s %s %s", verb(c.diff.Problem), c.diff.Subsystem, c.diff.Object)
			s.res.fresh = s.res.fresh || c.request.kind == unix.RTM_NEWADDR && c.request.body[0] == unix.AF_INET6
		} else if first == nil {
			first = fmt.Errorf("%s %s %s: %w", verb(c.diff.Problem), c.diff.Subsystem, c.diff.Object, err)
		}
	}
	return first
}

// raisePorts sets the host's ends up, and waits until the pods' ends can send. It is the
// last that a port needs before its routes.
func (d *Driver) raisePorts(want linux.State, hold error, r *Result) {
	maps.DeleteFunc(d.carried, func(i int, _ []netip.Addr) bool { _, ok := d.shadow.links[i]; return !ok })
	index := d.shadow.byName()
	var todo []linux.Port
	var links []link
	for _, p := range want.Ports {
		l, ok := d.shadow.links[index[p.HostName]]
		if ok && l.up {
			d.carried[l.index] = p.Addresses
		}
		if !d.failed[p.HostName] && !l.up {
			todo, links = append(todo, p), append(links, l)
		}
	}
	errs := make([]error, len(todo))
	d.spread(len(todo), func(c *conn, i int) {
		l := links[i]
		if l.index == 0 {
			errs[i] = errLinkGone(todo[i].HostName)
		} else if errs[i] = hold; hold == nil {
			errs[i] = c.setUp(l.index, true)
		}
	})
	var raised []link
	for i, p := range todo {
		if errs[i] != nil {
			d.failed[p.HostName] = true
			r.fail(p.Ref, fmt.Errorf("set link %s of pod %s up: %w", p.HostName, p.Pod, errs[i]))
			continue
		}
		l := links[i]
		l.up = true
		d.shadow.links[l.index], d.carried[l.index] = l, p.Addresses
		r.say("set link %s up", p.HostName)
		raised = append(raised, l)
	}
	d.spread(len(raised), func(c *conn, i int) { c.peerSends(raised[i]) })
}

func errLinkGone(name string) error { return fmt.Errorf("link %s is gone", name) }
