package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
	"github.com/fairlead-sdn/fairlead/lab"
)

// A check that disagrees looks again, after a rest, until it has probed for settleFor: what was
// applied a moment ago is in force on all nodes soon after, not at once. A packet that is
// dropped is waited for in every look, so it is time that is bounded and not the number of
// looks.
const (
	settleFor = 6 * time.Second
	lookAgain = 500 * time.Millisecond
)

// check waits for the pods, reads the world that the oracle judges, and probes those
// that are ready. What disagrees is asked again; what agrees then is counted as Settled.
func check(ctx context.Context, l *lab.Lab, store datastore.Store, wait time.Duration, all bool) (*lab.CheckResult, error) {
	return settle(ctx, func() (*lab.CheckResult, error) { return checkOnce(ctx, l, store, wait, all) })
}

// settle looks until all agrees, or it has not for long enough. Two looks are the least.
func settle(ctx context.Context, look func() (*lab.CheckResult, error)) (*lab.CheckResult, error) {
	began := time.Now()
	var probing time.Time
	first := 0
	for {
		r, err := look()
		if err != nil {
			return nil, err
		}
		again := !probing.IsZero()
		if !again {
			first = r.Disagreements()
			// Before it, pods were waited for.
			probing = time.Now().Add(-time.Duration(r.Seconds * float64(time.Second)))
		}
		r.Seconds = time.Since(began).Seconds()
		r.Settled = max(0, first-r.Disagreements())
		if r.Disagreements() == 0 || again && time.Since(probing) >= settleFor {
			return r, nil
		}
		rest := time.NewTimer(lookAgain)
		select {
		case <-ctx.Done():
			rest.Stop()
			return nil, ctx.Err()
		case <-rest.C:
		}
	}
}

func checkOnce(ctx context.Context, l *lab.Lab, store datastore.Store, wait time.Duration, all bool) (*lab.CheckResult, error) {
	pods, unready, err := lab.ReadyPods(ctx, store, wait)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	snap, err := readWorld(ctx, store)
	if err != nil {
		return nil, err
	}
	r, err := l.Check(ctx, pods, judge(snap), all)
	if err != nil {
		return nil, err
	}
	r.Unready = append(r.Unready, unready...)
	return r, nil
}

// readWorld lists everything once.
func readWorld(ctx context.Context, store datastore.Store) (*world.Snapshot, error) {
	var changes []world.Change
	for _, kind := range world.DatastoreKinds() {
		list, err := store.List(ctx, datastore.Kind(kind))
		if err != nil {
			return nil, err
		}
		for _, o := range list.Items {
			value, _ := feed.Convert(kind, o)
			k := datastore.KeyOf(o)
			changes = append(changes, world.Change{Kind: kind, Key: world.Key{Namespace: k.Namespace, Name: k.Name}, Object: value})
		}
		changes = append(changes, world.Change{Kind: kind, ResourceVersion: list.ResourceVersion, Synced: true})
	}
	return world.NewStore(nil).Apply(changes...), nil
}

// judge asks the oracle about what the lab probes.
func judge(snap *world.Snapshot) lab.Judge {
	m := oracle.Read(snap)
	return func(p lab.Probe) (expected bool, why string, known bool) {
		proto, err := packet.ParseProtocol(p.Protocol)
		if err != nil {
			return false, "", false
		}
		from, fromPod := podKey(p.From)
		to, toPod := podKey(p.To)
		if fromPod && toPod {
			v := m.JudgeProbe(from, to, proto, p.Port, familyOf(p.Target))
			return v.Allowed, v.Why(), true
		}
		// Beyond pairs of pods: from a node, or to the outside.
		place := oracle.Place{Kind: oracle.Node, Node: strings.TrimPrefix(p.From, "node/")}
		if fromPod {
			pod, ok := snap.Pods.Get(from)
			if !ok {
				return false, "", false
			}
			place = oracle.Place{Kind: oracle.Pod, Node: pod.Node, Pod: from}
			if pod.HostNetwork {
				place = oracle.Place{Kind: oracle.Node, Node: pod.Node}
			}
		}
		v := m.Judge(nil, oracle.Probe{From: place, Packet: packet.Packet{
			Src: p.Source, Dst: p.Target, Protocol: proto, SrcPort: 49152, DstPort: p.Port, SYN: proto == packet.TCP,
		}})
		// The outside host knows no way back to pods: whether it answers one that keeps
		// its own address is up to the network around a cluster, not to the cluster.
		known = !fromPod || !v.Allowed || place.Kind != oracle.Pod || masqueraded(v, p.Source)
		return v.Allowed, v.Why(), known
	}
}

