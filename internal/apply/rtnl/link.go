package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// link is what we look at of a network device.
type link struct {
	index int
	name  string
	// kind is "veth", "vxlan", …; empty for hardware.
	kind string
	mac  packet.MAC
	mtu  int
	// group is 0 for nearly all links.
	group uint32
	up    bool
	// noARP is IFF_NOARP.
	noARP bool
	// peer is the index of a veth's other end, and peerNS the namespace's id in
	// this namespace, -1 for this one itself.
	peer, peerNS int
	vxlan        vxlan
}

// vxlan are the settings of a VXLAN device that matter to us.
type vxlan struct {
	// external devices take outer address and VNI from the packet's metadata.
	external, learning bool
	port               uint16
}

const (
	ifinfoLen = unix.SizeofIfInfomsg
	// skipStats is RTEXT_FILTER_SKIP_STATS.
	skipStats = 1 << 3
	// vethPeer is VETH_INFO_PEER.
	vethPeer = 1
)

func linkHeader(index int, flags, change uint32) message {
	m := make(message, ifinfoLen)
	binary.NativeEndian.PutUint32(m[4:], uint32(index))
	binary.NativeEndian.PutUint32(m[8:], flags)
	binary.NativeEndian.PutUint32(m[12:], change)
	return m
}

func parseLink(b []byte) (link, bool) {
	if len(b) < ifinfoLen || b[0] != unix.AF_UNSPEC {
		return link{}, false
	}
	flags := binary.NativeEndian.Uint32(b[8:])
	l := link{
		index: int(int32(binary.NativeEndian.Uint32(b[4:]))), peerNS: -1,
		up: flags&unix.IFF_UP != 0, noARP: flags&unix.IFF_NOARP != 0,
	}
	attributes(b[ifinfoLen:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.name = text(v)
		case unix.IFLA_ADDRESS:
			if len(v) == len(l.mac) {
				l.mac = packet.MAC(v)
			}
		case unix.IFLA_MTU:
			l.mtu = int(number(v))
		case unix.IFLA_GROUP:
			l.group = number(v)
		case unix.IFLA_LINK:
			l.peer = int(int32(number(v)))
		case unix.IFLA_LINK_NETNSID:
			l.peerNS = int(int32(number(v)))
		case unix.IFLA_LINKINFO:
			parseLinkInfo(v, &l)
		}
	})
	return l, l.name != ""
}

func parseLinkInfo(b []byte, l *link) {
	attributes(b, func(kind uint16, v []byte) {
		switch kind {
		case unix.IFLA_INFO_KIND:
			l.kind = text(v)
		case unix.IFLA_INFO_DATA:
			if l.kind != "vxlan" {
				return
			}
			attributes(v, func(kind uint16, v []byte) {
				switch {
				case kind == unix.IFLA_VXLAN_COLLECT_METADATA && len(v) > 0:
					l.vxlan.external = v[0] != 0
				case kind == unix.IFLA_VXLAN_LEARNING && len(v) > 0:
					l.vxlan.learning = v[0] != 0
				case kind == unix.IFLA_VXLAN_PORT && len(v) > 1:
					l.vxlan.port = binary.BigEndian.Uint16(v)
				}
			})
		}
	})
}

func (c *conn) links() (map[int]link, error) {
	m := linkHeader(0, 0, 0)
	m.addUint32(unix.IFLA_EXT_MASK, skipStats)
	answers, err := c.dump(unix.RTM_GETLINK, m)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	out := make(map[int]link, len(answers))
	for _, a := range answers {
		if l, ok := parseLink(a); ok {
			out[l.index] = l
		}
	}
	return out, nil
}

// link finds a link by its name.
func (c *conn) link(name string) (link, bool, error) {
	m := linkHeader(0, 0, 0)
	m.addString(unix.IFLA_IFNAME, name)
	m.addUint32(unix.IFLA_EXT_MASK, skipStats)
	answer, err := c.get(unix.RTM_GETLINK, m)
	if errors.Is(err, unix.ENODEV) {
		return link{}, false, nil
	}
	if err != nil {
		return link{}, false, fmt.Errorf("find link %s: %w", name, err)
	}
	l, ok := parseLink(answer)
	return l, ok, nil
}

// operUp is IF_OPER_UP (RFC 2863, linux/if.h).
const operUp = 6

// How often, and after what time each, peerSends asks a kernel that does not answer at once.
const (
	peerAsks     = 100
	peerAskAgain = time.Millisecond
)

// peerSends waits until the other end of a veth pair can send. When the second end of a
// pair is set up the first is told of its carrier, but drops what is sent until the kernel's
// link watch has given it its queue, which takes its time when many links come at once. To be
// asked for the link makes the kernel do that first (since 6.8); older ones show with the
// operational state that they have. It is no error if that does not come: the pod's own
// people may have set their end down.
func (c *conn) peerSends(l link) {
	if l.peer == 0 || l.peerNS < 0 {
		return
	}
	m := linkHeader(l.peer, 0, 0)
	m.addUint32(unix.IFLA_TARGET_NETNSID, uint32(l.peerNS))
	m.addUint32(unix.IFLA_EXT_MASK, skipStats)
	for range peerAsks {
		answer, err := c.get(unix.RTM_GETLINK, m)
		if err != nil || len(answer) < ifinfoLen || binary.NativeEndian.Uint32(answer[8:])&unix.IFF_UP == 0 {
			return
		}
		sends := false
		attributes(answer[ifinfoLen:], func(kind uint16, v []byte) {
			sends = sends || kind == unix.IFLA_OPERSTATE && len(v) > 0 && v[0] == operUp
		})
		if sends {
			return
		}
		again := time.NewTimer(peerAskAgain)
		<-again.C
	}
}

