package netspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// rtGenmsgLen is the length of a struct rtgenmsg, padded for the attributes.
const rtGenmsgLen = unix.NLMSG_ALIGNTO

// eventBuffer is the size in bytes of the buffer for announcements of the kernel.
const eventBuffer = 8 << 20

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
	if err == nil {
		// Every number given and every death is a message, hundreds of them at once.
		// Without the right to a larger buffer the lost ones are made up for.
		_ = w.events.SetReceiveBufferSize(eventBuffer, true)
	}
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
		case errors.Is(err, unix.ENOBUFS): // announcements were lost
			if err := w.relist(); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("wait for network namespaces: %w", err)
		}
		for _, m := range messages {
			if m.Header.Type != unix.RTM_DELNSID || len(m.Data) < rtGenmsgLen {
				continue
			}
			id, ok, err := nsidOf(m.Data)
			if err != nil {
				return err
			}
			if ok {
				delete(w.pending, id)
			}
		}
	}
	return nil
}

// relist asks the kernel which of the numbers are still given, and forgets the rest.
func (w *Watch) relist() error {
	var messages [][]byte
	err := Do(w.home, func() error {
		request := nl.NewNetlinkRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP)
		request.AddData(nl.NewRtGenMsg())
		var err error
		messages, err = request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNSID)
		return err
	})
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		// A namespace died meanwhile, which is announced: the list is too long at
		// worst.
		err = nil
	}
	if err != nil {
		return fmt.Errorf("list the network namespaces that still exist: %w", err)
	}
	alive := map[int]bool{}
	for _, m := range messages {
		if len(m) < rtGenmsgLen {
			continue
		}
		id, ok, err := nsidOf(m)
		if err != nil {
			return err
		}
		if ok {
			alive[id] = true
		}
	}
	maps.DeleteFunc(w.pending, func(id int, _ bool) bool { return !alive[id] })
	return nil
}

// nsidOf is the number in a message about a namespace.
func nsidOf(message []byte) (id int, ok bool, err error) {
	attrs, err := nl.ParseRouteAttr(message[rtGenmsgLen:])
	if err != nil {
		return 0, false, fmt.Errorf("read a message about a network namespace: %w", err)
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.NETNSA_NSID && len(a.Value) >= 4 {
			return int(int32(nl.NativeEndian().Uint32(a.Value))), true, nil
		}
	}
	return 0, false, nil
}

// Close ends the watch.
func (w *Watch) Close() error {
	w.events.Close()
	return w.home.Close()
}
