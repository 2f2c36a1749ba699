package ovsplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// Watch implements apply.Plane. changed is never called twice at once; while it blocks,
// nothing is noticed.
func (p *Plane) Watch(ctx context.Context, changed func(apply.Foreign)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var one sync.Mutex
	serial := func(f apply.Foreign) {
		one.Lock()
		defer one.Unlock()
		changed(f)
	}
	watches := []func(context.Context, func(apply.Foreign)) error{
		p.links.Watch, p.filter.Watch, p.watchDatabase, p.watchBridge, p.watchUnderlay, p.watchHost,
	}
	ended := make(chan error, len(watches))
	for _, watch := range watches {
		go func() { ended <- watch(ctx, serial) }()
	}
	var errs []error
	for range watches {
		// When one ends early the others must not go on alone.
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
		cancel()
	}
	return errors.Join(errs...)
}

// foreign is a change of which it is not known whose it is. While Open vSwitch is away, or
// was and no Apply has seen to that, what is missing went with it.
func (p *Plane) foreign(what string) apply.Foreign {
	s, _ := p.conn.State()
	return apply.Foreign{Time: time.Now(), Subsystem: "ovs", What: what, Found: !s.Connected || s.Connection != p.seen.Load() || !p.db.Status().Connected}
}

// watchDatabase tells when the database is not as we left it, or is away.
func (p *Plane) watchDatabase(ctx context.Context, changed func(apply.Foreign)) error {
	for there := false; ; {
		next, s := p.db.Changed(), p.db.Status()
		switch what := p.databaseDiffers(ctx); {
		case what != "":
			changed(p.foreign(what))
		case there && !s.Connected && p.inUse():
			changed(p.foreign(fmt.Sprintf("the database of Open vSwitch is away: %v", s.Err)))
		}
		there = s.Connected
		select {
		case <-next:
		case <-ctx.Done():
			return nil
		}
	}
}

// inUse reports whether there is something of ours that others can change.
func (p *Plane) inUse() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed && p.last != nil
}

// databaseDiffers says what is wrong with the database, if it is there. An Apply that is
// under way is waited for: its own changes are no news.
func (p *Plane) databaseDiffers(ctx context.Context) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.bridges == nil || !p.db.Status().Connected {
		return ""
	}
	changes, _, err := p.db.Audit(ctx, p.bridges)
	if err != nil {
		return ""
	}
	if len(changes) == 0 {
		known, _ := p.db.Numbers(ctx)
		return p.renumbered(known)
	}
	if len(changes) > 3 {
		changes = append(changes[:3:3], fmt.Sprintf("and %d more", len(changes)-3))
	}
	return "the database of Open vSwitch was changed; to do: " + strings.Join(changes, ", ")
}

// watchBridge tells when ovs-vswitchd is away or was restarted, or somebody touched our flows.
func (p *Plane) watchBridge(ctx context.Context, changed func(apply.Foreign)) error {
	for there := false; ; {
		s, next := p.conn.State()
		switch what := p.bridgeDiffers(); {
		case what != "":
			changed(p.foreign(what))
		case there && !s.Connected && p.inUse():
			changed(p.foreign(fmt.Sprintf("the bridge %s is away: %v", claims.OVSBridge, s.Err)))
		}
		there = s.Connected
		select {
		case <-next:
		case <-ctx.Done():
			return nil
		}
	}
}

// watchUnderlay tells when somebody touched our flows in the bridge around the NIC. If that
// is away, so is the other one, or the database tells.
func (p *Plane) watchUnderlay(ctx context.Context, changed func(apply.Foreign)) error {
	for {
		_, next := p.underlay.State()
		if what := p.underlayDiffers(); what != "" {
			changed(p.foreign(what))
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *Plane) underlayDiffers() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, _ := p.underlay.State()
	s.Foreign = 0
	if p.closed || p.last == nil || !s.Connected || s == p.underlaid || len(p.bridges) < 2 || p.underlaid == (openflowconn.State{}) {
		return ""
	}
	return "flows of ours in the bridge " + claims.OVSUnderlayBridge + " were changed, or the bridge was made anew"
}

func (p *Plane) bridgeDiffers() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	// What an Apply that has just ended has seen is no news.
	s, _ := p.conn.State()
	switch {
	case p.closed || p.last == nil || !s.Connected:
		return ""
	case s.Connection != p.flows.connection:
		return "there is a new connection to the bridge " + claims.OVSBridge + ": ovs-vswitchd was restarted or did not answer, or the bridge was made anew"
	case s.Touched != p.flows.touched:
		return "flows of ours in the bridge " + claims.OVSBridge + " were changed"
	}
	return ""
}