// setUp sets a link up or down.
func (c *conn) setUp(index int, up bool) error {
	flags := uint32(0)
	if up {
		flags = unix.IFF_UP
	}
	return c.change(linkRequest(linkHeader(index, flags, unix.IFF_UP)))
}

// linkRequest changes a link.
func linkRequest(m message) request { return request{unix.RTM_NEWLINK, 0, m} }

func (c *conn) setNoARP(index int) error {
	return c.do(unix.RTM_NEWLINK, 0, linkHeader(index, unix.IFF_NOARP, unix.IFF_NOARP))
}

func (c *conn) setMAC(index int, mac packet.MAC) error { return c.change(macRequest(index, mac)) }

func macRequest(index int, mac packet.MAC) request {
	m := linkHeader(index, 0, 0)
	m.add(unix.IFLA_ADDRESS, mac[:])
	return linkRequest(m)
}

func (c *conn) setMTU(index, mtu int) error { return c.change(mtuRequest(index, mtu)) }

func mtuRequest(index, mtu int) request {
	m := linkHeader(index, 0, 0)
	m.addUint32(unix.IFLA_MTU, uint32(mtu))
	return linkRequest(m)
}

// removeLink deletes a link; one that is gone already is no error. The kernel
// answers after some 18 ms.
func (c *conn) removeLink(index int) error {
	return gone(c.do(unix.RTM_DELLINK, 0, linkHeader(index, 0, 0)))
}

// setGroup puts a link into a group; one that is gone already is no error.
func (c *conn) setGroup(index int, group uint32) error {
	m := linkHeader(index, 0, 0)
	m.addUint32(unix.IFLA_GROUP, group)
	return gone(c.do(unix.RTM_NEWLINK, 0, m))
}

// removeGroup deletes all links of a group. It takes the kernel hardly longer than
// to delete one.
func (c *conn) removeGroup(group uint32) error {
	m := linkHeader(0, 0, 0)
	m.addUint32(unix.IFLA_GROUP, group)
	return gone(c.do(unix.RTM_DELLINK, 0, m))
}

// addPair makes the pair of a port: both ends down, with their final names,
// addresses and MTU, the pod's end in its namespace from the start. The host's end
// has no ARP: what a pod says in it would enter the node's neighbour table, which is
// one for all links, so that a pod could fill it.
func (c *conn) addPair(p linux.Port, pod *netns.NS) error {
	m := linkHeader(0, unix.IFF_NOARP, unix.IFF_NOARP)
	m.addString(unix.IFLA_IFNAME, p.HostName)
	m.add(unix.IFLA_ADDRESS, p.HostMAC[:])
	m.addUint32(unix.IFLA_MTU, uint32(p.MTU))
	m.oneQueue()
	m.nested(unix.IFLA_LINKINFO, func(m *message) {
		m.addString(unix.IFLA_INFO_KIND, "veth")
		m.nested(unix.IFLA_INFO_DATA, func(m *message) {
			m.nested(vethPeer, func(m *message) {
				*m = linkHeader(0, 0, 0)
				m.addString(unix.IFLA_IFNAME, p.Name)
				m.add(unix.IFLA_ADDRESS, p.MAC[:])
				m.addUint32(unix.IFLA_MTU, uint32(p.MTU))
				m.oneQueue()
				m.addUint32(unix.IFLA_NET_NS_FD, uint32(pod.FD()))
			})
		})
	})
	return c.do(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, m)
}

// oneQueue asks for the one queue per direction that an end of a pair uses. Otherwise
// the kernel makes one for each CPU, takes all but one back, and waits for every CPU
// to have noticed, with all other changes of links in the machine waiting behind.
func (m *message) oneQueue() {
	m.addUint32(unix.IFLA_NUM_TX_QUEUES, 1)
	m.addUint32(unix.IFLA_NUM_RX_QUEUES, 1)
}

// addTunnel makes the tunnel device, down.
func (c *conn) addTunnel(t linux.Tunnel) error {
	m := linkHeader(0, unix.IFF_NOARP, unix.IFF_NOARP)
	m.addString(unix.IFLA_IFNAME, t.Name)
	m.add(unix.IFLA_ADDRESS, t.MAC[:])
	m.addUint32(unix.IFLA_MTU, uint32(t.MTU))
	m.nested(unix.IFLA_LINKINFO, func(m *message) {
		m.addString(unix.IFLA_INFO_KIND, "vxlan")
		m.nested(unix.IFLA_INFO_DATA, func(m *message) {
			m.add(unix.IFLA_VXLAN_COLLECT_METADATA, []byte{1})
			m.add(unix.IFLA_VXLAN_LEARNING, []byte{0})
			m.add(unix.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, t.Port))
		})
	})
	return c.do(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, m)
}

// namespaceID is the number that this namespace knows another one by, -1 if it
// knows it by none.
func (c *conn) namespaceID(ns *netns.NS) (int, error) {
	m := make(message, 4) // struct rtgenmsg, padded
	m.addUint32(unix.NETNSA_FD, uint32(ns.FD()))
	answer, err := c.get(unix.RTM_GETNSID, m)
	if err != nil {
		return 0, fmt.Errorf("ask for the id of network namespace %s: %w", ns, err)
	}
	id := -1
	attributes(answer[min(4, len(answer)):], func(kind uint16, v []byte) {
		if kind == unix.NETNSA_NSID {
			id = int(int32(number(v)))
		}
	})
	return id, nil
}
