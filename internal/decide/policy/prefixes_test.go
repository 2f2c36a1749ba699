package policy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// TestEdit compares edited lists with lists made anew.
func TestEdit(t *testing.T) {
	addr := rapid.Custom(func(t *rapid.T) netip.Addr {
		low := byte(rapid.IntRange(0, 40).Draw(t, "low"))
		switch rapid.IntRange(0, 4).Draw(t, "family") {
		case 0:
			return netip.AddrFrom16([16]byte{0: 0xfd, 15: low})
		case 1: // The ends of the space.
			return netip.AddrFrom4([4]byte{255, 255, 255, 255 - low})
		case 2:
			return netip.AddrFrom4([4]byte{0, 0, 0, low})
		}
		return netip.AddrFrom4([4]byte{10, 0, 0, 100 + low})
	})
	addrs := rapid.SliceOfN(addr, 0, 60)
	rapid.Check(t, func(t *rapid.T) {
		has := map[netip.Addr]bool{}
		var got []netip.Prefix
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			gone, come := addrs.Draw(t, "gone"), addrs.Draw(t, "come")
			for _, a := range gone {
				delete(has, a)
			}
			for _, a := range come {
				has[a] = true
			}
			before := slices.Clone(got)
			next := Edit(got, gone, come)
			if !slices.Equal(before, got) {
				t.Fatal("edit changed its argument")
			}
			got = next
			var all []netip.Addr
			for a := range has {
				all = append(all, a)
			}
			slices.SortFunc(all, netip.Addr.Compare)
			want := prefixesOf(all)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
			if merged := minus(want, nil); !slices.Equal(merged, want) {
				t.Fatalf("not canonical: %v, want %v", want, merged)
			}
		}
	})
}
