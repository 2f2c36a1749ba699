package netspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// rtGenmsgLen is the length of a struct rtgenmsg, padded for the attributes.
const rtGenmsgLen = unix.NLMSG_ALIGNTO

// Watch tells when network namespaces have really been torn down. The kernel does
// so some time after the last process, socket and mount of a namespace is gone,
// one batch after the other.
//
// The watch is a namespace of its own in which every watched one gets a number:
// the kernel announces when a number's namespace dies.
type Watch struct {
	home    *os.File
	events  *nl.NetlinkSocket
	pending map[int]bool
	next    int
}

// NewWatch starts with nothing to watch.
func NewWatch() (*Watch, error) {
	home, err := New()
	if err != nil {
		return nil, err
	}
	w := &Watch{home: home, pending: map[int]bool{}}
	err = Do(home, func() error {
		w.events, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_NSID)
		return err
	})
	if err != nil {
		home.Close()
		return nil, fmt.Errorf("subscribe to the end of network namespaces: %w", err)
	}
	return w, nil
}

// Add watches one more namespace. It does not keep it alive: the caller closes ns.
func (w *Watch) Add(ns *os.File) error {
	id := w.next + 1
	err := Do(w.home, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		return h.SetNetNsIdByFd(int(ns.Fd()), id)
	})
	if errors.Is(err, unix.EEXIST) {
		return nil // watched already
	}
	if err != nil {
		return fmt.Errorf("watch network namespace %s: %w", ns.Name(), err)
	}
	w.next = id
	w.pending[id] = true
	return nil
}

// Wait returns when every watched namespace is gone, with all its devices, or when
// ctx ends. Namespaces are numbered as dying before their devices are removed, so
// that one more namespace is made, ended and waited for: the kernel's one worker
// takes it up only when it is done with the others.
func (w *Watch) Wait(ctx context.Context) error {
	if err := w.drain(ctx); err != nil {
		return err
	}
	last, err := New()
	if err != nil {
		return err
	}
	err = w.Add(last)
	last.Close()
	if err != nil {
		return err
	}
	return w.drain(ctx)
}

func (w *Watch) drain(ctx context.Context) error {
	// A receive timeout, and not closing the socket, lets the context end the wait.
	if err := w.events.SetReceiveTimeout(&unix.Timeval{Usec: int64(50 * time.Millisecond / time.Microsecond)}); err != nil {
		return fmt.Errorf("wait for network namespaces: %w", err)
	}
	for len(w.pending) > 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("%d network namespaces still exist: a process or a mount outside of the lab holds them: %w", len(w.pending), ctx.Err())
		}
		messages, _, err := w.events.Receive()
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for network namespaces: %w", err)
		}
		for _, m := range messages {
			if m.Header.Type != unix.RTM_DELNSID || len(m.Data) < rtGenmsgLen {
				continue
			}
			attrs, err := nl.ParseRouteAttr(m.Data[rtGenmsgLen:])
			if err != nil {
				return fmt.Errorf("read the end of a network namespace: %w", err)
			}
			for _, a := range attrs {
				if a.Attr.Type == unix.NETNSA_NSID && len(a.Value) >= 4 {
					delete(w.pending, int(int32(nl.NativeEndian().Uint32(a.Value))))
				}
			}
		}
	}
	return nil
}

// Close ends the watch.
func (w *Watch) Close() error {
	w.events.Close()
	return w.home.Close()
}
