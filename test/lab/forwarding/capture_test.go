package forwarding

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// frame is an Ethernet frame that went over a node's NIC, as far as these tests look.
type frame struct {
	from, to       netip.Addr
	proto          uint8
	sport, dport   uint16
	srcMAC, dstMAC net.HardwareAddr
	// vni and inner are those of VXLAN.
	vni   uint32
	inner *frame
}

// String is for failures.
func (f *frame) String() string {
	s := fmt.Sprintf("%s:%d > %s:%d protocol %d", f.from, f.sport, f.to, f.dport, f.proto)
	if f.inner != nil {
		s += fmt.Sprintf(" VNI %d [%s > %s: %s]", f.vni, f.inner.srcMAC, f.inner.dstMAC, f.inner)
	}
	return s
}

// about reports whether the frame, or what is in it, is from or to an address.
func (f *frame) about(a netip.Addr) bool {
	return f.from == a || f.to == a || f.inner != nil && f.inner.about(a)
}

// parseFrame reads Ethernet, IPv4 or IPv6 without options, UDP, TCP, and VXLAN.
func parseFrame(b []byte) (*frame, bool) {
	if len(b) < 14 {
		return nil, false
	}
	f := &frame{dstMAC: b[0:6], srcMAC: b[6:12]}
	l4 := []byte(nil)
	switch p := b[14:]; binary.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_IP:
		if len(p) < 20 || len(p) < int(p[0]&15)*4 {
			return nil, false
		}
		f.from, f.to = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		f.proto, l4 = p[9], p[int(p[0]&15)*4:]
	case unix.ETH_P_IPV6:
		if len(p) < 40 {
			return nil, false
		}
		f.from, f.to = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		f.proto, l4 = p[6], p[40:]
	default:
		return nil, false
	}
	if (f.proto == unix.IPPROTO_UDP || f.proto == unix.IPPROTO_TCP) && len(l4) >= 8 {
		f.sport, f.dport = binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:])
	}
	if f.proto == unix.IPPROTO_UDP && f.dport == 4789 && len(l4) >= 16 {
		f.vni = binary.BigEndian.Uint32(l4[12:]) >> 8
		f.inner, _ = parseFrame(l4[16:])
	}
	return f, true
}

// capture is what goes in and out of one link.
type capture struct{ fd int }

// listenOn starts a capture in a network namespace.
func listenOn(t testing.TB, ns *os.File, link string) *capture {
	t.Helper()
	c := &capture{fd: -1}
	err := netspace.Do(ns, func() error {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00)
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
			unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}),
		)
	})
	t.Cleanup(func() {
		if c.fd >= 0 {
			unix.Close(c.fd)
		}
	})
	if err != nil {
		t.Fatalf("capture on %s: %v", link, err)
	}
	return c
}

// frames are those about an address since the last call.
func (c *capture) frames(t testing.TB, about netip.Addr) []*frame {
	t.Helper()
	var out []*frame
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return out
		}
		if err != nil {
			t.Fatalf("read captured frames: %v", err)
		}
		if f, ok := parseFrame(append([]byte(nil), buf[:n]...)); ok && f.about(about) {
			out = append(out, f)
		}
	}
}

// nodeAddress is a node's own address in a family.
func nodeAddress(l *labtest.Lab, node string, v6 bool) netip.Addr {
	for _, p := range l.Node(node).Addresses {
		if p.Addr().Is6() == v6 {
			return p.Addr()
		}
	}
	return netip.Addr{}
}
