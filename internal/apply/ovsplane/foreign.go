package ovsplane

import (
	"context"
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// strangers are the foreign flows in a bridge, as they were in a state of the connection.
type strangers struct {
	connection, foreign uint64
	flows               []of.FlowDesc
}

// look reads the bridge, if others have changed flows of their own since it was read, or if
// the switch does not tell. Of a bridge that is away it keeps what it knows.
func (s *strangers) look(ctx context.Context, conn *openflowconn.Conn) error {
	st, _ := conn.State()
	if !st.Connected || st.Watching && st.Connection == s.connection && st.Foreign == s.foreign {
		return nil
	}
	all, err := conn.Flows(ctx, of.FlowFilter{Table: of.TableAll})
	if err != nil {
		return err
	}
	s.connection, s.foreign, s.flows = st.Connection, st.Foreign, slices.DeleteFunc(all, isOurs)
	return nil
}

func isOurs(f of.FlowDesc) bool { return f.Flow.Cookie&claims.OVSCookieMask == claims.OVSCookie }

// Shadowing names the foreign routes, rules and flows that take packets from what is ours, as
// Audit does. It reads the kernel and the switch only if something has changed since it was asked
// last, and waits for no Open vSwitch.
func (p *Plane) Shadowing(ctx context.Context) ([]apply.Difference, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	out, err := p.links.Shadowing()
	if err != nil || p.flows.pipe == nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	if err := p.strangers.look(ctx, p.conn); err != nil {
		return nil, err
	}
	if len(p.strangers.flows) > 0 {
		out = append(out, shadowing(p.strangers.flows, p.flows.pipe.Flows())...)
	}
	if len(p.bridges) > 1 {
		if err := p.underlayStrangers.look(ctx, p.underlay); err != nil {
			return nil, err
		}
		out = append(out, underlayShadowing(p.underlayStrangers.flows)...)
	}
	slices.SortFunc(out, apply.Difference.Compare)
	return out, nil
}

// underlayShadowing is shadowing of the bridge around the NIC.
func underlayShadowing(found []of.FlowDesc) []apply.Difference {
	out := shadowing(found, []of.Flow{underlayFlow()})
	for i := range out {
		out[i].Object += " of bridge " + claims.OVSUnderlayBridge
	}
	return out
}

// maxShadowing is how many foreign flows are looked at: each is held against all of ours.
const maxShadowing = 100

// shadowing names the flows of others in a bridge of ours that take packets from our
// flows: nothing of ours is missing, and traffic goes elsewhere all the same. They are not ours
// to remove. wanted is what is ours.
func shadowing(found []of.FlowDesc, wanted []of.Flow) (out []apply.Difference) {
	ours := map[of.Key]bool{}
	tables := map[uint8][]of.Flow{}
	for _, f := range wanted {
		ours[f.Key()] = true
		tables[f.Table] = append(tables[f.Table], f)
	}
	found = slices.DeleteFunc(slices.Clone(found), func(f of.FlowDesc) bool {
		return isOurs(f) || ours[f.Flow.Key()]
	})
	slices.SortFunc(found, func(a, b of.FlowDesc) int { return of.Compare(a.Flow, b.Flow) })
	for i, f := range found {
		if i == maxShadowing {
			return append(out, apply.Difference{Subsystem: "ovs", Object: fmt.Sprintf("%d more foreign flows", len(found)-i), Problem: unexpected})
		}
		hit := slices.DeleteFunc(slices.Clone(tables[f.Flow.Table]), func(o of.Flow) bool {
			return o.Priority > f.Flow.Priority || !overlap(o.Match, f.Flow.Match)
		})
		if len(hit) == 0 {
			continue
		}
		of.Sort(hit)
		want := "flow " + hit[0].String()
		if why := hit[0].Comment; why != "" {
			want = fmt.Sprintf("table %s: %s", ovs.TableName(hit[0].Table), why)
		}
		if len(hit) > 1 {
			want = fmt.Sprintf("%s, and %d more", want, len(hit)-1)
		}
		out = append(out, apply.Difference{
			Subsystem: "ovs", Object: "flow " + f.Flow.String(), Problem: shadowed, Want: want, Got: apply.Packets(f.Packets),
		})
	}
	return out
}

// overlap reports whether a packet can meet both.
func overlap(a, b of.Match) bool {
	for _, x := range a {
		y, both := b.Get(x.Field)
		if mask := x.Mask.And(y.Mask); both && x.Value.And(mask) != y.Value.And(mask) {
			return false
		}
	}
	return true
}
