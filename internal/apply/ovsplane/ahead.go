package ovsplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/switchdb"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// Pods' ports ask for numbers of this range: Open vSwitch itself counts from 1.
const (
	firstPodPort uint32 = 0x8000
	lastPodPort  uint32 = 0xfe00
)

// number lets each pod's port ask for a number: the one that it asked for before, or one
// that nobody has or asks for. Numbers go round, so that one that was given up is not another pod's
// soon. Ports of an earlier version that asked for none go on without.
func (p *Plane) number(wanted []switchdb.Bridge, known map[string]switchdb.Numbered) {
	asked, used := make(map[string]uint16, len(p.asked)), map[uint32]bool{}
	for _, n := range known {
		used[n.OFPort], used[n.Request] = true, true
	}
	for _, n := range p.asked {
		used[uint32(n)] = true
	}
	for i, b := range wanted {
		wanted[i].Ports = slices.Clone(b.Ports)
		for j := range wanted[i].Ports {
			port := &wanted[i].Ports[j]
			if !strings.HasPrefix(port.Name, claims.PortPrefix) {
				continue
			}
			before, remembered := p.asked[port.Name]
			there, exists := known[port.Name]
			switch {
			case remembered:
				port.OFPort = before
			case exists:
				port.OFPort = uint16(min(there.Request, lastPodPort))
			default:
				port.OFPort = p.free(used)
			}
			used[uint32(port.OFPort)] = true
			asked[port.Name] = port.OFPort
		}
	}
	p.asked = asked
}

// free is the next number that is not used, 0 if there is none.
func (p *Plane) free(used map[uint32]bool) uint16 {
	for range lastPodPort - firstPodPort + 1 {
		n := p.nextNumber
		if p.nextNumber++; p.nextNumber > lastPodPort || p.nextNumber < firstPodPort {
			p.nextNumber = firstPodPort
		}
		if n >= firstPodPort && !used[n] {
			return uint16(n)
		}
	}
	return 0
}

// withPortsNote ends what a Report says of flows that came with their ports, not after them.
const withPortsNote = " along with their ports"

// ahead are the flows of ports that are being added, which the switch has and which
// do not hold yet. They are committed when the switch says that the ports are there with
// the numbers that the flows name: while it still takes up the change of its database,
// not after it.
type ahead struct {
	bundle  *openflowconn.Prepared
	next    *ovs.Pipeline
	numbers ovs.Numbers
	added   map[string]of.Port
	told    string
	// committed: the flows hold.
	committed bool
}

// begin prepares the flows of new ports while links are made, of which ovs-vswitchd is told
// too and then looks over all its ports. The function that it returns waits for that and hands
// over, once, what came of it.
func (a *application) begin(ctx context.Context, desired intent.Node, wanted []switchdb.Bridge) (take func() *ahead) {
	done := make(chan *ahead, 1)
	go func() {
		defer close(done)
		waiting, cancel := context.WithTimeout(ctx, a.patience)
		defer cancel()
		done <- a.prepare(waiting, desired, wanted)
	}()
	return func() *ahead { return <-done }
}

// prepare hands the flows to the switch ahead of their ports, if the ports of pods are all
// that is new to it. nil: they come after.
func (a *application) prepare(ctx context.Context, desired intent.Node, wanted []switchdb.Bridge) *ahead {
	s := a.db.Status()
	st, _ := a.conn.State()
	if !s.Connected || s.Behind || !st.Connected || a.unread(st) || a.options.AddOnly || a.flows.pipe == nil {
		return nil
	}
	known, err := a.db.Numbers(ctx)
	if err != nil {
		return nil
	}
	a.number(wanted, known)
	early := &ahead{numbers: ovs.Numbers{}, added: map[string]of.Port{}}
	for _, b := range wanted {
		if known[b.Name].OFPort == 0 {
			return nil
		}
		early.numbers[b.Name] = of.Port(known[b.Name].OFPort)
		for _, p := range b.Ports {
			there, exists := known[p.Name]
			number := of.Port(there.OFPort)
			if !exists && strings.HasPrefix(p.Name, claims.PortPrefix) {
				number = of.Port(p.OFPort)
				early.added[p.Name] = number
			}
			if number == 0 {
				return nil
			}
			early.numbers[p.Name] = number
		}
	}
	if len(early.added) == 0 {
		return nil
	}
	early.next = ovs.RenderAfter(a.flows.pipe, desired, early.numbers, ovs.Options{Adopting: a.adopts()})
	before, after := early.next.Since(a.flows.pipe)
	changes := openflowconn.Diff(openflowconn.Rules{Flows: before}, openflowconn.Rules{Flows: after})
	// Without a change too: what ovs-vswitchd answers after the port is there, it answers when
	// the datapath takes from it.
	if early.bundle, err = a.conn.Prepare(ctx, changes); err != nil {
		a.log.Debug("flows come after their ports", "err", err)
		return nil
	}
	if !changes.Empty() {
		early.told = tellFlows(changes.Flows) + withPortsNote
	}
	return early
}

