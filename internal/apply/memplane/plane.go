package memplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// ErrClosed is the error of a plane that was closed.
var ErrClosed = errors.New("the plane is closed")

// Plane is one node's data plane. Make it with Fabric.Node.
type Plane struct {
	fabric *Fabric
	name   string

	// All below is guarded by the fabric's lock.
	closed   bool
	actual   intent.Node
	faults   map[intent.Ref]error
	applies  int
	watchers map[int]func(apply.Foreign)
	nextID   int
	flows    *conntrack
}

var _ apply.Plane = (*Plane)(nil)

// Apply implements apply.Plane.
func (p *Plane) Apply(ctx context.Context, desired intent.Node, o apply.Options) (apply.Report, error) {
	started := time.Now()
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if p.closed {
		return apply.Report{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return apply.Report{}, fmt.Errorf("apply the intent of node %s: %w", desired.Name, err)
	}
	p.applies++
	m := merge{faults: p.faults, addOnly: o.AddOnly}
	next := intent.Node{
		Name: desired.Name, MTU: desired.MTU, Underlay: slices.Clone(desired.Underlay), VTEPMAC: desired.VTEPMAC,
		VPCs:        mergeList(&m, p.actual.VPCs, desired.VPCs),
		Subnets:     mergeList(&m, p.actual.Subnets, desired.Subnets),
		Peers:       mergeList(&m, p.actual.Peers, desired.Peers),
		Routes:      mergeList(&m, p.actual.Routes, desired.Routes),
		Tunnels:     mergeList(&m, p.actual.Tunnels, desired.Tunnels),
		Ports:       mergeList(&m, p.actual.Ports, desired.Ports),
		NATs:        mergeList(&m, p.actual.NATs, desired.NATs),
		AddressSets: mergeList(&m, p.actual.AddressSets, desired.AddressSets),
		RuleLists:   mergeList(&m, p.actual.RuleLists, desired.RuleLists),
	}
	report := apply.Report{Failed: m.failed}
	for _, c := range intent.Diff(p.actual, next) {
		report.Changes = append(report.Changes, c.String())
	}
	slices.SortFunc(report.Failed, func(a, b apply.ObjectError) int {
		return cmp.Or(cmp.Compare(a.Ref.Kind, b.Ref.Kind), cmp.Compare(a.Ref.Name, b.Ref.Name))
	})
	p.actual = next
	p.forgetPorts()
	report.Duration = time.Since(started)
	return report, nil
}

// merge is one Apply's rules for lists of objects.
type merge struct {
	faults  map[intent.Ref]error
	addOnly bool
	failed  []apply.ObjectError
}

// mergeList returns what a list is after an Apply: as desired, but an object that
// fails stays what it was, and with AddOnly nothing is removed.
func mergeList[T intent.Object[T]](m *merge, actual, desired []T) []T {
	var next []T
	for len(actual) > 0 || len(desired) > 0 {
		order := 1
		switch {
		case len(desired) == 0:
			order = -1
		case len(actual) > 0:
			order = actual[0].Compare(desired[0])
		}
		switch {
		case order < 0: // To be removed.
			if m.addOnly || m.fails(actual[0].Ref()) {
				next = append(next, actual[0])
			}
			actual = actual[1:]
		case order > 0: // New.
			if !m.fails(desired[0].Ref()) {
				next = append(next, desired[0])
			}
			desired = desired[1:]
		default:
			if actual[0].Equal(desired[0]) || !m.fails(desired[0].Ref()) {
				next = append(next, desired[0])
			} else {
				next = append(next, actual[0])
			}
			actual, desired = actual[1:], desired[1:]
		}
	}
	return next
}

// fails notes the injected failure of an object, if there is one.
func (m *merge) fails(r intent.Ref) bool {
	err := m.faults[r]
	if err != nil {
		m.failed = append(m.failed, apply.ObjectError{Ref: r, Err: err})
	}
	return err != nil
}

// Audit implements apply.Plane. The subsystem is always "memory".
func (p *Plane) Audit(ctx context.Context, desired intent.Node) ([]apply.Difference, error) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("audit node %s: %w", desired.Name, err)
	}
	var differences []apply.Difference
	for _, c := range intent.Diff(p.actual, desired) {
		d := apply.Difference{Subsystem: "memory", Object: c.Ref.String(), Problem: "differs", Want: c.Detail}
		switch c.Op {
		case "added":
			d.Problem = "missing"
		case "removed":
			d.Problem, d.Want, d.Got = "unexpected", "", c.Detail
		}
		differences = append(differences, d)
	}
	return differences, nil
}

// Watch implements apply.Plane: it reports what Damage does, until ctx ends.
func (p *Plane) Watch(ctx context.Context, changed func(apply.Foreign)) error {
	p.fabric.mu.Lock()
	if p.closed {
		p.fabric.mu.Unlock()
		return ErrClosed
	}
	id := p.nextID
	p.nextID++
	p.watchers[id] = changed
	p.fabric.mu.Unlock()

	<-ctx.Done()

	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	delete(p.watchers, id)
	return nil
}

// Close implements apply.Plane: traffic goes on.
func (p *Plane) Close() error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	p.closed = true
	return nil
}

// Fail makes every later Apply fail on an object that it would have to change; nil
// heals it.
func (p *Plane) Fail(r intent.Ref, err error) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if err == nil {
		delete(p.faults, r)
		return
	}
	p.faults[r] = err
}

// Damage removes an object behind the plane's back, as an outsider would, and
// reports whether it was there. Watchers are told after the fact.
func (p *Plane) Damage(r intent.Ref) bool {
	p.fabric.mu.Lock()
	before := p.actual
	without(&p.actual.VPCs, r)
	without(&p.actual.Subnets, r)
	without(&p.actual.Peers, r)
	without(&p.actual.Routes, r)
	without(&p.actual.Tunnels, r)
	without(&p.actual.Ports, r)
	without(&p.actual.NATs, r)
	without(&p.actual.AddressSets, r)
	without(&p.actual.RuleLists, r)
	done := !before.Equal(p.actual)
	var watchers []func(apply.Foreign)
	for _, w := range p.watchers {
		watchers = append(watchers, w)
	}
	p.fabric.mu.Unlock()
	if done {
		for _, w := range watchers {
			w(apply.Foreign{Time: time.Now(), Subsystem: "memory", What: r.String() + " deleted"})
		}
	}
	return done
}

func without[T intent.Object[T]](list *[]T, r intent.Ref) {
	*list = slices.DeleteFunc(slices.Clone(*list), func(o T) bool { return o.Ref() == r })
}

// Intent is what the plane has made so far.
func (p *Plane) Intent() intent.Node {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	return p.actual
}

// Applies counts the calls of Apply.
func (p *Plane) Applies() int {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	return p.applies
}
