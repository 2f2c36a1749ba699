package linuxplane

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// guardPorts puts the programs on the links of ports, and into their map what each may
// send. A link that does not get them carries nothing: the filter sees to that. So one
// that fails does not hold up the others.
func (a *application) guardPorts(ctx context.Context, guards []linux.Guard) error {
	changes, err := a.wire.ApplyPorts(ctx, guards, a.options)
	a.report.Changes = append(a.report.Changes, changes...)
	if err != nil {
		return err
	}
	if a.options.Refresh {
		clear(a.guarded)
	}
	there := make(map[int]bool, len(guards))
	var todo []linux.Guard
	for _, g := range guards {
		there[g.Index] = true
		if !a.guarded[g.Index] {
			todo = append(todo, g)
		}
	}
	maps.DeleteFunc(a.guarded, func(index int, _ bool) bool { return !there[index] })
	if len(todo) == 0 {
		return nil
	}
	return a.attachGuards(todo)
}

// guardsAtOnce bounds how many links get their programs at once. Where the kernel is busy
// with links each waits for its turn, and those that wait together wait once.
const guardsAtOnce = 8

func (a *application) attachGuards(todo []linux.Guard) error {
	changes, errs := make([][]string, len(todo)), make([]error, len(todo))
	attach := func(i int) error {
		return a.ns.Do(func() error {
			changes[i], errs[i] = a.wire.AttachPort(todo[i].Index)
			return nil
		})
	}
	var err error
	a.aside(func() {
		if len(todo) == 1 { // as most often: no other thread need wake
			err = attach(0)
			return
		}
		var group errgroup.Group
		group.SetLimit(guardsAtOnce)
		for i := range todo {
			group.Go(func() error { return attach(i) })
		}
		err = group.Wait()
	})
	if err != nil {
		return err
	}
	for i, g := range todo {
		a.report.Changes = append(a.report.Changes, changes[i]...)
		if errs[i] != nil {
			a.fail(apply.ObjectError{Ref: g.Ref, Err: fmt.Errorf("guard link %s: %w", g.Link, errs[i])})
			continue
		}
		a.guarded[g.Index] = true
	}
	return nil
}

// auditGuards compares the programs and their map with what ought to be on the links
// that there are; links that are missing are told already.
func (p *Plane) auditGuards(state linux.State) ([]apply.Difference, error) {
	index, err := p.links.PortIndex()
	if err != nil {
		return nil, err
	}
	guards := state.Guards(index)
	out, err := p.wire.AuditPorts(guards)
	if err != nil {
		return out, err
	}
	for _, g := range guards {
		diffs, err := p.unguarded(g)
		if err != nil {
			return out, err
		}
		out = append(out, diffs...)
	}
	return out, nil
}

// unguarded tells if the programs are not on a link.
func (p *Plane) unguarded(g linux.Guard) (out []apply.Difference, err error) {
	err = p.ns.Do(func() error {
		on, err := p.wire.PortAttached(g.Index)
		if err != nil {
			return fmt.Errorf("link %s: %w", g.Link, err)
		}
		if !on {
			out = append(out, apply.Difference{Subsystem: "bpf", Object: "programs of link " + g.Link, Problem: "missing"})
		}
		return nil
	})
	return out, err
}

// CheckPort compares one attachment with the kernel, for CNI CHECK. mtu is the
// intent's. It changes nothing.
func (p *Plane) CheckPort(ctx context.Context, port intent.Port, mtu int) ([]apply.Difference, error) {
	out, err := p.links.CheckPort(ctx, port, mtu)
	if err != nil {
		return out, err
	}
	index, err := p.links.PortIndex()
	if err != nil {
		return out, err
	}
	i := index[port.HostInterface]
	if i == 0 {
		return out, nil // which is told already
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return out, ErrClosed
	}
	diffs, err := p.unguarded(linux.Guard{Link: port.HostInterface, Index: i})
	out = append(out, diffs...)
	slices.SortFunc(out, apply.Difference.Compare)
	return out, err
}
