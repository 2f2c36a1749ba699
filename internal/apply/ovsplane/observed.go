package ovsplane

import (
	"context"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// Drops are the packets that our flows and the host's table dropped, by reason, since
// they were made.
func (p *Plane) Drops(ctx context.Context) (map[string]uint64, error) {
	all := map[string]uint64{}
	if o, ok := p.filter.(linuxplane.Observed); ok {
		drops, err := o.Drops(ctx)
		if err != nil {
			return nil, err
		}
		for reason, n := range drops {
			all[reason] += n
		}
	}
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	if _, err := p.conn.Await(ctx); err != nil {
		return nil, err
	}
	installed, err := p.conn.Flows(ctx, of.FlowFilter{Table: of.TableAll, Cookie: claims.OVSCookie, CookieMask: claims.OVSCookieMask})
	if err != nil {
		return nil, err
	}
	reasons := p.reasons()
	for _, f := range installed {
		if len(f.Flow.Actions) == 0 && f.Err == nil {
			all[reasons(f.Flow)] += f.Packets
		}
	}
	return all, nil
}

// reasons returns what says why a flow drops: the switch keeps no comments.
func (p *Plane) reasons() func(of.Flow) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	why := map[of.Key]string{}
	if p.flows.pipe != nil {
		for _, f := range p.flows.pipe.Flows() {
			if len(f.Actions) == 0 {
				why[f.Key()] = reason(f.Comment)
			}
		}
	}
	return func(f of.Flow) string {
		if isCut(f) {
			return ovs.FlowCut
		}
		if s, known := why[f.Key()]; known {
			return s
		}
		return "flow of an earlier pipeline"
	}
}

// reason is a comment without the object that it names: each reason is a series of a
// metric.
func reason(comment string) string {
	if strings.HasPrefix(comment, ovs.DeniedBy) && !strings.HasSuffix(comment, "missing") {
		return ovs.DeniedBy + "policy"
	}
	for _, kind := range []string{": Route ", ": Subnet ", ": Node ", ": Peer ", ": TunnelAddress "} {
		if before, _, found := strings.Cut(comment, kind); found {
			return before
		}
	}
	return comment
}

// version is what ovs-vswitchd says of itself; the database knows it only if somebody has
// written it there.
func (p *Plane) version() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	text, err := p.control.Call(ctx, "ovs-vswitchd", "version")
	if err != nil {
		return "Open vSwitch does not answer: " + err.Error()
	}
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line)
}

// Features tells, for people, what of Open vSwitch and the kernel is used.
func (p *Plane) Features() []string {
	out := []string{p.datapath.describe()}
	switch s := p.db.Status(); {
	case s.Connected:
		out = append(out, p.version())
	case s.Err != nil:
		out = append(out, "Open vSwitch is away: "+s.Err.Error())
	default:
		out = append(out, "Open vSwitch is away")
	}
	if o, ok := p.filter.(linuxplane.Observed); ok {
		out = append(out, o.Feature())
	}
	return out
}
