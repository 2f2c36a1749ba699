package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
)

// conn is one request socket of a network namespace. It is safe for concurrent
// use: requests follow one another.
type conn struct {
	sockets map[int]*nl.SocketHandle
	// refuse, if not nil, may refuse a change instead of the kernel. For tests.
	refuse func() error
}

// answerTimeout is how long, in seconds, an answer of the kernel may take. Only a
// kernel that hangs needs longer.
const answerTimeout = 30

func dial(ns *netns.NS) (*conn, error) {
	var c *conn
	err := ns.Do(func() (err error) {
		c, err = dialHere()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("talk to network namespace %s: %w", ns, err)
	}
	return c, nil
}

// dialHere opens a socket in the namespace of the thread.
func dialHere() (*conn, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	tv := unix.Timeval{Sec: answerTimeout}
	err = errors.Join(
		s.SetSendTimeout(&tv), s.SetReceiveTimeout(&tv), s.SetExtAck(true),
		// The kernel filters dumps by what the request says (4.20 and later).
		unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1),
	)
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("prepare netlink socket: %w", err)
	}
	return &conn{sockets: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

func (c *conn) close() { c.sockets[unix.NETLINK_ROUTE].Close() }

func (c *conn) request(kind, flags int, m message) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Sockets = c.sockets
	r.AddRawData(m)
	return r
}

// do sends a change and waits for the kernel's word.
func (c *conn) do(kind, flags int, m message) error {
	if c.refuse != nil {
		if err := c.refuse(); err != nil {
			return err
		}
	}
	_, err := c.request(kind, flags|unix.NLM_F_ACK, m).Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// get asks for one object.
func (c *conn) get(kind int, m message) ([]byte, error) {
	answers, err := c.request(kind, 0, m).Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, err
	}
	if len(answers) == 0 {
		return nil, errors.New("the kernel sent an empty answer")
	}
	return answers[0], nil
}

// dumpTries bounds how often a dump is repeated that changes interrupted.
const dumpTries = 10

// dump asks for all objects. A dump that a change interrupted may lack some, and
// is done again.
func (c *conn) dump(kind int, m message) ([][]byte, error) {
	for try := 1; ; try++ {
		answers, err := c.request(kind, unix.NLM_F_DUMP, m).Execute(unix.NETLINK_ROUTE, 0)
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == dumpTries {
			return answers, err
		}
	}
}

// message is the body of a request: a fixed header and attributes.
type message []byte

// add appends an attribute.
func (m *message) add(kind uint16, value []byte) {
	var head [4]byte
	binary.NativeEndian.PutUint16(head[0:], uint16(4+len(value)))
	binary.NativeEndian.PutUint16(head[2:], kind)
	*m = append(append(*m, head[:]...), value...)
	for len(*m)%4 != 0 {
		*m = append(*m, 0)
	}
}

func (m *message) addUint32(kind uint16, v uint32) {
	m.add(kind, binary.NativeEndian.AppendUint32(nil, v))
}

func (m *message) addString(kind uint16, s string) { m.add(kind, append([]byte(s), 0)) }

func (m *message) addAddr(kind uint16, a netip.Addr) { m.add(kind, a.AsSlice()) }

// nested appends an attribute that fill writes the value of.
func (m *message) nested(kind uint16, fill func(*message)) {
	var inner message
	fill(&inner)
	m.add(kind, inner)
}

// attributes calls f for each attribute in b. What is cut off is left out.
func attributes(b []byte, f func(kind uint16, value []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

func text(b []byte) string { return unix.ByteSliceToString(b) }

func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func address(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
