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
			var all gathered
			var single []netip.Prefix
			for a := range has {
				all.add(a)
				single = append(single, netip.PrefixFrom(a, a.BitLen()))
			}
			want := finish(builder(single))
			if diff := cmp.Diff(want, all.prefixes(), cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Fatalf("gathered (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
		}
	})
}

// TestMinus compares with netipx.
func TestMinus(t *testing.T) {
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		if rapid.IntRange(0, 3).Draw(t, "family") == 0 {
			a := netip.AddrFrom16([16]byte{0: 0xfd, 15: rapid.Byte().Draw(t, "low")})
			return netip.PrefixFrom(a, rapid.IntRange(120, 128).Draw(t, "bits")).Masked()
		}
		a := netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "low")})
		return netip.PrefixFrom(a, rapid.IntRange(24, 32).Draw(t, "bits")).Masked()
	})
	prefixes := rapid.SliceOfN(prefix, 0, 8)
	rapid.Check(t, func(t *rapid.T) {
		all, except := finish(builder(prefixes.Draw(t, "all"))), prefixes.Draw(t, "except")
		b := builder(all)
		for _, p := range except {
			b.RemovePrefix(p)
		}
		want, got := finish(b), minus(all, except)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Fatalf("%v minus %v (-want +got):\n%s", all, except, diff)
		}
	})
}

// TestSortNumbers compares with the standard library, on both sides of where bytes are
// sorted by.
func TestSortNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mask := rapid.SampledFrom([]uint64{0xff, 0xffff, 0xff00ff, ^uint64(0)}).Draw(t, "mask")
		rng := rapid.Uint64().Draw(t, "seed")
		list := make([]uint64, rapid.IntRange(0, 400).Draw(t, "n"))
		for i := range list {
			rng = rng*6364136223846793005 + 1442695040888963407
			list[i] = rng>>7&mask | 0xa00000000000000a
		}
		want := slices.Sorted(slices.Values(list))
		if got, _ := sortNumbers(list, nil); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}
