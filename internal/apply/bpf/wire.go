package bpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// The header path is that of Debian on amd64; elsewhere clang finds asm/types.h
// by itself.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel,bpfeb -cflags "-O2 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu" wire c/wire.c

// layout is the version of the maps' keys and values. A change of either in
// wire.c bumps it, so that an upgraded agent never reads the maps of another; but for
// padding that gets a meaning by which zero says what was so before.
const (
	layoutPrefix = "wire-v"
	layout       = layoutPrefix + "4"
)

// Config of a Wire.
type Config struct {
	// Dir is where pins live: below a mounted BPF file system, usually
	// claims.BPFPinDir.
	Dir string
	// FlowCache puts the programs on ports that the flow cache learns by. It is off
	// until Cache is called, too.
	FlowCache bool
}

// Wire is the loaded programs with their maps. It is not safe for concurrent use.
type Wire struct {
	dir     string
	cache   bool
	objects wireObjects
	// filters says that the kernel has no tcx.
	filters bool
	// retired says that programs of other layouts were looked for.
	retired bool
	// places and vnis are what the maps hold, as far as we know.
	places map[wirePlaceKey]wirePlace
	vnis   map[packet.VNI]packet.VNI
	ports  map[uint32]wirePort
	slots  [portSlots]wirePort
	// flows is what the programs know about the flow cache.
	flows wireFlowConfig
	// life is how long they remember a flow, in jiffies.
	life uint32
}

// Open loads the programs and creates or adopts the pinned maps.
func Open(c Config) (*Wire, error) {
	w := &Wire{dir: filepath.Join(c.Dir, layout), cache: c.FlowCache}
	var err error
	if w.life, err = flowLife(); err != nil {
		return nil, err
	}
	if err := onBPFFS(c.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of BPF pins: %w", err)
	}
	spec, err := loadWire()
	if err != nil {
		return nil, fmt.Errorf("read the programs: %w", err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinByName
	}
	err = spec.LoadAndAssign(&w.objects, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: w.dir}})
	if err != nil {
		return nil, fmt.Errorf("load the tc programs (kernel 5.10 or later with CONFIG_BPF_SYSCALL is needed): %w", err)
	}
	if err := w.Refresh(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	// Whoever was here before may have been gone before it told of its last change.
	if err := w.Invalidate(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// onBPFFS tells whether dir, or the nearest parent that exists, is on a BPF file
// system.
func onBPFFS(dir string) error {
	for d := dir; ; d = filepath.Dir(d) {
		var st unix.Statfs_t
		err := unix.Statfs(d, &st)
		if errors.Is(err, unix.ENOENT) && d != filepath.Dir(d) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for the BPF file system at %s: %w", d, err)
		}
		if st.Type != unix.BPF_FS_MAGIC {
			return fmt.Errorf("%s is not on a BPF file system: mount one (mount -t bpf bpf /sys/fs/bpf)", dir)
		}
		return nil
	}
}

// Close releases the handles. Pins keep programs and maps alive.
func (w *Wire) Close() error { return w.objects.Close() }

// Uninstall removes every pin below Config.Dir, of all layouts: the maps go, and programs that
// are tcx links leave their device. Filters go with the device. Where no BPF file system is,
// nothing is pinned.
func Uninstall(dir string) error {
	if err := removePins(dir, func(string) bool { return true }); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the directory of BPF pins: %w", err)
	}
	return nil
}

// removeOthers removes the pins of other layouts: an agent of another version left
// them, and its programs, on the device beside ours, would judge by maps that nobody
// keeps any more.
func (w *Wire) removeOthers() error {
	return removePins(filepath.Dir(w.dir), func(dir string) bool { return dir != w.dir })
}

func removePins(dir string, of func(string) bool) error {
	all, err := filepath.Glob(filepath.Join(dir, layoutPrefix+"*"))
	if err != nil {
		return fmt.Errorf("look for BPF pins in %s: %w", dir, err)
	}
	for _, dir := range all {
		if !of(dir) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove BPF pins: %w", err)
		}
	}
	return nil
}

// Refresh reads the maps back into the shadow.
func (w *Wire) Refresh() error {
	places, vnis, err := w.read()
	if err != nil {
		return err
	}
	w.places, w.vnis = places, vnis
	return w.refreshPorts()
}

