package linuxplane

import (
	"context"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// adoptFor is how long TCP flows may go on that were there before the table: a sender
// that hears nothing sends again within that time.
const adoptFor = 30 * time.Second

// Maker is what a Filter may be beside: it tells whether its last Apply made the table
// anew, and before the first one, whether it will, so that packets may have passed
// without one.
type Maker interface {
	Anew() bool
}

func (p *Plane) anew() bool {
	m, ok := p.filter.(Maker)
	return ok && m.Anew()
}

// applyFilter brings the table in. If it turns out to be new, it comes in once more with
// the rules that adopt flows.
func (a *application) applyFilter(ctx context.Context, desired intent.Node) error {
	over := !a.adoptUntil.IsZero() && !a.now().Before(a.adoptUntil)
	if over && !a.options.AddOnly {
		a.adopting = false
	}
	if err := a.applyTable(ctx, desired); err != nil {
		return err
	}
	a.made = a.anew()
	again := a.made && !a.adopting
	if a.anew() || a.adoptUntil.IsZero() {
		a.adopting, a.adoptUntil = a.anew() || a.adopting, a.now().Add(adoptFor)
	}
	if a.anew() {
		a.forgetUntranslated(ctx, desired)
	}
	if again {
		return a.applyTable(ctx, desired)
	}
	return nil
}

// adoptsFor is how long the table has to adopt flows for still. Zero: it adopts none, or
// the next Apply ends that; one that only adds cannot.
func (p *Plane) adoptsFor() time.Duration {
	if !p.adopting || p.adoptUntil.IsZero() {
		return 0
	}
	return max(0, p.adoptUntil.Sub(p.now()))
}

func (a *application) applyTable(ctx context.Context, desired intent.Node) error {
	changes, err := a.filter.Apply(ctx, a.table(desired, rendernft.Options{Adopting: a.adopting}), a.options)
	a.report.Changes = append(a.report.Changes, changes...)
	return err
}