// realise waits until the ports of a submission are there, and commits the flows that were
// handed over ahead. Without them, or if anything is not as it was when they were made, it
// waits for ovs-vswitchd to take up the database, and flows come after.
func (a *application) realise(ctx context.Context, early *ahead, s switchdb.Submission) (switchdb.Report, error) {
	if early == nil {
		return s.Wait(ctx)
	}
	if s.Otherwise || len(s.Report.Failed) > 0 || !slices.Equal(s.Added, slices.Sorted(maps.Keys(early.added))) {
		early.discard(ctx)
		return s.Wait(ctx)
	}
	type taken struct {
		report switchdb.Report
		err    error
	}
	waiting, cancel := context.WithCancel(ctx)
	announced, realised := make(chan error, 1), make(chan taken, 1)
	go func() { announced <- a.conn.AwaitPorts(waiting, early.added) }()
	go func() {
		report, err := s.Wait(waiting)
		realised <- taken{report, err}
	}()
	var err error
	var r taken
	select {
	case err = <-announced:
		if err == nil {
			err = a.commitAhead(ctx, early)
		}
		if err == nil {
			cancel()
		}
		r = <-realised
	case r = <-realised:
		cancel()
		<-announced
		err = errors.New("the ports have other numbers")
		if r.err == nil && maps.Equal(early.numbers, numbersOf(r.report)) {
			err = a.commitAhead(ctx, early)
		}
	}
	cancel()
	if err != nil {
		early.discard(ctx)
		a.log.Debug("flows come after their ports", "err", err)
		return r.report, r.err
	}
	r.report = s.Report
	r.report.Ports = map[string]uint32{}
	for name, n := range early.numbers {
		r.report.Ports[name] = uint32(n)
	}
	return r.report, nil
}

// discard gives the flows up.
func (e *ahead) discard(ctx context.Context) {
	if e != nil {
		e.bundle.Discard(ctx)
	}
}

// commitAhead makes the flows hold.
func (a *application) commitAhead(ctx context.Context, early *ahead) error {
	if err := early.bundle.Commit(ctx); err != nil {
		a.flows.known = false
		return fmt.Errorf("commit the flows of new ports: %w", err)
	}
	early.committed = true
	if early.told != "" {
		a.report.Changes = append(a.report.Changes, early.told)
	}
	a.flows.pipe, a.flows.numbers = early.next, early.numbers
	for _, p := range early.next.Problems {
		a.fail(apply.ObjectError{Ref: p.Ref, Err: errors.New(p.Text)})
	}
	return nil
}

func numbersOf(r switchdb.Report) ovs.Numbers {
	out := ovs.Numbers{}
	for name, n := range r.Ports {
		out[name] = of.Port(n)
	}
	return out
}

// renumbered says which port has another number than the flows name. Its packets are dropped
// or go astray until the next Apply.
func (p *Plane) renumbered(known map[string]switchdb.Numbered) string {
	for _, name := range slices.Sorted(maps.Keys(p.flows.numbers)) {
		if n := known[name].OFPort; n != 0 && of.Port(n) != p.flows.numbers[name] {
			return fmt.Sprintf("port %s has the number %d, its flows name %d", name, n, p.flows.numbers[name])
		}
	}
	return ""
}
