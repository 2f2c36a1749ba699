package bpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

var bothPrograms = []string{"attach program wire_in", "attach program wire_out"}

// attach wants no error and these changes, and the programs to be there then.
func (h *host) attach(index int, want []string) {
	h.t.Helper()
	h.do(func() {
		changes, err := h.wire.Attach(index)
		check("attach", err)
		if diff := cmp.Diff(want, changes); diff != "" {
			h.t.Errorf("attach (-want +got):\n%s", diff)
		}
		if on, err := h.wire.Attached(index); !on || err != nil {
			h.t.Errorf("attached: %t, %v", on, err)
		}
	})
}

func (h *host) tunnelIndex() int {
	h.t.Helper()
	l, err := h.nl.LinkByName(claims.VXLANDevice)
	h.must("find tunnel device", err)
	return l.Attrs().Index
}

func TestAttachToADeviceMadeAnew(t *testing.T) {
	a, b := pair(t, "192.0.2.1/24", "192.0.2.2/24")
	l, err := a.nl.LinkByName(claims.VXLANDevice)
	a.must("find tunnel device", err)
	a.must("delete tunnel device", a.nl.LinkDel(l))
	index := a.tunnel("10.1.0.1/8", "fd10:1::1/16")
	a.attach(index, bothPrograms)
	a.attach(index, nil)
	expect(t, a, b, vpc, "10.1.0.1", "10.2.0.1", true)
}

// A program keeps the maps that it was loaded with: one whose maps lost their pins
// is replaced, although its instructions are ours.
func TestAttachAfterMapsWereMadeAnew(t *testing.T) {
	a, _ := pair(t, "192.0.2.1/24", "192.0.2.2/24")
	index := a.tunnelIndex()
	a.do(func() {
		check("close", a.wire.Close())
		for _, name := range []string{"fl_places", "fl_vnis", "fl_drops"} {
			check("remove pin", os.Remove(filepath.Join(a.wire.dir, name)))
		}
		var err error
		a.wire, err = Open(Config{Dir: a.dir + "/fairlead"})
		check("open again", err)
		if on, err := a.wire.Attached(index); on || err != nil {
			t.Errorf("programs with other maps count as attached: %t, %v", on, err)
		}
	})
	a.attach(index, bothPrograms)
}

func TestOtherLayoutsAreRemoved(t *testing.T) {
	h := newHost(t, "a")
	index := h.tunnel()
	other := h.dir + "/fairlead/" + layoutPrefix + "0"
	h.do(func() {
		var err error
		h.wire, err = Open(Config{Dir: h.dir + "/fairlead"})
		check("open", err)
		check("make another layout", os.Mkdir(other, 0o700))
	})
	h.attach(index, bothPrograms)
	h.do(func() {
		if _, err := os.Stat(other); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("another layout is still there: %v", err)
		}
	})
}

// Kernels before 6.6 have no tcx.
func TestFilters(t *testing.T) {
	a, b := pair(t, "192.0.2.1/24", "192.0.2.2/24")
	index := b.tunnelIndex()
	b.do(func() {
		for _, p := range []struct {
			direction
			pin string
		}{{inward, "wire_in"}, {outward, "wire_out"}} {
			program := b.wire.objects.WireIn
			if p.pin == "wire_out" {
				program = b.wire.objects.WireOut
			}
			check("detach the tcx link", os.Remove(filepath.Join(b.wire.dir, p.pin)))
			if have, err := ourFilter(index, p.direction, program); have || err != nil {
				t.Errorf("%s before: a filter is there: %t, %v", p.pin, have, err)
			}
			for _, want := range []bool{true, false} {
				if did, err := attachFilter(index, p.direction, program); did != want || err != nil {
					t.Errorf("%s: attached %t, %v; want %t", p.pin, did, err, want)
				}
			}
		}
	})
	expect(t, a, b, vpc, "10.1.0.1", "10.2.0.1", true)
	expect(t, a, b, tenant, "fd10:1::1", "fd10:2::1", true)
	a.do(func() {
		// A node that lies is held by its peer's filters.
		_, err := a.wire.Apply(t.Context(), linux.Wire{VNIs: []linux.WireVNI{{VNI: alien, VPC: vpc}}}, apply.Options{AddOnly: true})
		check("forge", err)
	})
	expect(t, a, b, alien, "10.1.0.1", "10.2.0.1", false)
}

