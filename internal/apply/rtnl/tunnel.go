package rtnl

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// prepareTunnel makes the tunnel device, down if it is new. One that cannot be
// changed into what is wanted is made anew.
func (d *Driver) prepareTunnel(ctx context.Context, t *linux.Tunnel, r *Result) {
	if t == nil {
		return
	}
	if err := d.ensureTunnel(ctx, t, r); err != nil {
		d.failed[t.Name] = true
		for _, ref := range t.Refs {
			r.fail(ref, err)
		}
		for _, a := range t.Addresses {
			r.fail(a.Ref, err)
		}
	}
}

func (d *Driver) ensureTunnel(ctx context.Context, t *linux.Tunnel, r *Result) error {
	if err := d.remover.wait(ctx, t.Name); err != nil {
		return err
	}
	l, ok := d.shadow.named(t.Name)
	if ok && l.kind != "vxlan" {
		kind := l.kind
		if kind == "" {
			kind = "hardware"
		}
		return fmt.Errorf("a foreign link (kind %s) bears the tunnel's name %s: remove or rename it", kind, t.Name)
	}
	if ok && l.vxlan != tunnelSettings(t) {
		if err := d.conn.removeLink(l.index); err != nil {
			return fmt.Errorf("remove tunnel device %s, which has other settings (%s): %w", t.Name, l.vxlan, err)
		}
		r.say("remove link %s (%s)", t.Name, l.vxlan)
		d.stale, ok = true, false
		delete(d.shadow.links, l.index)
		d.shadow.forget(l.index)
	}
	if !ok {
		if err := d.createTunnel(t); err != nil {
			return err
		}
		var err error
		if l, ok, err = d.conn.link(t.Name); err != nil || !ok {
			return errors.Join(fmt.Errorf("tunnel device %s vanished as soon as it was made", t.Name), err)
		}
		d.shadow.links[l.index] = l
		r.say("add link %s", t.Name)
	}
	corrected, err := d.correctTunnel(l, t, r)
	if err != nil {
		return err
	}
	// Its settings are those of a link that we have not seen yet, and again after a
	// change: the kernel makes IPv6 on a link anew when the MTU has been below 1280.
	if v, seen := d.verified[t.Name]; seen && v.index == l.index && !corrected {
		return nil
	}
	err = d.hostSysctls(t.Sysctls(), r)
	if errors.Is(err, errNoIPv6) { // It carries IPv4 all the same.
		for _, a := range t.Addresses {
			if a.Addr.Is6() {
				r.fail(a.Ref, fmt.Errorf("address %s of tunnel device %s: %w", a.Addr, t.Name, err))
			}
		}
		return nil // and looks again: IPv6 may come with another MTU
	}
	if err != nil {
		return err
	}
	d.verified[t.Name] = verified{index: l.index}
	return nil
}

// createTunnel adds the device, and finds out who is in the way if it cannot.
func (d *Driver) createTunnel(t *linux.Tunnel) error {
	err := d.conn.addTunnel(*t)
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EADDRINUSE) {
		for _, l := range d.shadow.links {
			if l.kind == "vxlan" && l.vxlan.port == t.Port && l.name != t.Name {
				return fmt.Errorf("add tunnel device %s: the foreign VXLAN device %s holds UDP port %d: remove it: %w", t.Name, l.name, t.Port, err)
			}
		}
	}
	return fmt.Errorf("add tunnel device %s (external, UDP port %d, MTU %d): %w", t.Name, t.Port, t.MTU, err)
}

// correctTunnel changes what can be changed on a device that is there, and reports
// whether anything was.
func (d *Driver) correctTunnel(l link, t *linux.Tunnel, r *Result) (bool, error) {
	was := l
	if l.mac != t.MAC {
		if err := d.conn.setMAC(l.index, t.MAC); err != nil {
			return false, fmt.Errorf("set MAC address %s of tunnel device %s: %w", t.MAC, t.Name, err)
		}
		r.say("set MAC address of link %s to %s", t.Name, t.MAC)
		l.mac = t.MAC
	}
	if l.mtu != t.MTU {
		if err := d.conn.setMTU(l.index, t.MTU); err != nil {
			return false, fmt.Errorf("set MTU %d of tunnel device %s: %w", t.MTU, t.Name, err)
		}
		r.say("set MTU of link %s to %d", t.Name, t.MTU)
		l.mtu = t.MTU
	}
	if !l.noARP {
		if err := d.conn.setNoARP(l.index); err != nil {
			return false, fmt.Errorf("set tunnel device %s to NOARP: %w", t.Name, err)
		}
		r.say("set link %s to noarp", t.Name)
		l.noARP = true
	}
	if l != was {
		// The kernel may have dropped addresses (IPv6 below MTU 1280) or neighbours.
		d.stale = true
		d.shadow.links[l.index] = l
	}
	return l != was, nil
}

func (d *Driver) hostSysctls(want []linux.Sysctl, r *Result) error {
	return d.ns.Do(func() error {
		changes, err := setSysctls(want)
		r.Changes = append(r.Changes, changes...)
		return err
	})
}

// raiseTunnel sets the device up, unless it must not carry yet.
func (d *Driver) raiseTunnel(t *linux.Tunnel, hold error, r *Result) {
	if t == nil || d.failed[t.Name] {
		return
	}
	l, ok := d.shadow.named(t.Name)
	if !ok || l.up {
		return
	}
	err := hold
	if err == nil {
		if err = d.conn.setUp(l.index, true); errors.Is(err, unix.EADDRINUSE) {
			err = fmt.Errorf("UDP port %d is taken by another program or VXLAN device: %w", t.Port, err)
		}
	}
	if err != nil {
		for _, ref := range t.Refs {
			r.fail(ref, fmt.Errorf("set tunnel device %s up: %w", t.Name, err))
		}
		return
	}
	l.up = true
	d.shadow.links[l.index] = l
	r.say("set link %s up", t.Name)
}
