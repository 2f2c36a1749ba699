package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// table is the Table of a fresh namespace.
func table(t testing.TB) (*Table, *netns.NS) {
	t.Helper()
	ns := netnstest.New(t)
	c, err := Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, ns
}

// udp is a flow without translation.
func udp(src, dst string, sport uint16, mark uint32) Flow {
	from, to := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	return Flow{
		Src: from, Dst: to, SrcPort: sport, DstPort: 53, Protocol: packet.UDP, ReplySrc: to, ReplySrcPort: 53, ReplyDst: from, Mark: mark,
	}
}

func appendTuple(b []byte, typ uint16, t tuple) []byte {
	src, dst := uint16(ctIPv4Src), uint16(ctIPv4Dst)
	if t.src.Is6() {
		src, dst = ctIPv6Src, ctIPv6Dst
	}
	ip := appendAttr(appendAttr(nil, src, t.src.AsSlice()), dst, t.dst.AsSlice())
	proto := appendAttr(nil, ctProtoNum, []byte{byte(t.protocol)})
	proto = appendAttr(proto, ctProtoSrcPort, binary.BigEndian.AppendUint16(nil, t.srcPort))
	proto = appendAttr(proto, ctProtoDstPort, binary.BigEndian.AppendUint16(nil, t.dstPort))
	return appendAttr(b, typ|attrNested, appendAttr(appendAttr(nil, ctTupleIP|attrNested, ip), ctTupleProto|attrNested, proto))
}

