package bpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/rtnl"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// portSlots is the size of fl_port_slots, PORT_SLOTS of port.h.
const portSlots = 1024

func encodeGuard(g linux.Guard) wirePort {
	p := wirePort{Vni: uint32(g.VNI), Index: uint32(g.Index)}
	for _, a := range g.Addresses {
		if a.Is4() {
			p.Addr4 = nativeOf(a)
		} else {
			p.Addr6 = a.As16()
		}
	}
	return p
}

// nativeOf is the number whose bytes in memory are those of an IPv4 address.
func nativeOf(a netip.Addr) uint32 {
	b := a.As4()
	return bigEndian(uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]))
}

func describePort(p wirePort) string {
	var out []string
	if p.Addr4 != 0 {
		v := bigEndian(p.Addr4)
		out = append(out, netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}).String())
	}
	if a := netip.AddrFrom16(p.Addr6); !a.IsUnspecified() {
		out = append(out, a.String())
	}
	return fmt.Sprintf("%s VNI %d", strings.Join(append(out, "with"), " "), packet.VNI(p.Vni))
}

func (w *Wire) readPorts() (map[uint32]wirePort, error) {
	ports := map[uint32]wirePort{}
	var index uint32
	var p wirePort
	it := w.objects.FlPorts.Iterate()
	for it.Next(&index, &p) {
		ports[index] = p
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read BPF map fl_ports: %w", err)
	}
	return ports, nil
}

func (w *Wire) readSlots() (slots [portSlots]wirePort, err error) {
	for i := range slots {
		if err := w.objects.FlPortSlots.Lookup(uint32(i), &slots[i]); err != nil {
			return slots, fmt.Errorf("read BPF map fl_port_slots: %w", err)
		}
	}
	return slots, nil
}

func (w *Wire) putSlot(p wirePort, slot uint32) error {
	if w.slots[slot] == p {
		return nil
	}
	if err := w.objects.FlPortSlots.Update(slot, p, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("write BPF map fl_port_slots: %w", err)
	}
	w.slots[slot] = p
	return nil
}

