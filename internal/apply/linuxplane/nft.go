package linuxplane

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// nftFilter is the nftables driver in the words of a Filter.
type nftFilter struct {
	driver *nft.Driver
	// anew is what Anew says; fresh, that nothing was applied yet and no table found.
	anew, fresh bool
}

// NewFilter makes a Filter of a driver, which belongs to it from then on. Other planes that
// have a table on the host use it too.
func NewFilter(ctx context.Context, d *nft.Driver) (Filter, error) { return newFilter(ctx, d) }

func newFilter(ctx context.Context, d *nft.Driver) (*nftFilter, error) {
	if !d.Adopted() {
		return &nftFilter{driver: d, anew: true, fresh: true}, nil
	}
	adopting, err := adopting(ctx, d)
	return &nftFilter{driver: d, anew: adopting}, err
}

// adopting reports whether the table that was found adopts flows: whoever made it anew
// was gone before that was over.
func adopting(ctx context.Context, d *nft.Driver) (bool, error) {
	counters, err := d.Counters(ctx)
	has := func(comment string) bool {
		return slices.ContainsFunc(counters, func(c nft.RuleCounter) bool { return c.Comment == comment })
	}
	return has(rendernft.FlowCut) && !has(rendernft.MiddleOfTCP), err
}

func (f *nftFilter) Apply(ctx context.Context, want nftables.Table, o apply.Options) ([]string, error) {
	if o.Refresh {
		if err := f.driver.Refresh(ctx); err != nil {
			return nil, err
		}
	}
	bring := f.driver.Apply
	if o.AddOnly {
		bring = f.driver.Extend
	}
	changes, err := bring(ctx, want)
	f.anew = changes.TableCreated || f.fresh
	f.fresh = f.fresh && err != nil
	if changes.Empty() {
		return nil, err
	}
	lines := changes.Lines
	if n := changes.ElementsAdded + changes.ElementsRemoved; n > 0 || len(lines) == 0 {
		lines = append(lines, fmt.Sprintf("add %d and remove %d elements of nftables sets", changes.ElementsAdded, changes.ElementsRemoved))
	}
	return lines, err
}

func (f *nftFilter) Audit(ctx context.Context, want nftables.Table) ([]apply.Difference, error) {
	found, err := f.driver.Audit(ctx, want)
	var out []apply.Difference
	for _, d := range found {
		diff := apply.Difference{Subsystem: "nftables", Object: d.Object}
		switch d.Kind {
		case nft.Missing:
			diff.Problem, diff.Want = "missing", d.Detail
		case nft.Extra:
			diff.Problem, diff.Got = "unexpected", d.Detail
		default:
			diff.Problem, diff.Got = "differs", d.Detail
		}
		out = append(out, diff)
	}
	return out, err
}

func (f *nftFilter) Watch(ctx context.Context, changed func(apply.Foreign)) error {
	return f.driver.Watch(ctx, func(e nft.Foreign) {
		out := apply.Foreign{Time: time.Now(), Subsystem: "nftables", Process: e.Process}
		switch {
		case e.Lost:
			out.What = "notifications of nftables were lost: anything may have changed"
		case e.Ours:
			out.What = "nftables table of ours: " + few(e.Events)
		default:
			return
		}
		if e.PID != 0 {
			out.Process = strings.TrimSpace(fmt.Sprintf("%s (pid %d)", e.Process, e.PID))
		}
		changed(out)
	})
}

func (f *nftFilter) Delete(ctx context.Context) error { return f.driver.Delete(ctx) }

func (f *nftFilter) Close() error { return f.driver.Close() }

// Anew implements Maker.
func (f *nftFilter) Anew() bool { return f.anew }

// Drops implements Observed: the rules that drop have counters, and their comments
// say why. Others that count are those that translate and those that allow.
func (f *nftFilter) Drops(ctx context.Context) (map[string]uint64, error) {
	counters, err := f.driver.Counters(ctx)
	out := map[string]uint64{}
	for _, c := range counters {
		if c.Chain != "postrouting" && !strings.HasPrefix(c.Comment, rendernft.AllowedBy) {
			out[reason(c.Comment)] += c.Packets
		}
	}
	return out, err
}

// reason is the comment of a rule that drops, but one for all policies: there may be
// thousands of them, and each reason is a series of a metric. Which rule of which policy
// drops is for Explain to say.
func reason(comment string) string {
	if strings.HasPrefix(comment, rendernft.DeniedBy) && comment != rendernft.DeniedByNoList {
		return rendernft.DeniedBy + "policy"
	}
	return comment
}

// Feature implements Observed.
func (f *nftFilter) Feature() string {
	if f.driver.Owned() {
		return "nftables table owned and persistent: others cannot change it"
	}
	return "nftables table without an owner (kernel before 6.9): watched and restored"
}

// few keeps what a flush did in one line.
func few(events []string) string {
	const most = 5
	if len(events) <= most {
		return strings.Join(events, ", ")
	}
	return fmt.Sprintf("%s and %d more changes", strings.Join(events[:most], ", "), len(events)-most)
}
