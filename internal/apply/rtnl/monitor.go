package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// monitor is a socket that the kernel queues notifications of every change on.
type monitor struct {
	file *os.File
	raw  syscall.RawConn
	// lost says that the queue overflowed.
	lost atomic.Bool
	buf  []byte
}

// queueSize is that of the socket, in bytes: some 30,000 notifications, so that
// an Apply that writes thousands of objects does not overflow it.
const queueSize = 32 << 20

func listen(ns *netns.NS) (*monitor, error) {
	groups := uint32(0)
	for _, g := range []uint{
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	} {
		groups |= 1 << (g - 1)
	}
	m := &monitor{buf: make([]byte, 64<<10)}
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		m.file = os.NewFile(uintptr(fd), "netlink notifications")
		// Without CAP_NET_ADMIN over the host the queue stays small: it overflows
		// sooner, and everything is read anew then.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queueSize) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, queueSize)
		}
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
	})
	if err == nil {
		m.raw, err = m.file.SyscallConn()
	}
	if err != nil {
		if m.file != nil {
			_ = m.file.Close()
		}
		return nil, fmt.Errorf("listen to netlink notifications: %w", err)
	}
	return m, nil
}

func (m *monitor) close() error { return m.file.Close() }

// wait returns when there is something to drain, or when interrupt was called.
func (m *monitor) wait() error {
	var peek [1]byte
	return m.raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), peek[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if errors.Is(err, unix.ENOBUFS) {
			m.lost.Store(true) // the kernel tells only once
		}
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
}

// interrupt ends wait, now and until resume.
func (m *monitor) interrupt() { _ = m.file.SetReadDeadline(time.Unix(1, 0)) }

func (m *monitor) resume() { _ = m.file.SetReadDeadline(time.Time{}) }

// drain empties the queue. Of several notifications about one object only the
// last is returned. complete is false if some were lost.
func (m *monitor) drain() (events []event, complete bool, err error) {
	last := map[any]int{}
	for {
		n, errno := m.receive()
		switch {
		case errors.Is(errno, unix.EAGAIN):
			return events, !m.lost.Swap(false), nil
		case errors.Is(errno, unix.EINTR):
			continue
		case errors.Is(errno, unix.ENOBUFS):
			m.lost.Store(true)
			continue
		case errno != nil:
			return events, false, fmt.Errorf("read netlink notifications: %w", errno)
		}
		messages, err := syscall.ParseNetlinkMessage(m.buf[:n])
		if err != nil {
			m.lost.Store(true) // cut off: read everything instead
			continue
		}
		for _, msg := range messages {
			e, ok := parseEvent(msg)
			if !ok {
				continue
			}
			if i, seen := last[e.key]; seen {
				e.dropped, e.foreign = e.dropped || events[i].dropped, e.foreign || events[i].foreign
				events[i] = e
				continue
			}
			last[e.key] = len(events)
			events = append(events, e)
		}
	}
}

func (m *monitor) receive() (n int, err error) {
	ctrl := m.raw.Control(func(fd uintptr) {
		n, _, err = unix.Recvfrom(int(fd), m.buf, unix.MSG_DONTWAIT)
	})
	if ctrl != nil {
		return 0, ctrl
	}
	return n, err
}

// gather is how long Watch lets notifications come together. An Apply tells itself of
// what it does: nobody need wake in the middle of one for each of its changes.
const gather = 5 * time.Millisecond

// Watch calls changed for every change that somebody else made, until ctx ends.
// One Watch may run at a time. While changed blocks, nothing is noticed.
func (d *Driver) Watch(ctx context.Context, changed func(apply.Foreign)) error {
	ctx, cancel := context.WithCancel(ctx)
	d.monitor.resume()
	ready, taken := make(chan error), make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		<-ctx.Done()
		d.monitor.interrupt()
	})
	wg.Go(func() { d.await(ctx, ready, taken) })
	for {
		waited := false
		select {
		case <-ctx.Done():
			return nil
		case <-d.kick:
		case err := <-ready:
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("wait for netlink notifications: %w", err)
			}
			waited = true
		}
		foreign, err := d.takeForeign()
		if err != nil {
			return err
		}
		for _, f := range foreign {
			changed(f)
		}
		if waited {
			taken <- struct{}{}
		}
	}
}