// masqueraded tells whether a delivered packet arrives with another source than from.
func masqueraded(v oracle.Verdict, from netip.Addr) bool {
	return slices.ContainsFunc(v.Outcomes, func(o oracle.Outcome) bool { return !o.Dropped && o.Packet.Src != from })
}

// podKey reads NAMESPACE/NAME; node/NAME and outside are no pods.
func podKey(s string) (world.Key, bool) {
	ns, name, found := strings.Cut(s, "/")
	if !found || ns == "node" {
		return world.Key{}, false
	}
	return world.Key{Namespace: ns, Name: name}, true
}

func familyOf(a netip.Addr) oracle.Family {
	if a.Is4() {
		return oracle.IPv4
	}
	return oracle.IPv6
}

func (a *app) printCheck(format *outputFormat, r *lab.CheckResult, all bool) error {
	if !format.forPeople() {
		return a.print(format, r, nil)
	}
	if all {
		if err := matrix(r).write(a.out); err != nil {
			return err
		}
		fmt.Fprintln(a.out)
	}
	const line = "DISAGREE  %s → %s %d/%s: expected %s, got %s: %s"
	for _, d := range r.Disagree {
		if err := a.say(line, d.From, d.To, d.Port, d.Proto, verdict(d.Expected), verdict(d.Got), d.Why); err != nil {
			return err
		}
	}
	for _, u := range r.Unready {
		if err := a.say("UNREADY  %s", u); err != nil {
			return err
		}
	}
	beyond := 0
	for _, o := range r.Extra {
		if o.Expected == nil || *o.Expected == o.Got {
			continue
		}
		beyond++
		if err := a.say(line, o.From, o.To, o.Port, o.Proto, verdict(*o.Expected), verdict(o.Got), o.Why); err != nil {
			return err
		}
	}
	if len(r.Disagree)+beyond > 0 {
		if err := a.say("next: fairlead audit (what kernels hold and should not), fairlead trace FROM TO:PORT/PROTO (where a packet ends)"); err != nil {
			return err
		}
	}
	sum := fmt.Sprintf("%s, %s with the oracle, %s", count(r.Probes, "probe", "probes"), count(r.Agree, "agrees", "agree"), count(len(r.Disagree), "disagrees", "disagree"))
	if beyond > 0 {
		sum += fmt.Sprintf(", and %d with nodes and the outside", beyond)
	}
	if r.Settled > 0 {
		sum += fmt.Sprintf("; %d only when asked again", r.Settled)
	}
	if n := len(r.Unready); n > 0 {
		sum += fmt.Sprintf("; %d not ready and not probed", n)
	}
	return a.say("%s (%.1f s)", sum, r.Seconds)
}

func verdict(allowed bool) string {
	if allowed {
		return "reached"
	}
	return "cut"
}

// matrix shows who reaches whom: one row per source, one column per target.
func matrix(r *lab.CheckResult) *table {
	var names []string
	type pair struct{ from, to string }
	cells := map[pair]string{}
	for _, f := range r.Results {
		names = append(names, f.From, f.To)
		mark := "."
		switch {
		case f.Got != f.Expected:
			mark = "!"
		case !f.Got:
			mark = "x"
		}
		k := pair{f.From, f.To}
		if old, ok := cells[k]; !ok || old == "." || mark == "!" {
			cells[k] = mark
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	t := &table{header: []string{"FROM \\ TO"}}
	for i := range names {
		t.header = append(t.header, fmt.Sprint(i+1))
	}
	for i, from := range names {
		row := []string{fmt.Sprintf("%d %s", i+1, from)}
		for _, to := range names {
			mark, ok := cells[pair{from, to}]
			if !ok {
				mark = "-"
			}
			row = append(row, mark)
		}
		t.add(row...)
	}
	t.add(". reached   x cut, as it should   ! disagrees with the oracle   - itself or no port")
	return t
}
