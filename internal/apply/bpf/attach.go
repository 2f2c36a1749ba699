package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// direction is one of the two places of a device that a program is attached to.
type direction struct {
	name   string // of the pin and of the filter
	attach ebpf.AttachType
	parent uint32 // of the filter, on kernels without tcx
}

var (
	inward   = direction{"wire_in", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS}
	outward  = direction{"wire_out", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS}
	fromPort = direction{name: "port_in", parent: netlink.HANDLE_MIN_INGRESS}
	toPort   = direction{name: "port_out", parent: netlink.HANDLE_MIN_EGRESS}
)

// Attach puts the programs on the device with the given index in the network
// namespace of the calling thread, and returns what it changed, for people.
// Programs that are there already and equal stay untouched; others of ours are
// replaced in one step, without a gap. Those of another layout are removed after it.
func (w *Wire) Attach(ifindex int) ([]string, error) {
	var changes []string
	for _, d := range []struct {
		direction
		program *ebpf.Program
	}{{inward, w.objects.WireIn}, {outward, w.objects.WireOut}} {
		did, err := w.attachTCX(ifindex, d.direction, d.program)
		if errors.Is(err, ebpf.ErrNotSupported) {
			w.filters = true
			did, err = attachFilter(ifindex, d.direction, d.program)
		}
		if err != nil {
			return changes, fmt.Errorf("attach program %s to the tunnel device: %w", d.name, err)
		}
		if did {
			changes = append(changes, "attach program "+d.name)
		}
	}
	if w.retired {
		return changes, nil
	}
	// Only now, so that packets meet some program at every moment.
	if err := w.removeOthers(); err != nil {
		return changes, err
	}
	w.retired = true
	return changes, nil
}

// Feature tells how the programs are attached, for people.
func (w *Wire) Feature() string {
	if w.filters {
		return "tunnel programs attached by clsact filters (kernel before 6.6)"
	}
	return "tunnel programs attached by tcx links"
}

// Attached reports whether both programs are on the device.
func (w *Wire) Attached(ifindex int) (bool, error) {
	for _, d := range []struct {
		direction
		program *ebpf.Program
	}{{inward, w.objects.WireIn}, {outward, w.objects.WireOut}} {
		have, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: d.attach})
		if errors.Is(err, ebpf.ErrNotSupported) {
			if have, err := ourFilter(ifindex, d.direction, d.program); err != nil || !have {
				return false, err
			}
			continue
		}
		if err != nil {
			return false, fmt.Errorf("ask for the programs of the tunnel device: %w", err)
		}
		found := false
		for _, p := range have.Programs {
			same, err := sameProgram(p.ID, d.program)
			if err != nil {
				return false, err
			}
			found = found || same
		}
		if !found {
			return false, nil
		}
	}
	return true, nil
}

func (w *Wire) attachTCX(ifindex int, d direction, program *ebpf.Program) (changed bool, err error) {
	pin := filepath.Join(w.dir, d.name)
	old, err := link.LoadPinnedLink(pin, nil)
	switch {
	case err == nil:
		defer func() { err = errors.Join(err, old.Close()) }()
		info, err := old.Info()
		if err != nil {
			return false, fmt.Errorf("read pinned link %s: %w", pin, err)
		}
		if tcx := info.TCX(); tcx != nil && tcx.Ifindex == uint32(ifindex) {
			if same, err := sameProgram(info.Program, program); err != nil || same {
				return false, err
			}
			return true, old.Update(program)
		}
		// The device that it was on is gone.
		if err := old.Unpin(); err != nil {
			return false, fmt.Errorf("remove stale pin %s: %w", pin, err)
		}
	case !errors.Is(err, os.ErrNotExist):
		return false, fmt.Errorf("open pinned link %s: %w", pin, err)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: program, Attach: d.attach})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.Pin(pin); err != nil {
		return false, fmt.Errorf("pin link %s: %w", pin, err)
	}
	return true, nil
}

// sameProgram compares by tag, the kernel's hash of the instructions, and by maps,
// which the hash leaves out: a program with the maps of before would judge by what
// nobody keeps any more.
func sameProgram(id ebpf.ProgramID, program *ebpf.Program) (bool, error) {
	other, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open program %d: %w", id, err)
	}
	defer other.Close()
	have, err := other.Info()
	if err != nil {
		return false, fmt.Errorf("read program %d: %w", id, err)
	}
	want, err := program.Info()
	if err != nil {
		return false, fmt.Errorf("read our program: %w", err)
	}
	haveMaps, ok := have.MapIDs()
	wantMaps, ok2 := want.MapIDs()
	return have.Tag == want.Tag && ok && ok2 && slices.Equal(haveMaps, wantMaps), nil
}

// attachFilter is Attach for kernels before 6.6: a direct-action filter of a
// clsact qdisc, replaced in place.
func attachFilter(ifindex int, d direction, program *ebpf.Program) (bool, error) {
	have, err := ourFilter(ifindex, d, program)
	if err != nil || have {
		return false, err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return false, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	if err := h.QdiscAdd(clsact(ifindex)); err != nil && !errors.Is(err, unix.EEXIST) {
		return false, fmt.Errorf("add clsact qdisc: %w", err)
	}
	if err := h.FilterReplace(filter(ifindex, d, program)); err != nil {
		return false, fmt.Errorf("add filter: %w", err)
	}
	return true, nil
}

func clsact(ifindex int) netlink.Qdisc {
	return &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

func filter(ifindex int, d direction, program *ebpf.Program) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex, Parent: d.parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1,
		},
		Fd: program.FD(), Name: filterName(d), DirectAction: true,
	}
}

func filterName(d direction) string { return "fairlead_" + d.name }

func ourFilter(ifindex int, d direction, program *ebpf.Program) (bool, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return false, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	_, same, err := ourFilterOn(h, ifindex, d, program)
	return same, err
}

// ourFilterOn is the filter of ours on a device, nil if there is none, and whether it is
// the same program.
func ourFilterOn(h *netlink.Handle, ifindex int, d direction, program *ebpf.Program) (*netlink.BpfFilter, bool, error) {
	on := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	filters, err := h.FilterList(on, d.parent) // Without a clsact qdisc there are none.
	if err != nil {
		return nil, false, fmt.Errorf("list filters of link %d: %w", ifindex, err)
	}
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Name == filterName(d) {
			same, err := sameProgram(ebpf.ProgramID(b.Id), program)
			return b, same, err
		}
	}
	return nil, false, nil
}
