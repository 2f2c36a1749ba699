package linuxplane

import "context"

// Observed is what a Filter or Wire may be beside: *bpf.Wire and the nftables
// driver are.
type Observed interface {
	// Drops are the packets that it dropped, by reason.
	Drops(context.Context) (map[string]uint64, error)
	// Feature tells, for people, what of the kernel it uses.
	Feature() string
}

func (p *Plane) observed() []Observed {
	var out []Observed
	for _, part := range []any{p.filter, p.wire} {
		if o, ok := part.(Observed); ok {
			out = append(out, o)
		}
	}
	return out
}

// Drops are the packets that our rules and programs dropped, by reason, since they
// were made.
func (p *Plane) Drops(ctx context.Context) (map[string]uint64, error) {
	all := map[string]uint64{}
	for _, o := range p.observed() {
		drops, err := o.Drops(ctx)
		if err != nil {
			return nil, err
		}
		for why, n := range drops {
			all[why] += n
		}
	}
	return all, nil
}

// Features tells, for people, what of the kernel is used.
func (p *Plane) Features() []string {
	var out []string
	for _, o := range p.observed() {
		out = append(out, o.Feature())
	}
	if f := p.cache.feature.Load(); f != nil {
		out = append(out, *f)
	}
	return out
}
