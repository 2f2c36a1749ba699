package openflow

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var compare = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func TestFlowRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawFlow(t)
		if err := want.Validate(); err != nil {
			t.Fatalf("drew a flow that is not valid: %v", err)
		}
		got, err := ParseFlow(want.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, compare); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want, diff)
		}
		if !want.Equal(got) || Compare(want, got) != 0 || want.Key() != got.Key() {
			t.Errorf("%s is not equal to itself", want)
		}
	})
}

func FuzzParse(f *testing.F) {
	for i := range 50 {
		f.Add(rapid.Custom(drawFlow).Example(i).String())
	}
	f.Add("group_id=1,type=select,selection_method=hash,fields(ip_src,tcp_dst),bucket=bucket_id:0,weight:2,actions=output:1")
	f.Add("meter=1 pktps burst bands=\ntype=drop rate=1000 burst_size=5")
	f.Fuzz(func(t *testing.T, s string) {
		if flow, err := ParseFlow(s); err == nil {
			again, err := ParseFlow(flow.String())
			if err != nil {
				t.Fatalf("%q prints as %q: %v", s, flow, err)
			}
			if flow.String() != again.String() {
				t.Errorf("%q prints as %q, and that as %q", s, flow, again)
			}
			AppendFlowMod(nil, 1, FlowMod{Flow: flow})
			_ = flow.Validate()
		}
		if g, err := ParseGroup(s); err == nil {
			AppendGroupMod(nil, 1, GroupAdd, g)
			_ = g.Validate()
			_ = g.String()
		}
		if m, err := ParseMeter(s); err == nil {
			_ = m.Validate()
			_ = m.String()
		}
		_, _ = ParseFlows(strings.ReplaceAll(s, ";", "\n"))
	})
}
