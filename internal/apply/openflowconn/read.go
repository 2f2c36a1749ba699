package openflowconn

import (
	"context"
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/openflow"
)

// maxListed bounds what one listing may hold.
const maxListed = 1_000_000

// Read lists what is ours in the bridge, in order. A flow of ours that cannot be
// understood (somebody changed it, or it is of a newer version) is listed with a
// single Unknown action, so that Diff replaces or deletes it.
func (c *Conn) Read(ctx context.Context) (Rules, error) {
	var r Rules
	flows, err := c.Flows(ctx, openflow.FlowFilter{Table: openflow.TableAll, Cookie: c.config.Owned.Cookie, CookieMask: c.config.Owned.Mask})
	if err != nil {
		return r, err
	}
	r.Flows = make([]openflow.Flow, len(flows))
	for i, d := range flows {
		if d.Err != nil {
			d.Flow.Actions = []openflow.Action{openflow.Unknown{}}
		}
		r.Flows[i] = d.Flow
	}
	openflow.Sort(r.Flows)
	groups, err := c.Groups(ctx)
	if err != nil {
		return r, err
	}
	for _, d := range groups {
		if c.config.Owned.Groups.has(d.Group.ID) {
			r.Groups = append(r.Groups, d.Group)
		}
	}
	meters, err := c.Meters(ctx)
	if err != nil {
		return r, err
	}
	for _, d := range meters {
		if c.config.Owned.Meters.has(d.Meter.ID) {
			r.Meters = append(r.Meters, d.Meter)
		}
	}
	slices.SortFunc(r.Groups, func(a, b openflow.Group) int { return int(int64(a.ID) - int64(b.ID)) })
	slices.SortFunc(r.Meters, func(a, b openflow.Meter) int { return int(int64(a.ID) - int64(b.ID)) })
	return r, nil
}

// Flows lists the flows that the filter chooses, whosever they are, with counters.
func (c *Conn) Flows(ctx context.Context, f openflow.FlowFilter) ([]openflow.FlowDesc, error) {
	return list(ctx, c, "flows", func(xid uint32) []byte { return openflow.AppendFlowDescRequest(nil, xid, f) },
		func(r openflow.FlowDescReply) ([]openflow.FlowDesc, bool) { return r.Flows, r.More })
}

// Groups lists all groups.
func (c *Conn) Groups(ctx context.Context) ([]openflow.GroupDesc, error) {
	return list(ctx, c, "groups", func(xid uint32) []byte { return openflow.AppendGroupDescRequest(nil, xid) },
		func(r openflow.GroupDescReply) ([]openflow.GroupDesc, bool) { return r.Groups, r.More })
}

// Meters lists all meters.
func (c *Conn) Meters(ctx context.Context) ([]openflow.MeterDesc, error) {
	return list(ctx, c, "meters", func(xid uint32) []byte { return openflow.AppendMeterDescRequest(nil, xid) },
		func(r openflow.MeterDescReply) ([]openflow.MeterDesc, bool) { return r.Meters, r.More })
}

// Ports lists all ports.
func (c *Conn) Ports(ctx context.Context) ([]openflow.PortDesc, error) {
	return list(ctx, c, "ports", func(xid uint32) []byte { return openflow.AppendPortDescRequest(nil, xid) },
		func(r openflow.PortDescReply) ([]openflow.PortDesc, bool) { return r.Ports, r.More })
}

// list collects the parts of a listing.
func list[Reply openflow.Body, T any](ctx context.Context, c *Conn, what string, request func(xid uint32) []byte, part func(Reply) ([]T, bool)) ([]T, error) {
	var all []T
	xid := c.reserve(1)
	err := c.do(ctx, xid, 1, request(xid), func(m openflow.Message) (bool, error) {
		if _, err := answered[Reply](m); err != nil {
			return false, err
		}
		some, more := part(m.Body.(Reply))
		all = append(all, some...)
		if len(all) > maxListed {
			return false, fmt.Errorf("more than %d of them", maxListed)
		}
		return !more, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the %s of the bridge: %w", what, err)
	}
	return all, nil
}
