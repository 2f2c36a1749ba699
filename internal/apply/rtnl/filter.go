package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Filter is an eBPF program that decides about what passes a link (tc-bpf(8), direct-action).
type Filter struct {
	// Parent is the side: netlink.HANDLE_MIN_INGRESS or HANDLE_MIN_EGRESS.
	Parent uint32
	// Name is what the filter bears, for people.
	Name string
	// Program is the file descriptor of the program.
	Program int
}

// Attributes of requests for tc (linux/rtnetlink.h, linux/pkt_cls.h).
const (
	tcaKind     = 1
	tcaOptions  = 2
	tcaBPFFD    = 6
	tcaBPFName  = 7
	tcaBPFFlags = 8

	bpfDirectAction = 1
)

// AddFilters gives a link, in the network namespace of the calling thread, a clsact qdisc
// with filters, each with preference and handle 1. It reports false, and changes nothing,
// if the link has such a qdisc: then there may be filters, too.
func AddFilters(index int, filters ...Filter) (bool, error) {
	c, err := dialHere()
	if err != nil {
		return false, err
	}
	defer c.close()
	m := tcMessage(index, netlink.MakeHandle(0xffff, 0), netlink.HANDLE_CLSACT, 0)
	m.addString(tcaKind, "clsact")
	switch err := c.do(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, m); {
	case errors.Is(err, unix.EEXIST):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("add clsact qdisc to link %d: %w", index, err)
	}
	requests := make([]request, len(filters))
	for i, f := range filters {
		requests[i] = filterRequest(index, f)
	}
	for i, err := range c.batch(requests) {
		if err != nil {
			return true, fmt.Errorf("add filter %s to link %d: %w", filters[i].Name, index, err)
		}
	}
	return true, nil
}

func filterRequest(index int, f Filter) request {
	const all = unix.ETH_P_ALL
	m := tcMessage(index, 1, f.Parent, 1<<16|uint32(networkOrder(all)))
	m.addString(tcaKind, "bpf")
	m.nested(tcaOptions, func(m *message) {
		m.addUint32(tcaBPFFD, uint32(f.Program))
		m.addString(tcaBPFName, f.Name)
		m.addUint32(tcaBPFFlags, bpfDirectAction)
	})
	return request{unix.RTM_NEWTFILTER, unix.NLM_F_CREATE | unix.NLM_F_EXCL, m}
}

// tcMessage is a struct tcmsg.
func tcMessage(index int, handle, parent, info uint32) message {
	m := make(message, 4, 20) // family and padding
	m = binary.NativeEndian.AppendUint32(m, uint32(index))
	m = binary.NativeEndian.AppendUint32(m, handle)
	m = binary.NativeEndian.AppendUint32(m, parent)
	return binary.NativeEndian.AppendUint32(m, info)
}

// networkOrder is the number whose bytes in memory are those of v in network order.
func networkOrder(v uint16) uint16 {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		return v
	}
	return bits.ReverseBytes16(v)
}
