package linuxplane

import (
	"fmt"
	"sync/atomic"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// liberal makes conntrack take TCP segments that do not follow on those that it saw: of
// a flow that passes by, it sees few.
const liberal = "net/netfilter/nf_conntrack_tcp_be_liberal"

// cache is what the Plane knows about the flow cache.
type cache struct {
	wanted bool
	// feature tells how it is, for people.
	feature atomic.Pointer[string]
}

func (c *cache) tell(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.feature.Store(&text)
}

// state is what the node must hold.
func (p *Plane) state(desired intent.Node) linux.State {
	s := linux.RenderState(desired)
	if p.cache.wanted {
		s.Sysctls = append(s.Sysctls, linux.Sysctl{Key: liberal, Value: "1", Optional: true})
	}
	return s
}

// forgetPassing makes the flow cache forget all flows if this Apply has changed
// anything since it last did, or may have without telling.
func (a *application) forgetPassing(unsure bool) error {
	if len(a.report.Changes) == a.forgotten && !unsure {
		return nil
	}
	if err := a.wire.Invalidate(); err != nil {
		return fmt.Errorf("make the flow cache forget: %w", err)
	}
	a.forgotten = len(a.report.Changes)
	return nil
}

// settleCache ends an Apply for the flow cache: it is on if conntrack bears that, and
// knows nothing from before.
func (a *application) settleCache(mtu int, unsure bool) error {
	if err := a.forgetPassing(unsure); err != nil {
		return err
	}
	on := false
	switch value, err := "", error(nil); {
	case !a.cache.wanted:
		a.cache.tell("no flow cache (flowCache is off)")
	default:
		value, err = a.links.Setting(liberal)
		on = err == nil && value == "1"
		if on {
			a.cache.tell("flow cache: established flows between pods pass by the kernel's path")
			break
		}
		a.cache.tell("no flow cache: %s must be 1, which it is not (%q, %v)", liberal, value, err)
	}
	if on && a.options.AddOnly {
		return nil // what it is now stays so: the MTU is that of a world that may not be whole
	}
	changes, err := a.wire.Cache(on, mtu)
	a.report.Changes = append(a.report.Changes, changes...)
	if err != nil {
		return fmt.Errorf("set up the flow cache: %w", err)
	}
	return nil
}