func (w *Wire) read() (map[wirePlaceKey]wirePlace, map[packet.VNI]packet.VNI, error) {
	places, vnis := map[wirePlaceKey]wirePlace{}, map[packet.VNI]packet.VNI{}
	var k wirePlaceKey
	var p wirePlace
	it := w.objects.FlPlaces.Iterate()
	for it.Next(&k, &p) {
		places[k] = p
	}
	if err := it.Err(); err != nil {
		return nil, nil, fmt.Errorf("read BPF map fl_places: %w", err)
	}
	var vni, vpc uint32
	it = w.objects.FlVnis.Iterate()
	for it.Next(&vni, &vpc) {
		vnis[packet.VNI(vni)] = packet.VNI(vpc)
	}
	if err := it.Err(); err != nil {
		return nil, nil, fmt.Errorf("read BPF map fl_vnis: %w", err)
	}
	return places, vnis, nil
}

// Apply makes the maps equal to want: what is added or changed first, removals
// last, so that no packet finds a gap. It returns the changes, for people.
//
// A failure does not stop the rest: what is removed may be what fills a map, so that
// additions which found it full are then tried again. Whatever happens, the shadow is
// true to what was written.
func (w *Wire) Apply(ctx context.Context, want linux.Wire, o apply.Options) ([]string, error) {
	if o.Refresh {
		if err := w.Refresh(); err != nil {
			return nil, err
		}
	}
	changes, err := w.bring(ctx, want, o)
	if len(changes) > 0 {
		err = errors.Join(err, w.Invalidate())
	}
	return changes, err
}

func (w *Wire) bring(ctx context.Context, want linux.Wire, o apply.Options) ([]string, error) {
	changes, err := w.add(ctx, want, o.AddOnly)
	if o.AddOnly || ctx.Err() != nil {
		return changes, err
	}
	removed, failed := w.remove(ctx, want)
	changes = append(changes, removed...)
	if isFull(err) {
		var added []string
		added, err = w.add(ctx, want, false)
		changes = append(changes, added...)
	}
	return changes, errors.Join(err, failed)
}

// isFull reports whether a map had no room: hash tables say E2BIG, tries ENOSPC.
func isFull(err error) bool { return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) }

// add adds what is missing and changes what differs, unless addOnly forbids that. A
// map that refuses one entry is not asked for more.
func (w *Wire) add(ctx context.Context, want linux.Wire, addOnly bool) (changes []string, err error) {
	for _, e := range want.Entries {
		if err := ctx.Err(); err != nil {
			return changes, err
		}
		k, v := encodeEntry(e)
		if have, ok := w.places[k]; ok && (have == v || addOnly) {
			continue
		}
		if failed := w.objects.FlPlaces.Update(k, v, ebpf.UpdateAny); failed != nil {
			err = fmt.Errorf("add %s to BPF map fl_places (%d entries): %w", describe(k, v), len(w.places), failed)
			break
		}
		w.places[k] = v
		changes = append(changes, "add "+describe(k, v))
	}
	for _, v := range want.VNIs {
		if have, ok := w.vnis[v.VNI]; ok && (have == v.VPC || addOnly) {
			continue
		}
		if failed := w.objects.FlVnis.Update(uint32(v.VNI), uint32(v.VPC), ebpf.UpdateAny); failed != nil {
			failed = fmt.Errorf("add VNI %d of VPC %d to BPF map fl_vnis (%d entries): %w", v.VNI, v.VPC, len(w.vnis), failed)
			return changes, errors.Join(err, failed)
		}
		w.vnis[v.VNI] = v.VPC
		changes = append(changes, fmt.Sprintf("add wire VNI %d of VPC %d", v.VNI, v.VPC))
	}
	return changes, err
}

// remove deletes what is in the shadow and not wanted.
func (w *Wire) remove(ctx context.Context, want linux.Wire) (changes []string, err error) {
	defer func() { slices.Sort(changes) }()
	places, vnis := encode(want)
	for v := range w.vnis {
		if _, ok := vnis[v]; ok {
			continue
		}
		if err := w.objects.FlVnis.Delete(uint32(v)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return changes, fmt.Errorf("remove VNI %d: %w", v, err)
		}
		delete(w.vnis, v)
		changes = append(changes, fmt.Sprintf("remove wire VNI %d", v))
	}
	for k, p := range w.places {
		if _, ok := places[k]; ok {
			continue
		}
		if err := ctx.Err(); err != nil {
			return changes, err
		}
		if err := w.objects.FlPlaces.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return changes, fmt.Errorf("remove %s: %w", describe(k, p), err)
		}
		delete(w.places, k)
		changes = append(changes, "remove "+describe(k, p))
	}
	return changes, nil
}

