package rtnl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
)

// conn is one request socket of a network namespace. It is safe for concurrent
// use: requests follow one another.
type conn struct {
	mu  sync.Mutex
	fd  int
	seq uint32
	buf []byte
	// refuse, if not nil, may refuse a change instead of the kernel. For tests.
	refuse func() error
}

const (
	// answerTimeout is how long, in seconds, an answer of the kernel may take. Only a
	// kernel that hangs needs longer.
	answerTimeout = 30
	// ackSize holds any word of the kernel about a change, in bytes; answerSize any
	// datagram of a dump, which the kernel makes no larger than 32 KiB, and any object.
	ackSize    = 4 << 10
	answerSize = 64 << 10
)

// dial opens a socket in a namespace, and does there what also says, with the one
// visit.
func dial(ns *netns.NS, also func() error) (*conn, error) {
	var c *conn
	err := ns.Do(func() (err error) {
		if c, err = dialHere(); err != nil {
			return fmt.Errorf("talk to network namespace %s: %w", ns, err)
		}
		if also == nil {
			return nil
		}
		if err = also(); err != nil {
			c.close()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// dialHere opens a socket in the namespace of the thread.
func dialHere() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	tv := unix.Timeval{Sec: answerTimeout}
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	for _, option := range []int{
		unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK,
		unix.NETLINK_GET_STRICT_CHK, // the kernel filters dumps by what the request says (4.20 and later)
	} {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1))
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("prepare netlink socket: %w", err)
	}
	return &conn{fd: fd}, nil
}

func (c *conn) close() { unix.Close(c.fd) }

// request is one message to the kernel.
type request struct {
	kind, flags int
	body        message
}

// do sends a change and waits for the kernel's word.
func (c *conn) do(kind, flags int, m message) error {
	return c.change(request{kind, flags, m})
}

func (c *conn) change(r request) error {
	if errs := c.batch([]request{r}); errs != nil {
		return errs[0]
	}
	return nil
}

// batch sends changes, which the kernel makes one after the other whether one before has
// failed or not, and waits for its word. It returns nil, or what became of each.
func (c *conn) batch(rs []request) []error {
	if len(rs) == 0 {
		return nil
	}
	sent, refused := len(rs), error(nil)
	for i := 0; c.refuse != nil && refused == nil && i < len(rs); i++ {
		if refused = c.refuse(); refused != nil {
			sent = i
		}
	}
	var errs []error
	if sent > 0 {
		rs[sent-1].flags |= unix.NLM_F_ACK // of those before, the kernel tells what has failed
		_, errs = c.exchange(rs[:sent], ackSize)
	}
	if refused == nil {
		return errs
	}
	all := make([]error, len(rs))
	copy(all, errs)
	for i := sent; i < len(rs); i++ {
		all[i] = refused
	}
	return all
}

// get asks for one object.
func (c *conn) get(kind int, m message) ([]byte, error) {
	answers, errs := c.exchange([]request{{kind, 0, m}}, answerSize)
	if errs != nil {
		return nil, errs[0]
	}
	if len(answers) == 0 {
		return nil, errors.New("the kernel sent an empty answer")
	}
	return answers[0], nil
}

// dumpTries bounds how often a dump is repeated that changes interrupted.
const dumpTries = 10

var errDumpInterrupted = errors.New("changes interrupted the dump")

// dump asks for all objects. A dump that a change interrupted may lack some, and
// is done again.
func (c *conn) dump(kind int, m message) ([][]byte, error) {
	for try := 1; ; try++ {
		answers, errs := c.exchange([]request{{kind, unix.NLM_F_DUMP, m}}, answerSize)
		if errs == nil {
			return answers, nil
		}
		if !errors.Is(errs[0], errDumpInterrupted) || try == dumpTries {
			return answers, errs[0]
		}
	}
}

// exchange sends requests in one datagram, and receives, size bytes at most at a time,
// until the last one is answered. It returns the objects in the answers, and nil, or an
// error or nil for each request.
func (c *conn) exchange(rs []request, size int) (objects [][]byte, errs []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fail := func(i int, err error) {
		if errs == nil {
			errs = make([]error, len(rs))
		}
		errs[i] = err
	}
	first := c.seq + 1
	if err := c.send(rs); err != nil {
		for i := range rs {
			fail(i, err)
		}
		return nil, errs
	}
	if len(c.buf) < size {
		c.buf = make([]byte, size)
	}
	for ended := false; !ended; {
		messages, err := c.receive()
		if err != nil {
			for i := range rs {
				fail(i, err) // what became of it is not known
			}
			return objects, errs
		}
		for _, m := range messages {
			i := int(int32(m.Header.Seq - first))
			if i < 0 || i >= len(rs) || ended {
				continue // late, of a request that was given up
			}
			final := i == len(rs)-1
			interrupted := m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Header.Type {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				if err := verdict(m); err != nil {
					fail(i, err)
				}
				ended = final
			default:
				objects = append(objects, bytes.Clone(m.Data))
				ended = final && m.Header.Flags&unix.NLM_F_MULTI == 0
			}
			if interrupted && errs == nil {
				fail(i, errDumpInterrupted)
			}
		}
	}
	return objects, errs
}

// send numbers requests and hands them to the kernel, which has served them when it
// returns.
func (c *conn) send(rs []request) error {
	n := 0
	for _, r := range rs {
		n += unix.SizeofNlMsghdr + (len(r.body)+3)&^3
	}
	out := make([]byte, 0, n)
	for _, r := range rs {
		c.seq++
		out = binary.NativeEndian.AppendUint32(out, uint32(unix.SizeofNlMsghdr+len(r.body)))
		out = binary.NativeEndian.AppendUint16(out, uint16(r.kind))
		out = binary.NativeEndian.AppendUint16(out, uint16(r.flags|unix.NLM_F_REQUEST))
		out = binary.NativeEndian.AppendUint32(out, c.seq)
		out = binary.NativeEndian.AppendUint32(out, 0)
		out = append(out, r.body...)
		for len(out)%4 != 0 {
			out = append(out, 0)
		}
	}
	for {
		err := unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// receive reads one datagram of the kernel. The messages are valid until the next.
func (c *conn) receive() ([]syscall.NetlinkMessage, error) {
	for {
		n, from, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil, fmt.Errorf("the kernel does not answer within %d s", answerTimeout)
		case err != nil:
			return nil, err
		case n > len(c.buf):
			return nil, fmt.Errorf("an answer of the kernel has %d bytes, at most %d are expected", n, len(c.buf))
		}
		if k, ok := from.(*unix.SockaddrNetlink); ok && k.Pid == 0 {
			return syscall.ParseNetlinkMessage(c.buf[:n])
		}
	}
}

// verdict is the error that the kernel answers with, nil for success, and its words if
// it has any.
func verdict(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return nil // the end of a dump
	}
	code := int32(binary.NativeEndian.Uint32(m.Data))
	if code == 0 || m.Header.Type == unix.NLMSG_DONE && code > 0 {
		return nil
	}
	words := ""
	if rest := m.Data[4:]; m.Header.Type == unix.NLMSG_ERROR && m.Header.Flags&unix.NLM_F_ACK_TLVS != 0 && len(rest) >= unix.SizeofNlMsghdr {
		attributes(rest[unix.SizeofNlMsghdr:], func(kind uint16, v []byte) {
			if kind == unix.NLMSGERR_ATTR_MSG {
				words = text(v)
			}
		})
	}
	if words != "" {
		return fmt.Errorf("%w: %s", unix.Errno(-code), words)
	}
	return unix.Errno(-code)
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
