package openflow

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// appendFlowDescReply is what a switch answers, for tests without one.
func appendFlowDescReply(b []byte, flows []Flow) []byte {
	b, start := begin(b, TypeMultipartReply, 5)
	b = be64(b, multipartFlowDesc<<48)
	for _, f := range flows {
		entry := len(b)
		b = be32(b, 0)
		b = append(b, f.Table, 0)
		b = be16(b, f.Priority)
		b = be16(b, f.IdleTimeout)
		b = be16(b, f.HardTimeout)
		b = be32(b, 0)
		b = be64(b, f.Cookie)
		b = appendMatch(b, f.Match)
		stats := len(b)
		b = be16(b, 0)
		b = be16(b, 4+12+12)
		b = be32(b, classBasic<<16|2<<1<<8) // not a number that we read
		b = be32(b, (classPacketRegs+1)<<16|statDuration<<1<<8|8)
		b = be64(b, 3<<32|4)
		b = be32(b, (classPacketRegs+1)<<16|statPackets<<1<<8|8)
		b = be64(b, 99)
		binary.BigEndian.PutUint16(b[stats+2:], uint16(len(b)-stats))
		b = pad8(b, stats)
		b = appendInstructions(b, f.Actions)
		binary.BigEndian.PutUint16(b[entry:], uint16(len(b)-entry))
	}
	return finish(b, start)
}

func TestFlowDescRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(drawFlow), 0, 4).Draw(t, "flows")
		m, err := Decode(appendFlowDescReply(nil, want))
		if err != nil {
			t.Fatal(err)
		}
		var got []Flow
		for _, d := range m.Body.(FlowDescReply).Flows {
			if d.Err != nil {
				t.Fatal(d.Err)
			}
			if d.Age != 3*time.Second+4 || d.Packets != 99 {
				t.Errorf("age %v and %d packets, want 3.000000004s and 99", d.Age, d.Packets)
			}
			got = append(got, d.Flow)
		}
		if diff := cmp.Diff(want, got, compare); diff != "" {
			t.Errorf("flows (-want +got):\n%s", diff)
		}
	})
}

// TestDrawnFlowsCover makes sure that the properties are about every field and
// every action.
func TestDrawnFlowsCover(t *testing.T) {
	matched, set := map[Field]bool{}, map[Field]bool{}
	texts := &strings.Builder{}
	for seed := range 6000 {
		f := rapid.Custom(drawFlow).Example(seed)
		for _, term := range f.Match {
			matched[term.Field] = true
		}
		for _, a := range f.Actions {
			if s, ok := a.(SetField); ok {
				set[s.Field] = true
			}
		}
		texts.WriteString(FormatActions(f.Actions) + "\n")
	}
	for f := fieldNone + 1; f < fieldEnd; f++ {
		if !matched[f] && f.Parts() == nil && fieldTable[f].need != needAction {
			t.Errorf("no flow matches %s", f)
		}
		if !set[f] && f.Writable() && f != CTMark && f != CTLabel {
			t.Errorf("no flow sets %s", f)
		}
	}
	for _, name := range []string{
		"output:1", "LOCAL", "output:NXM", "move:", "goto_table:", "resubmit(,", "resubmit:", ",ct)", "ct(commit",
		"force", "zone=NXM", "nat,", "nat(src=", "nat(dst)", "]:", "random", "hash", "persistent", "exec(", "alg=ftp", "ct_clear",
		"conjunction(", "clone(", "dec_ttl", "group:", "meter:", "note:", "check_pkt_larger(", "learn(", "limit=",
	} {
		if !strings.Contains(texts.String(), name) {
			t.Errorf("no flow has %q", name)
		}
	}
}

func TestHash(t *testing.T) {
	var flows []Flow
	for seed := range 50 {
		flows = append(flows, rapid.Custom(drawFlow).Example(seed))
	}
	want := Hash(flows)
	shuffled := slices.Clone(flows)
	slices.Reverse(shuffled)
	shuffled[0].Comment = "other"
	if got := Hash(shuffled); got != want {
		t.Error("order and comments change the hash")
	}
	if cmp.Diff(flows[0], rapid.Custom(drawFlow).Example(0), compare) != "" {
		t.Error("Hash changed its argument")
	}
	shuffled[7].Priority++
	if Hash(shuffled) == want {
		t.Error("a priority does not change the hash")
	}
	if Hash(nil) != Hash([]Flow{}) || Hash(nil) == Hash([]Flow{{}}) {
		t.Error("the hash of nothing")
	}
}