// Audit reads the maps and says how they differ from want. The shadow stays.
func (w *Wire) Audit(want linux.Wire) ([]apply.Difference, error) {
	places, vnis, err := w.read()
	if err != nil {
		return nil, err
	}
	var out []apply.Difference
	wantPlaces, wantVNIs := encode(want)
	for k, v := range wantPlaces {
		got, ok := places[k]
		switch {
		case !ok:
			out = append(out, apply.Difference{Subsystem: "bpf", Object: prefixOf(k), Problem: "missing", Want: describe(k, v)})
		case got != v:
			out = append(out, apply.Difference{Subsystem: "bpf", Object: prefixOf(k), Problem: "differs", Want: describe(k, v), Got: describe(k, got)})
		}
	}
	for k, v := range places {
		if _, ok := wantPlaces[k]; !ok {
			out = append(out, apply.Difference{Subsystem: "bpf", Object: prefixOf(k), Problem: "unexpected", Got: describe(k, v)})
		}
	}
	for v, vpc := range wantVNIs {
		d := apply.Difference{Subsystem: "bpf", Object: fmt.Sprintf("VNI %d", v), Problem: "missing", Want: fmt.Sprintf("VPC %d", vpc)}
		got, ok := vnis[v]
		if ok {
			d.Problem, d.Got = "differs", fmt.Sprintf("VPC %d", got)
		}
		if !ok || got != vpc {
			out = append(out, d)
		}
	}
	for v, vpc := range vnis {
		if _, ok := wantVNIs[v]; !ok {
			out = append(out, apply.Difference{Subsystem: "bpf", Object: fmt.Sprintf("VNI %d", v), Problem: "unexpected", Got: fmt.Sprintf("VPC %d", vpc)})
		}
	}
	slices.SortFunc(out, apply.Difference.Compare)
	return out, nil
}

// reasons names the indices of the map fl_drops, in the order of wire.c.
var reasons = [...]string{
	"wire out-malformed", "wire out-no-vni", "wire out-no-route", "wire out-local",
	"wire in-malformed", "wire in-unknown-vni", "wire in-bad-source", "wire in-not-local",
	"link of no port", "malformed packet from a pod", linux.SpoofedSource, linux.LoopbackFromPod, linux.GroupFromPod,
}

// Drops are the packets that the programs dropped, by reason, since the maps were
// created.
func (w *Wire) Drops(context.Context) (map[string]uint64, error) {
	out := make(map[string]uint64, len(reasons))
	for i, name := range reasons {
		var perCPU []uint64
		if err := w.objects.FlDrops.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read BPF map fl_drops: %w", err)
		}
		for _, n := range perCPU {
			out[name] += n
		}
	}
	return out, nil
}

func encode(w linux.Wire) (map[wirePlaceKey]wirePlace, map[packet.VNI]packet.VNI) {
	places := make(map[wirePlaceKey]wirePlace, len(w.Entries))
	for _, e := range w.Entries {
		k, v := encodeEntry(e)
		places[k] = v
	}
	vnis := make(map[packet.VNI]packet.VNI, len(w.VNIs))
	for _, v := range w.VNIs {
		vnis[v.VNI] = v.VPC
	}
	return places, vnis
}

const vpcBits = 32

func encodeEntry(e linux.WireEntry) (wirePlaceKey, wirePlace) {
	bits := e.Prefix.Bits()
	if e.Prefix.Addr().Is4() {
		bits += 96
	}
	k := wirePlaceKey{Prefixlen: uint32(vpcBits + bits), Vpc: bigEndian(uint32(e.VPC)), Addr: e.Prefix.Masked().Addr().As16()}
	v := wirePlace{Mac: e.MAC}
	if e.Local() {
		v.Local = 1
		return k, v
	}
	v.Outer = e.Outer.As16()
	if e.Outer.Is6() && !e.Outer.Is4In6() {
		v.Outer6 = 1
	}
	return k, v
}

// bigEndian is the number whose bytes in memory are v in network order, as a
// longest-prefix map compares them.
func bigEndian(v uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return binary.NativeEndian.Uint32(b[:])
}

func prefixOf(k wirePlaceKey) string {
	addr := netip.AddrFrom16(k.Addr)
	bits := int(k.Prefixlen) - vpcBits
	if addr.Is4In6() {
		addr, bits = addr.Unmap(), bits-96
	}
	return fmt.Sprintf("VPC %d %s", bigEndian(k.Vpc), netip.PrefixFrom(addr, bits))
}

func describe(k wirePlaceKey, p wirePlace) string {
	if p.Local == 1 {
		return "wire " + prefixOf(k) + " on this node"
	}
	return fmt.Sprintf("wire %s at %s mac %s", prefixOf(k), netip.AddrFrom16(p.Outer).Unmap(), packet.MAC(p.Mac))
}
