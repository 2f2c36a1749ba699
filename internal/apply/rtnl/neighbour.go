package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// neighKey is what the kernel tells neighbours apart by.
type neighKey struct {
	index int
	addr  netip.Addr
}

// addrKey is what the kernel tells addresses apart by.
type addrKey struct {
	index  int
	prefix netip.Prefix
}

const (
	ndmsgLen  = unix.SizeofNdMsg
	ifaddrLen = unix.SizeofIfAddrmsg
)

func neighHeader(k neighKey, state uint16) message {
	m := make(message, ndmsgLen)
	m[0] = family(k.addr)
	binary.NativeEndian.PutUint32(m[4:], uint32(k.index))
	binary.NativeEndian.PutUint16(m[8:], state)
	m.addAddr(unix.NDA_DST, k.addr)
	return m
}

// neigh is a neighbour entry of IP.
type neigh struct {
	neighKey
	mac       packet.MAC
	permanent bool
}

func parseNeigh(b []byte) (neigh, bool) {
	if len(b) < ndmsgLen || (b[0] != unix.AF_INET && b[0] != unix.AF_INET6) || b[10]&unix.NTF_PROXY != 0 {
		return neigh{}, false
	}
	n := neigh{permanent: binary.NativeEndian.Uint16(b[8:])&unix.NUD_PERMANENT != 0}
	n.index = int(int32(binary.NativeEndian.Uint32(b[4:])))
	attributes(b[ndmsgLen:], func(kind uint16, v []byte) {
		switch kind {
		case unix.NDA_DST:
			n.addr = address(v)
		case unix.NDA_LLADDR:
			if len(v) == len(n.mac) {
				n.mac = packet.MAC(v)
			}
		}
	})
	return n, n.addr.IsValid()
}

// neighbours lists permanent neighbours of IP: the others come and go by themselves.
func (c *conn) neighbours() (map[neighKey]packet.MAC, error) {
	answers, err := c.dump(unix.RTM_GETNEIGH, make(message, ndmsgLen))
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	out := map[neighKey]packet.MAC{}
	for _, a := range answers {
		if n, ok := parseNeigh(a); ok && n.permanent {
			out[n.neighKey] = n.mac
		}
	}
	return out, nil
}

func (c *conn) setNeighbour(k neighKey, mac packet.MAC) error {
	return c.change(neighbourRequest(k, mac))
}

func neighbourRequest(k neighKey, mac packet.MAC) request {
	m := neighHeader(k, unix.NUD_PERMANENT)
	m.add(unix.NDA_LLADDR, mac[:])
	return request{unix.RTM_NEWNEIGH, unix.NLM_F_CREATE | unix.NLM_F_REPLACE, m}
}

func (c *conn) removeNeighbour(k neighKey) error {
	return gone(c.do(unix.RTM_DELNEIGH, 0, neighHeader(k, 0)))
}

func addrHeader(k addrKey) message {
	m := make(message, ifaddrLen)
	m[0], m[1] = family(k.prefix.Addr()), byte(k.prefix.Bits())
	binary.NativeEndian.PutUint32(m[4:], uint32(k.index))
	m.addAddr(unix.IFA_LOCAL, k.prefix.Addr())
	m.addAddr(unix.IFA_ADDRESS, k.prefix.Addr())
	return m
}

func parseAddr(b []byte) (k addrKey, ok bool) {
	if len(b) < ifaddrLen || (b[0] != unix.AF_INET && b[0] != unix.AF_INET6) {
		return addrKey{}, false
	}
	k.index = int(binary.NativeEndian.Uint32(b[4:]))
	var local, addr netip.Addr
	attributes(b[ifaddrLen:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFA_LOCAL:
			local = address(v)
		case unix.IFA_ADDRESS:
			addr = address(v)
		}
	})
	if !local.IsValid() {
		local = addr
	}
	k.prefix = netip.PrefixFrom(local, int(b[1]))
	return k, k.prefix.IsValid()
}

// addresses lists the addresses of all links.
func (c *conn) addresses() (map[addrKey]bool, error) {
	answers, err := c.dump(unix.RTM_GETADDR, make(message, ifaddrLen))
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := map[addrKey]bool{}
	for _, a := range answers {
		if k, ok := parseAddr(a); ok {
			out[k] = true
		}
	}
	return out, nil
}

// addAddress adds an address that is usable at once (no duplicate address
// detection) and brings no route of its prefix along.
func (c *conn) addAddress(k addrKey) error { return c.change(addressRequest(k)) }

func addressRequest(k addrKey) request {
	m := addrHeader(k)
	m[2] = unix.IFA_F_NODAD
	m.addUint32(unix.IFA_FLAGS, unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)
	return request{unix.RTM_NEWADDR, unix.NLM_F_CREATE | unix.NLM_F_EXCL, m}
}

func (c *conn) removeAddress(k addrKey) error { return gone(c.change(addressRemoval(k))) }

func addressRemoval(k addrKey) request { return request{unix.RTM_DELADDR, 0, addrHeader(k)} }

// gone turns "there is no such thing" into success: that is what a removal wants.
func gone(err error) error {
	for _, e := range []error{unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.EADDRNOTAVAIL, unix.ENXIO} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}