// await says on ready when notifications have gathered, and waits until they are taken.
func (d *Driver) await(ctx context.Context, ready chan<- error, taken <-chan struct{}) {
	for {
		err := d.monitor.wait()
		if err == nil {
			select {
			case <-time.After(gather):
			case <-ctx.Done():
				return
			}
		}
		select {
		case ready <- err:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
		select {
		case <-taken:
		case <-ctx.Done():
			return
		}
	}
}

func (d *Driver) takeForeign() ([]apply.Foreign, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	if d.shadow != nil {
		err = d.catchUp(false)
	}
	out := d.foreign
	d.foreign = nil
	return out, err
}

// event is one notification.
type event struct {
	// key names the object: an int for a link's index, neighKey, addrKey, routeKey,
	// allLinks for a setting of the namespace, or elsewhere.
	key     any
	deleted bool
	// port is the netlink port of who made the change, usually the process's id.
	port uint32
	link link
	// dropped says that the link was set down, whatever came after.
	dropped bool
	// foreign: a route or a rule that may take packets from our routes came or went.
	foreign bool
	neigh   neigh
	route   route
}

// on reports whether an event is about one of these links, or about what is there by them alone.
func (e event) on(links map[int]bool) bool {
	switch key := e.key.(type) {
	case int:
		return links[key]
	case neighKey:
		return links[key.index]
	case addrKey:
		return links[key.index]
	case routeKey:
		return len(e.route.hops) > 0 && !slices.ContainsFunc(e.route.hops, func(h hop) bool { return !links[h.index] })
	}
	return false
}

// elsewhere is the key of rules, and of routes that are not in the place of one of ours.
type elsewhere struct{}

// allLinks is the key of a change of a setting for all links.
type allLinks struct{}

// netconfIndex is NETCONFA_IFINDEX, and -1 there means all links.
const netconfIndex = 1

func parseEvent(msg syscall.NetlinkMessage) (event, bool) {
	e, ok := event{port: msg.Header.Pid}, false
	switch msg.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		e.deleted = msg.Header.Type == unix.RTM_DELLINK
		e.link, ok = parseLink(msg.Data)
		e.key, e.dropped = e.link.index, ok && !e.link.up && changedUp(msg.Data)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		e.neigh, ok = parseNeigh(msg.Data)
		e.deleted = msg.Header.Type == unix.RTM_DELNEIGH || !e.neigh.permanent
		e.key = e.neigh.neighKey
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		e.deleted = msg.Header.Type == unix.RTM_DELADDR
		e.key, ok = parseAddr(msg.Data)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		e.deleted = msg.Header.Type == unix.RTM_DELROUTE
		var table uint32
		e.route, table, ok = parseRoute(msg.Data)
		ours := table == claims.RouteTable && e.route.protocol == claims.RouteProtocol
		e.key, e.foreign = e.route.routeKey, !ours
		// A foreign route may take the place of ours, but cannot delete it.
		if !ours && (e.deleted || table != claims.RouteTable) {
			e.key = elsewhere{}
		}
		ok = ok && table != unix.RT_TABLE_LOCAL
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		e.key, e.foreign, ok = elsewhere{}, true, true
	case unix.RTM_NEWNETCONF:
		if len(msg.Data) < 4 {
			return e, false
		}
		attributes(msg.Data[4:], func(kind uint16, v []byte) {
			ok = ok || kind == netconfIndex && len(v) == 4 && int32(binary.NativeEndian.Uint32(v)) == -1
		})
		e.key = allLinks{}
	}
	return e, ok
}

// changedUp reports whether a notification is about IFF_UP: that of a new link, with
// all bits set, is not.
func changedUp(ifinfo []byte) bool {
	change := binary.NativeEndian.Uint32(ifinfo[12:])
	return change != ^uint32(0) && change&unix.IFF_UP != 0
}

// news reports whether an event tells of something that differs from the shadow
// and matters. What does not matter to us is taken into the shadow.
func (s *shadow) news(e event, v vital, doomed map[int]bool) bool {
	switch key := e.key.(type) {
	case int:
		return s.linkNews(key, e, v.links, doomed)
	case neighKey:
		if !ours(s.links[key.index].name) {
			return false
		}
		mac, have := s.neighs[key]
		return have == e.deleted || have && mac != e.neigh.mac
	case addrKey:
		if s.addrs[key] != e.deleted || doomed[key.index] {
			return false
		}
		if ours(s.links[key.index].name) || v.address(key) {
			return true
		}
		if e.deleted {
			delete(s.addrs, key)
		} else {
			s.addrs[key] = true
		}
		return false
	case routeKey:
		have, ok := s.routes[key]
		if e.deleted {
			return ok
		}
		return ok && !have.equal(e.route) || !ok && e.route.protocol == claims.RouteProtocol
	}
	return false
}

func (s *shadow) linkNews(index int, e event, carriers, doomed map[int]bool) bool {
	old, known := s.links[index]
	// One that was down for a moment has lost its routes, and the kernel says nothing
	// of those.
	dropped := e.dropped && old.up && !e.deleted
	if doomed[index] || known != e.deleted && old == e.link && !dropped {
		return false
	}
	if e.deleted && !known {
		return false
	}
	matters := ours(old.name) || !e.deleted && ours(e.link.name)
	if carriers[index] && (e.deleted || old.up != e.link.up || dropped) {
		matters = true
	}
	if matters {
		return true
	}
	if e.deleted {
		delete(s.links, index)
	} else {
		s.links[index] = e.link
	}
	return false
}

// maxPID is PID_MAX_LIMIT of 64-bit kernels. Netlink ports above are not process
// ids.
const maxPID = 4 << 20

// processOf names the process behind a netlink port. The first socket of a process
// has its id for a port; a process that is gone already is known by that alone.
func processOf(port uint32) string {
	if port == 0 || port > maxPID {
		return ""
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", port))
	if err != nil {
		return fmt.Sprintf("pid %d", port)
	}
	return fmt.Sprintf("%s (pid %d)", strings.TrimSpace(string(comm)), port)
}
