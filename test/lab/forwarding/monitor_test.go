package forwarding

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// monitor counts what is written to the kernel in one network namespace: links,
// addresses, routes, permanent neighbours, and nftables.
type monitor struct {
	route, nft int // sockets
}

func watchKernel(t testing.TB, ns *os.File) *monitor {
	t.Helper()
	m := &monitor{route: -1, nft: -1}
	groups := uint32(0)
	for _, g := range []uint{
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
	} {
		groups |= 1 << (g - 1)
	}
	err := netspace.Do(ns, func() (err error) {
		if m.route, err = subscribe(unix.NETLINK_ROUTE, groups); err != nil {
			return err
		}
		m.nft, err = subscribe(unix.NETLINK_NETFILTER, 1<<(unix.NFNLGRP_NFTABLES-1))
		return err
	})
	t.Cleanup(func() {
		for _, fd := range []int{m.route, m.nft} {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	})
	if err != nil {
		t.Fatalf("watch the kernel: %v", err)
	}
	return m
}

func subscribe(protocol int, groups uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return -1, err
	}
	return fd, errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}),
	)
}

// written are the notifications since the last call, for people. That an agent claims
// its nftables table, which every one does that starts, is none.
func (m *monitor) written(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, msg := range m.receive(t, m.route) {
		// Neighbours come and go with traffic; ours are permanent. struct ndmsg has
		// the state at byte 8.
		neighbour := msg.Header.Type == unix.RTM_NEWNEIGH || msg.Header.Type == unix.RTM_DELNEIGH
		if neighbour && binary.NativeEndian.Uint16(msg.Data[8:])&unix.NUD_PERMANENT == 0 {
			continue
		}
		out = append(out, fmt.Sprintf("rtnetlink message %d from port %d", msg.Header.Type, msg.Header.Pid))
	}
	for _, msg := range m.receive(t, m.nft) {
		switch kind := msg.Header.Type & 0xff; kind {
		case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_NEWGEN:
		case unix.NFT_MSG_DELTABLE:
			// With a table of another name the agent asks what the kernel can do.
			if !bytes.Contains(msg.Data, []byte(claims.NFTTable+"-probe")) {
				out = append(out, "nftables table deleted")
			}
		default:
			out = append(out, fmt.Sprintf("nftables message %d", kind))
		}
	}
	return out
}

func (m *monitor) receive(t testing.TB, fd int) []syscall.NetlinkMessage {
	t.Helper()
	var out []syscall.NetlinkMessage
	for {
		buf := make([]byte, 64<<10)
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return out
		}
		if err != nil {
			t.Fatalf("read notifications of the kernel: %v", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			t.Fatalf("read notifications of the kernel: %v", err)
		}
		out = append(out, messages...)
	}
}
