package ovsplane

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
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
	// Whoever asks for the node's status waits three seconds in all.
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second/2)
	defer cancel()
	if s, _ := p.conn.State(); !s.Connected {
		return nil, fmt.Errorf("%w %s: %w", openflowconn.ErrDisconnected, claims.OVSBridge, s.Err)
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

// Tables shows the flows of the bridge that the intent renders to now, each with the packets
// that the switch says it had, what the switch has beside, and the host's filter table.
func (p *Plane) Tables(n intent.Node) string {
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	var b strings.Builder
	numbers, err := p.numbers(ctx)
	var found []of.FlowDesc
	if err == nil {
		found, err = p.conn.Flows(ctx, of.FlowFilter{Table: of.TableAll})
	}
	if err != nil {
		fmt.Fprintf(&b, "# Open vSwitch does not say what it has: %v\n", err)
	}
	p.mu.Lock()
	pipe := p.flows.pipe
	if numbers != nil {
		pipe = ovs.RenderAfter(p.flows.pipe, n, numbers, ovs.Options{Adopting: p.flows.adopting})
	}
	uplink := p.render(n).uplinkName()
	p.mu.Unlock()
	var want []of.Flow
	if pipe != nil {
		want = pipe.Flows()
	}
	fmt.Fprintf(&b, "# bridge %s, pipeline version %d\n", claims.OVSBridge, ovs.Version)
	tellTables(&b, want, found)
	b.WriteString("\n# host\n" + ovs.RenderTable(n, p.datapath.switchOf(uplink)).String())
	return b.String()
}

// tellTables writes flows by table, with what the switch says of each.
func tellTables(b *strings.Builder, want []of.Flow, found []of.FlowDesc) {
	live := make(map[of.Key]of.FlowDesc, len(found))
	for _, f := range found {
		live[f.Flow.Key()] = f
	}
	want = slices.Clone(want)
	of.Sort(want)
	table := -1
	for _, f := range want {
		if int(f.Table) != table {
			table = int(f.Table)
			fmt.Fprintf(b, "\n=== %d %s\n", table, ovs.TableName(f.Table))
		}
		state := "not in the switch"
		if got, there := live[f.Key()]; there {
			state = fmt.Sprintf("%d packets", got.Packets)
			if !got.Flow.Equal(f) {
				state += ", but the switch has " + got.Flow.String()
			}
			delete(live, f.Key())
		}
		fmt.Fprintf(b, "# %s: %s\n%s\n", f.Comment, state, f)
	}
	for _, f := range found {
		if _, other := live[f.Flow.Key()]; other {
			why := "should not be there"
			switch {
			case f.Flow.Cookie&claims.OVSCookieMask != claims.OVSCookie:
				why = fmt.Sprintf("somebody else's, cookie %#x", f.Flow.Cookie)
			case isCut(f.Flow):
				why = ovs.FlowCut
			}
			fmt.Fprintf(b, "# %s: %d packets\n%s\n", why, f.Packets, f.Flow)
		}
	}
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