// What is removed makes room for what is added, in both maps.
func TestFullMaps(t *testing.T) {
	h := newHost(t, "a")
	h.do(func() {
		var err error
		h.wire, err = Open(Config{Dir: h.dir + "/fairlead"})
		check("open", err)
		h.wire.objects.FlVnis = smaller(h.wire.objects.FlVnis, 2)
		h.wire.objects.FlPlaces = smaller(h.wire.objects.FlPlaces, 2)
		wire := func(first int) (w linux.Wire) {
			for i := first; i < first+2; i++ {
				w.VNIs = append(w.VNIs, linux.WireVNI{VNI: packet.VNI(i), VPC: packet.VNI(i)})
				w.Entries = append(w.Entries, linux.WireEntry{
					VPC: packet.VNI(i), Prefix: netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", i)), Outer: netip.MustParseAddr("2001:db8::1"), MAC: h.mac,
				})
			}
			return w
		}
		before, after := wire(10), wire(20)
		_, err = h.wire.Apply(t.Context(), before, apply.Options{})
		check("fill the maps", err)
		if _, err := h.wire.Apply(t.Context(), after, apply.Options{AddOnly: true}); !errors.Is(err, unix.E2BIG) || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("add-only to full maps: %v; want both to refuse", err)
		}
		if diff, err := h.wire.Audit(before); err != nil || len(diff) != 0 {
			t.Errorf("after the refusal the maps differ: %v, %v", diff, err)
		}
		changes, err := h.wire.Apply(t.Context(), after, apply.Options{})
		if err != nil || len(changes) != 8 {
			t.Errorf("apply: %v, %v; want four removals and four additions", changes, err)
		}
		if diff, err := h.wire.Audit(after); err != nil || len(diff) != 0 {
			t.Errorf("audit: %v, %v", diff, err)
		}
		if again, err := h.wire.Apply(t.Context(), after, apply.Options{}); err != nil || len(again) != 0 {
			t.Errorf("the shadow is not what was written: %v, %v", again, err)
		}
	})
}

// smaller is an empty map like another, for less.
func smaller(m *ebpf.Map, entries uint32) *ebpf.Map {
	check("close", m.Close())
	out, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: m.Type(), KeySize: m.KeySize(), ValueSize: m.ValueSize(), Flags: m.Flags(), MaxEntries: entries,
	})
	check("make a smaller map", err)
	return out
}

func TestApplyHonoursItsContext(t *testing.T) {
	h := newHost(t, "a")
	h.do(func() {
		var err error
		h.wire, err = Open(Config{Dir: h.dir + "/fairlead"})
		check("open", err)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		want := linux.Wire{Entries: []linux.WireEntry{{VPC: 5, Prefix: netip.MustParsePrefix("10.0.0.0/26")}}}
		if changes, err := h.wire.Apply(ended, want, apply.Options{}); !errors.Is(err, context.Canceled) || len(changes) != 0 {
			t.Errorf("apply in a context that has ended: %v, %v", changes, err)
		}
	})
}

// The programs count by index: a reason without a name would be told as another.
func TestEveryDropHasAName(t *testing.T) {
	h := newHost(t, "a")
	h.do(func() {
		var err error
		h.wire, err = Open(Config{Dir: h.dir + "/fairlead"})
		check("open", err)
		if n := int(h.wire.objects.FlDrops.MaxEntries()); n != len(reasons) {
			t.Errorf("the programs know %d reasons, and %d have names", n, len(reasons))
		}
		if drops, err := h.wire.Drops(t.Context()); err != nil || len(drops) != len(reasons) {
			t.Errorf("drops: %v, %v; want %d reasons", drops, err, len(reasons))
		}
	})
}