// create makes entries.
func (t *Table) create(tb testing.TB, flows ...Flow) {
	tb.Helper()
	const ctTimeout = 7
	for _, f := range flows {
		t.write.seq++
		err := t.write.send(appendMessage(nil, unix.NFNL_SUBSYS_CTNETLINK<<8|msgNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, t.write.seq, familyOf(f.Src), func(b []byte) []byte {
			b = appendTuple(b, ctTupleOrig, tuple{f.Src, f.Dst, f.Protocol, f.SrcPort, f.DstPort})
			b = appendTuple(b, ctTupleReply, tuple{f.ReplySrc, f.ReplyDst, f.Protocol, f.ReplySrcPort, f.SrcPort})
			b = appendUint32(b, ctTimeout, 1000)
			b = appendUint32(b, ctMark, f.Mark)
			return appendAttr(b, ctZone, binary.BigEndian.AppendUint16(nil, f.Zone))
		}))
		if err == nil {
			err = t.write.receive(func(m message) {
				if code := errorCode(m); code != 0 {
					tb.Skipf("this kernel takes no conntrack entries: %v", code)
				}
			})
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

func (t *Table) all(tb testing.TB, q Query) []Flow {
	tb.Helper()
	var out []Flow
	_, err := t.Walk(tb.Context(), []Query{q}, func(f Flow) Decision {
		out = append(out, f)
		return Decision{}
	})
	if err != nil {
		tb.Fatal(err)
	}
	slices.SortFunc(out, func(a, b Flow) int { return int(a.SrcPort) - int(b.SrcPort) })
	return out
}

var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func example() []Flow {
	natted := udp("10.0.0.3", "10.96.0.10", 3, 0x6)
	natted.ReplySrc, natted.ReplySrcPort, natted.ReplyDst = netip.MustParseAddr("10.0.0.9"), 5353, netip.MustParseAddr("192.0.2.1")
	zoned := udp("10.0.0.1", "10.0.0.2", 4, 0x8000_0000)
	zoned.Zone = 7
	return []Flow{udp("10.0.0.1", "10.0.0.2", 1, 0), udp("fd00::1", "fd00::2", 2, 0x4), natted, zoned}
}

func TestWalk(t *testing.T) {
	c, _ := table(t)
	want := example()
	c.create(t, want...)
	if diff := cmp.Diff(want, c.all(t, Query{}), compareAddr); diff != "" {
		t.Fatalf("entries (-want +got):\n%s", diff)
	}
	r, err := c.Walk(t.Context(), []Query{{}}, func(f Flow) Decision {
		switch f.SrcPort {
		case 1, 2:
			return Decision{Mark: 0xff01, Mask: 0x1} // bits outside of the mask are not ours
		case 4:
			return Decision{Mark: 0x2, Mask: 0x3}
		}
		return Decision{}
	})
	if want := (Result{Seen: 4, Changed: 3}); err != nil || r != want {
		t.Errorf("walk: %+v, %v; want %+v", r, err, want)
	}
	want[0].Mark, want[1].Mark, want[3].Mark = 0x1, 0x5, 0x8000_0002
	if diff := cmp.Diff(want, c.all(t, Query{}), compareAddr); diff != "" {
		t.Errorf("after marks (-want +got):\n%s", diff)
	}
	if _, err = c.Walk(t.Context(), []Query{{}}, func(f Flow) Decision { return Decision{Delete: f.SrcPort != 4} }); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want[3:], c.all(t, Query{}), compareAddr); diff != "" {
		t.Errorf("after deletes (-want +got):\n%s", diff)
	}
}

// The kernel leaves out what is not asked for.
func TestWalkAsksForLess(t *testing.T) {
	c, _ := table(t)
	flows := example()
	c.create(t, flows...)
	for _, tc := range []struct {
		name string
		q    Query
		want []Flow
	}{
		{"source of the first packet, in every zone", Query{End: flows[0].Src}, []Flow{flows[0], flows[3]}},
		{"source of answers", Query{End: flows[2].ReplySrc}, flows[2:3]},
		{"IPv6", Query{End: flows[1].ReplySrc}, flows[1:2]},
		{"a Service's address is no end", Query{End: flows[2].Dst}, nil},
		{"mark", Query{Mark: 0x4, Mask: 0x5}, flows[1:3]},
		{"no bit of a mask", Query{Mask: 0x4}, []Flow{flows[0], flows[3]}},
		{"end and mark", Query{End: flows[0].Src, Mark: 0x8000_0000, Mask: 0x8000_0000}, flows[3:]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []Flow
			for _, reply := range []bool{false, true} {
				f := filter{addr: tc.q.End, reply: reply, mark: tc.q.Mark, mask: tc.q.Mask}
				if reply && !tc.q.End.IsValid() {
					continue
				}
				if err := c.read.dump(t.Context(), f, func(b []byte) {
					e, _ := parse(b)
					got = append(got, e.Flow)
				}); err != nil {
					t.Fatal(err)
				}
			}
			slices.SortFunc(got, func(a, b Flow) int { return int(a.SrcPort) - int(b.SrcPort) })
			if diff := cmp.Diff(tc.want, got, compareAddr); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
		})
	}
	// So few entries come at once.
	if diff := cmp.Diff(flows, c.all(t, Query{End: flows[0].Src}), compareAddr); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

// What ends between reading and changing is no error.
func TestWalkEntryGone(t *testing.T) {
	c, ns := table(t)
	c.create(t, example()...)
	other, err := Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	deleted := false
	r, err := c.Walk(t.Context(), []Query{{}}, func(f Flow) Decision {
		if !deleted {
			deleted = true
			if r, err := other.Walk(t.Context(), []Query{{}}, func(Flow) Decision { return Decision{Delete: true} }); err != nil || r.Changed != 4 {
				t.Errorf("deleted %+v, %v", r, err)
			}
		}
		return Decision{Mark: 1, Mask: 1, Delete: f.SrcPort == 3}
	})
	if err != nil || r.Gone != r.Seen || r.Changed != 0 || r.Seen == 0 {
		t.Errorf("walk: %+v, %v; want all seen entries gone and no error", r, err)
	}
}

func TestWalkRefused(t *testing.T) {
	c, _ := table(t)
	many := make([]Flow, 3*batchSize)
	for i := range many {
		many[i] = udp("10.0.0.1", "10.0.0.2", uint16(i+1), 0)
	}
	c.create(t, many...)
	w := writer{socket: c.write, result: &Result{}}
	if err := c.read.dump(t.Context(), filter{}, func(b []byte) {
		e, ok := parse(b)
		if !ok {
			t.Errorf("cannot parse %x", b)
		}
		if e.SrcPort%2 == 0 {
			e.tuple = e.tuple[:len(e.tuple)/2]
		}
		w.add(e, Decision{Mark: 1, Mask: 1})
	}); err != nil {
		t.Fatal(err)
	}
	w.flush()
	if err := w.err(); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ERANGE) || w.failed != len(many)/2 || w.result.Changed != len(many)/2 {
		t.Errorf("%d failed, %d changed, %v; want half of %d each", w.failed, w.result.Changed, err, len(many))
	}
	if got := len(c.all(t, Query{Mark: 1, Mask: 1})); got != len(many)/2 {
		t.Errorf("%d entries are changed, want %d", got, len(many)/2)
	}
}

func TestWalkCancelled(t *testing.T) {
	c, _ := table(t)
	many := make([]Flow, 1000)
	for i := range many {
		many[i] = udp("10.0.0.1", "10.0.0.2", uint16(i+1), 0)
	}
	c.create(t, many...)
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	_, err := c.Walk(ctx, []Query{{}}, func(Flow) Decision {
		asked++
		cancel()
		return Decision{}
	})
	if !errors.Is(err, context.Canceled) || asked != 1 {
		t.Errorf("asked %d times, %v; want once and %v", asked, err, context.Canceled)
	}
	if got := len(c.all(t, Query{})); got != len(many) {
		t.Errorf("the next walk sees %d entries, want %d", got, len(many))
	}
}

func appendState(b []byte, state byte) []byte {
	return appendAttr(b, ctProtoInfo|attrNested, appendAttr(nil, ctProtoInfoTCP|attrNested, appendAttr(nil, ctTCPState, []byte{state})))
}

// A connection has ended once both ends have closed it, or one has and nothing came of the
// other; where one still sends, and where the protocol says nothing, it has not.
func TestParseEnded(t *testing.T) {
	var whole []byte
	whole = appendTuple(whole, ctTupleOrig, tuple{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), packet.TCP, 1, 2})
	whole = appendTuple(whole, ctTupleReply, tuple{netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::1"), packet.TCP, 2, 1})
	for name, tt := range map[string]struct {
		info []byte
		want bool
	}{
		"nothing":     {nil, false},
		"SYN_SENT":    {appendState(nil, 1), false},
		"ESTABLISHED": {appendState(nil, 3), false},
		"FIN_WAIT":    {appendState(nil, 4), true},
		"CLOSE_WAIT":  {appendState(nil, 5), false},
		"LAST_ACK":    {appendState(nil, 6), true},
		"TIME_WAIT":   {appendState(nil, 7), true},
		"CLOSE":       {appendState(nil, 8), true},
		"SYN_SENT2":   {appendState(nil, 9), false},
		"SCTP":        {appendAttr(nil, ctProtoInfo|attrNested, appendAttr(nil, 3|attrNested, appendAttr(nil, ctTCPState, []byte{8}))), false},
		"torn":        {appendAttr(nil, ctProtoInfo|attrNested, []byte{40, 0, 1, 0}), false},
	} {
		e, ok := parse(append(slices.Clone(whole), tt.info...))
		if !ok || e.Ended != tt.want {
			t.Errorf("%s: read %v, ended %v, want %v", name, ok, e.Ended, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	var seed []byte
	seed = appendTuple(seed, ctTupleOrig, tuple{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), packet.TCP, 1, 2})
	seed = appendTuple(seed, ctTupleReply, tuple{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1"), packet.TCP, 2, 1})
	f.Add(appendUint32(seed, ctMark, 5))
	f.Add(appendState(seed, 7))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, ok := parse(b)
		if ok && (!e.Src.IsValid() || !e.ReplySrc.IsValid()) {
			t.Errorf("an entry without addresses: %+v", e)
		}
		_ = messages(b, func(message) {})
	})
}

// manyFlows makes 100,000 entries.
func manyFlows(b *testing.B) *Table {
	c, _ := table(b)
	const n = 100_000
	for i := range n {
		f := udp("10.0.0.1", "10.0.0.2", uint16(i), 1<<28)
		f.Src = netip.AddrFrom4([4]byte{10, 1, byte(i >> 16), byte(i >> 4)})
		f.ReplyDst = f.Src
		c.create(b, f)
	}
	return c
}

func BenchmarkWalk(b *testing.B) {
	c := manyFlows(b)
	walk := func(b *testing.B, q Query, decide func(Flow) Decision) (r Result) {
		b.ReportAllocs()
		for b.Loop() {
			var err error
			if r, err = c.Walk(b.Context(), []Query{q}, decide); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(r.Seen), "seen")
		b.ReportMetric(float64(r.Changed), "changed")
		return r
	}
	keep := func(Flow) Decision { return Decision{} }
	b.Run("all", func(b *testing.B) { walk(b, Query{}, keep) })
	b.Run("one address", func(b *testing.B) { walk(b, Query{End: netip.MustParseAddr("10.1.0.1")}, keep) })
	b.Run("unjudged", func(b *testing.B) { walk(b, Query{Mask: 1 << 28}, keep) })
	b.Run("all, cut 1000", func(b *testing.B) {
		walk(b, Query{}, func(f Flow) Decision {
			if f.SrcPort%100 == 0 {
				return Decision{Mark: ^f.Mark & (1 << 29), Mask: 1 << 29}
			}
			return Decision{}
		})
	})
}

func BenchmarkWalkEmpty(b *testing.B) {
	c, _ := table(b)
	for b.Loop() {
		if _, err := c.Walk(b.Context(), []Query{{}}, func(Flow) Decision { return Decision{} }); err != nil {
			b.Fatal(err)
		}
	}
}

// Dumps that leave something out are worth it where there is much to leave out.
func TestPlan(t *testing.T) {
	c, _ := table(t)
	pod := []Query{{End: netip.MustParseAddr("10.0.0.1")}, {End: netip.MustParseAddr("fd00::1")}}
	for _, tc := range []struct {
		name    string
		queries []Query
		want    []filter
	}{
		{"nothing", nil, nil},
		{"one", []Query{{Mark: 1, Mask: 3}}, []filter{{mark: 1, mask: 3}}},
		{"a pod, few entries", pod, []filter{{}}},
	} {
		if diff := cmp.Diff(tc.want, c.plan(tc.queries), compareAddr, cmp.AllowUnexported(filter{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	many := make([]Flow, entriesPerPass)
	for i := range many {
		many[i] = udp("10.0.0.1", "10.0.0.2", uint16(i+1), 0)
	}
	c.create(t, many...)
	if n, err := c.read.count(); err != nil || n != len(many) {
		t.Errorf("%d entries, %v; want %d", n, err, len(many))
	}
	want := []filter{{addr: pod[0].End}, {addr: pod[0].End, reply: true}}
	if diff := cmp.Diff(want, c.plan(pod[:1]), compareAddr, cmp.AllowUnexported(filter{})); diff != "" {
		t.Errorf("an address, many entries (-want +got):\n%s", diff)
	}
	if got := len(c.all(t, pod[0])); got != len(many) {
		t.Errorf("%d entries of the address, want %d", got, len(many))
	}
	c.noFilter = true
	if diff := cmp.Diff([]filter{{}}, c.plan(pod[:1]), compareAddr, cmp.AllowUnexported(filter{})); diff != "" {
		t.Errorf("a kernel without filters (-want +got):\n%s", diff)
	}
}