// watchHost tells when the links that Open vSwitch makes for us are not as we left them.
// Notifications that were too many to be kept are lost: then it looks, and listens anew.
func (p *Plane) watchHost(ctx context.Context, changed func(apply.Foreign)) error {
	for ctx.Err() == nil {
		lost, err := p.listen(ctx, changed)
		if err != nil {
			return fmt.Errorf("watch the links of Open vSwitch: %w", err)
		}
		if lost != nil {
			p.log.Debug("notifications of links were lost", "err", lost)
		}
	}
	return nil
}

// listenBuffer is how much of what the kernel tells may wait, in bytes.
const listenBuffer = 1 << 20

// listen follows the kernel's notifications until ctx ends, or until some were lost.
func (p *Plane) listen(ctx context.Context, changed func(apply.Foreign)) (lost, err error) {
	done := make(chan struct{})
	defer close(done)
	failed := make(chan error, 3)
	told := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	ns := vnetns.NsHandle(p.ns.FD())
	links, addrs, neighbours := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64), make(chan netlink.NeighUpdate, 64)
	err = errors.Join(
		netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{Namespace: &ns, ErrorCallback: told, ReceiveBufferSize: listenBuffer}),
		netlink.AddrSubscribeWithOptions(addrs, done, netlink.AddrSubscribeOptions{Namespace: &ns, ErrorCallback: told, ReceiveBufferSize: listenBuffer}),
		netlink.NeighSubscribeWithOptions(neighbours, done, netlink.NeighSubscribeOptions{Namespace: &ns, ErrorCallback: told, ReceiveBufferSize: listenBuffer}))
	if err != nil {
		return nil, err
	}
	// A channel is closed when its socket has failed, which told says.
	for news := true; ; {
		if news {
			if what := p.hostDiffers(); what != "" {
				changed(p.foreign(what))
			}
		}
		select {
		case u, ok := <-links:
			if !ok {
				return errLost, nil
			}
			news = ours(u.Attrs().Name)
		case _, ok := <-addrs:
			if !ok {
				return errLost, nil
			}
			news = true
		case u, ok := <-neighbours:
			if !ok {
				return errLost, nil
			}
			if u.Type == unix.RTM_NEWNEIGH {
				p.hear(ctx, u.Neigh)
			}
			// Those that the kernel learns come and go by themselves.
			news = u.Type == unix.RTM_DELNEIGH || u.State&unix.NUD_PERMANENT != 0
		case err := <-failed:
			return err, nil
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// errLost is why a channel of notifications ended.
var errLost = errors.New("the kernel's notifications have ended")

// ours tells the links on which something of ours is.
func ours(name string) bool { return name == claims.OVSHostPort || name == claims.OVSUnderlayBridge }

// hostDiffers says what is wrong with our links on the host. One that is missing is no
// news: Open vSwitch makes it, and tells.
func (p *Plane) hostDiffers() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.last == nil {
		return ""
	}
	r := p.render(*p.last)
	wanted := []hostLink{gatewayLink(r.host.Gateway)}
	if r.uplink != nil {
		wanted = append(wanted, underlayLink(p.last.Underlay))
	}
	for _, l := range wanted {
		tasks, err := p.host.plan(l)
		if err != nil || len(tasks) == 0 || tasks[0].diff.Subsystem == "link" && tasks[0].diff.Problem == missing {
			continue
		}
		return fmt.Sprintf("link %s was changed; to do: %s", l.name, tasks[0].text())
	}
	return ""
}