func FuzzDecode(f *testing.F) {
	for i := range 30 {
		flow := rapid.Custom(drawFlow).Example(i)
		f.Add(appendFlowDescReply(nil, []Flow{flow}))
		mod := AppendFlowMod(nil, 7, FlowMod{Flow: flow})
		b, start := begin(nil, TypeError, 7)
		f.Add(finish(append(be32(b, 2<<16|5), mod...), start))
	}
	f.Add(AppendHello(nil, 1))
	f.Add(AppendEchoRequest(nil, 1, []byte("x")))
	f.Add(AppendBundleControl(nil, 1, 2, BundleCommitted, BundleAtomic))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		m, err := Decode(b)
		if !slices.Equal(before, b) {
			t.Fatal("Decode changed its argument")
		}
		if err != nil {
			return
		}
		switch body := m.Body.(type) {
		case FlowDescReply:
			for _, d := range body.Flows {
				_ = d.Flow.Validate()
				if d.Err != nil || d.Flow.Match.Validate() != nil {
					continue // names may be ambiguous
				}
				again, err := ParseFlow(d.Flow.String())
				if err == nil && again.String() != d.Flow.String() {
					t.Errorf("%s is read as %s", d.Flow, again)
				}
				AppendFlowMod(nil, 1, FlowMod{Flow: d.Flow})
			}
		case GroupDescReply:
			for _, d := range body.Groups {
				_ = d.Group.String()
				_ = d.Group.Validate()
			}
		case Error:
			_ = body.Error()
			if f, ok := body.FailedFlow(); ok {
				_ = f.String()
			}
		case nil:
			t.Error("no body and no error")
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing":       {},
		"half a header": {6, 0, 0},
		"short length":  {6, 0, 0, 4, 0, 0, 0, 1},
		"other length":  {6, 0, 0, 9, 0, 0, 0, 1},
		"other version": {4, 3, 0, 8, 0, 0, 0, 1},
		"cut features":  {6, 6, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0},
	} {
		if m, err := Decode(b); err == nil {
			t.Errorf("%s: got %+v, want an error", name, m)
		}
	}
	// A deep nest of clones ends as an action that is not known.
	var deep []Action
	for range 40 {
		deep = []Action{Clone{deep}}
	}
	m, err := Decode(appendFlowDescReply(nil, []Flow{{Actions: deep}}))
	if err != nil {
		t.Fatal(err)
	}
	if d := m.Body.(FlowDescReply).Flows[0]; !strings.Contains(d.Flow.String(), "unknown:") {
		t.Errorf("got %s, want an action that is not known", d.Flow)
	}
}

func TestErrorNamesFlow(t *testing.T) {
	want := Flow{
		Table: 3, Priority: 7, Cookie: 0xfa1e,
		Match:   NewMatch(Eq(EthType, EthTypeIPv4), Eq(Reg1, 5)),
		Actions: []Action{Output{4}},
	}
	mod := AppendBundleAdd(nil, 9, 1, BundleAtomic, func(b []byte, xid uint32) []byte {
		return AppendFlowMod(b, xid, FlowMod{Flow: want})
	})
	b, start := begin(nil, TypeError, 9)
	m, err := Decode(finish(append(be32(b, 2<<16|4), mod...), start))
	if err != nil {
		t.Fatal(err)
	}
	e := m.Body.(Error)
	if e.Name() != "OFPBAC_BAD_OUT_PORT" || m.Header.XID != 9 {
		t.Errorf("got %q of xid %d, want OFPBAC_BAD_OUT_PORT of 9", e.Name(), m.Header.XID)
	}
	want.Actions = nil
	got, ok := e.FailedFlow()
	if diff := cmp.Diff(want, got, compare); !ok || diff != "" {
		t.Errorf("flow (-want +got):\n%s", diff)
	}
	if _, ok := (Error{}).FailedFlow(); ok {
		t.Error("an error without a message names a flow")
	}
}