// settleSlots makes fl_port_slots say what fl_ports says: a slot has a port that falls
// into it, or none.
func (w *Wire) settleSlots() error {
	for i, p := range w.slots {
		if p == (wirePort{}) {
			continue
		}
		if want, ok := w.ports[p.Index]; !ok || p.Index%portSlots != uint32(i) {
			if err := w.putSlot(wirePort{}, uint32(i)); err != nil {
				return err
			}
		} else if err := w.putSlot(want, uint32(i)); err != nil {
			return err
		}
	}
	for index, p := range w.ports {
		if slot := index % portSlots; w.slots[slot] == (wirePort{}) {
			if err := w.putSlot(p, slot); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *Wire) refreshPorts() (err error) {
	if w.ports, err = w.readPorts(); err != nil {
		return err
	}
	if w.slots, err = w.readSlots(); err != nil {
		return err
	}
	if err := w.objects.FlCache.Lookup(uint32(0), &w.flows); err != nil {
		return fmt.Errorf("read BPF map fl_cache: %w", err)
	}
	return nil
}

// ApplyPorts makes the map of what the links of pods may send equal to want, and
// returns the changes, for people. What o.Refresh reads back is what Apply does.
func (w *Wire) ApplyPorts(ctx context.Context, want []linux.Guard, o apply.Options) (changes []string, err error) {
	if o.Refresh {
		if err := w.refreshPorts(); err != nil {
			return nil, err
		}
	}
	wanted := make(map[uint32]bool, len(want))
	for _, g := range want {
		index, p := uint32(g.Index), encodeGuard(g)
		wanted[index] = true
		if have, ok := w.ports[index]; ok && have == p {
			continue
		}
		if err := ctx.Err(); err != nil {
			return changes, err
		}
		if err := w.objects.FlPorts.Update(index, p, ebpf.UpdateAny); err != nil {
			return changes, fmt.Errorf("let link %s send from %s (BPF map fl_ports, %d entries): %w", g.Link, describePort(p), len(w.ports), err)
		}
		w.ports[index] = p
		changes = append(changes, fmt.Sprintf("let link %s send from %s", g.Link, describePort(p)))
	}
	if o.AddOnly {
		return changes, w.settleSlots()
	}
	for _, index := range slices.Sorted(maps.Keys(w.ports)) {
		if wanted[index] {
			continue
		}
		if err := w.objects.FlPorts.Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return changes, fmt.Errorf("let link %d send no more: %w", index, err)
		}
		delete(w.ports, index)
		changes = append(changes, fmt.Sprintf("let link %d send no more", index))
	}
	return changes, w.settleSlots()
}

// AuditPorts reads the map and says how it differs from want. The shadow stays.
func (w *Wire) AuditPorts(want []linux.Guard) ([]apply.Difference, error) {
	ports, err := w.readPorts()
	if err != nil {
		return nil, err
	}
	var out []apply.Difference
	for _, g := range want {
		p := encodeGuard(g)
		d := apply.Difference{Subsystem: "bpf", Object: "port " + g.Link, Problem: "missing", Want: describePort(p)}
		got, ok := ports[uint32(g.Index)]
		if ok {
			d.Problem, d.Got = "differs", describePort(got)
		}
		if !ok || got != p {
			out = append(out, d)
		}
		delete(ports, uint32(g.Index))
	}
	slots, err := w.readSlots()
	if err != nil {
		return out, err
	}
	if slots != w.slots {
		out = append(out, apply.Difference{Subsystem: "bpf", Object: "map fl_port_slots", Problem: "differs"})
	}
	for index, p := range ports {
		out = append(out, apply.Difference{Subsystem: "bpf", Object: fmt.Sprintf("port of link %d", index), Problem: "unexpected", Got: describePort(p)})
	}
	slices.SortFunc(out, apply.Difference.Compare)
	return out, nil
}

// portPrograms are those on a port's link, and which of them are wanted there.
func (w *Wire) portPrograms() [2]struct {
	direction
	program *ebpf.Program
	wanted  bool
} {
	return [2]struct {
		direction
		program *ebpf.Program
		wanted  bool
	}{{fromPort, w.objects.PortIn, true}, {toPort, w.objects.PortOut, w.cache}}
}

// AttachPort puts the programs on the node's end of a pod's link, in the network
// namespace of the calling thread, and returns what it changed, for people. They stay
// with the link, without a pin, whether an agent runs or not.
//
// They are filters of a clsact qdisc on every kernel: to attach by tcx the kernel waits,
// with all changes of links in the machine behind it, until every CPU has noticed, and
// that twice for each pod that comes.
func (w *Wire) AttachPort(ifindex int) (changes []string, err error) {
	var wanted []rtnl.Filter
	for _, p := range w.portPrograms() {
		if p.wanted {
			wanted = append(wanted, rtnl.Filter{Parent: p.parent, Name: filterName(p.direction), Program: p.program.FD()})
			changes = append(changes, fmt.Sprintf("attach program %s of link %d", p.name, ifindex))
		}
	}
	fresh, err := rtnl.AddFilters(ifindex, wanted...)
	if err != nil {
		return nil, err
	}
	if fresh {
		return changes, nil
	}
	return w.correctPort(ifindex)
}

// correctPort is AttachPort for a link that may have programs.
func (w *Wire) correctPort(ifindex int) (changes []string, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	for _, p := range w.portPrograms() {
		have, same, err := ourFilterOn(h, ifindex, p.direction, p.program)
		if err != nil {
			return changes, err
		}
		verb := "attach"
		switch {
		case p.wanted && !same:
			err = h.FilterReplace(filter(ifindex, p.direction, p.program))
		case !p.wanted && have != nil:
			verb, err = "detach", h.FilterDel(have)
		default:
			continue
		}
		if err != nil {
			return changes, fmt.Errorf("%s program %s of link %d: %w", verb, p.name, ifindex, err)
		}
		changes = append(changes, fmt.Sprintf("%s program %s of link %d", verb, p.name, ifindex))
	}
	return changes, nil
}

// PortAttached reports whether the programs that ought to be on a link are, and no
// other of ours.
func (w *Wire) PortAttached(ifindex int) (bool, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return false, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	for _, p := range w.portPrograms() {
		have, same, err := ourFilterOn(h, ifindex, p.direction, p.program)
		if err != nil || p.wanted != (have != nil) || p.wanted && !same {
			return false, err
		}
	}
	return true, nil
}
