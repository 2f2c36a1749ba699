package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	msgHeader = 16 // struct nlmsghdr
	genHeader = 4  // struct nfgenmsg

	// recvSize holds any dump message: the kernel fills at most 32 KiB.
	recvSize = 64 << 10
	// sendBuffer is the least send buffer; a batch must fit it whole.
	sendBuffer = 4 << 20
	recvBuffer = 8 << 20

	// dumpTries bounds the repeats of a dump that the kernel says was disturbed: a dump takes
	// a millisecond, and somebody may be writing without a pause.
	dumpTries = 256
)

// message is one received netlink message.
type message struct {
	typ, flags uint16
	seq, port  uint32
	// body follows the netlink header.
	body []byte
}

// nftType is the NFT_MSG_* of a message of the nf_tables subsystem, or -1.
func (m message) nftType() int {
	if m.typ>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.body) < genHeader {
		return -1
	}
	return int(m.typ & 0xff)
}

// attributes is what follows struct nfgenmsg.
func (m message) attributes() []byte { return m.body[min(genHeader, len(m.body)):] }

// family is the address family of struct nfgenmsg.
func (m message) family() uint8 {
	if len(m.body) == 0 {
		return 0
	}
	return m.body[0]
}

// socket is a netlink socket of the netfilter family. Requests are served while
// they are sent, so that every answer lies ready when the send returns: nothing
// ever waits for the kernel, except receiving events.
type socket struct {
	file *os.File
	port uint32
	seq  atomic.Uint32
	sent int // size of the send buffer
	// buf is what receive reads into.
	buf []byte
}

// openSocket opens a socket in a network namespace (a path below /proc or
// /var/run/netns; "" is the current one), subscribed to groups. Only events are waited
// for: the runtime does not poll a socket without groups, which would wake a thread for
// every answer.
func openSocket(netns string, groups uint32) (*socket, error) {
	kind := unix.SOCK_RAW | unix.SOCK_CLOEXEC
	if groups != 0 {
		kind |= unix.SOCK_NONBLOCK
	}
	var s *socket
	err := inNetNS(netns, func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_NETFILTER)
		if err != nil {
			return fmt.Errorf("open netfilter netlink socket: %w", err)
		}
		s, err = newSocket(fd, groups)
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		return nil
	})
	return s, err
}

func newSocket(fd int, groups uint32) (*socket, error) {
	for opt, value := range map[int]int{unix.NETLINK_CAP_ACK: 1, unix.NETLINK_EXT_ACK: 1} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, opt, value); err != nil {
			return nil, fmt.Errorf("set netlink option %d: %w", opt, err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, recvBuffer); err != nil {
		return nil, fmt.Errorf("set netlink receive buffer (CAP_NET_ADMIN is needed): %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, fmt.Errorf("bind netlink socket: %w", err)
	}
	addr, err := unix.Getsockname(fd)
	if err != nil {
		return nil, fmt.Errorf("read netlink port: %w", err)
	}
	nl, ok := addr.(*unix.SockaddrNetlink)
	if !ok {
		return nil, fmt.Errorf("read netlink port: unexpected address %T", addr)
	}
	return &socket{file: os.NewFile(uintptr(fd), "nfnetlink"), port: nl.Pid}, nil
}

// inNetNS runs fn on a thread of its own inside a network namespace. The thread
// ends with it, so nothing has to be put back.
func inNetNS(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer func() { _ = ns.Close() }()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		done <- fn()
	}()
	return <-done
}

func (s *socket) close() error { return s.file.Close() }

// control runs fn with the file descriptor.
func (s *socket) control(fn func(fd int) error) error {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// send hands one or more messages to the kernel in one call.
func (s *socket) send(b []byte) error {
	return s.control(func(fd int) error {
		if want := max(len(b)+4096, sendBuffer); want > s.sent {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, want); err != nil {
				return fmt.Errorf("set netlink send buffer to %d bytes: %w", want, err)
			}
			s.sent = want
		}
		for {
			err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
			if err != unix.EINTR {
				return err
			}
		}
	})
}

// receive reads what lies ready and calls fn for each message, which is valid until the
// next; it returns when nothing is left. It is not to be called twice at once.
func (s *socket) receive(fn func(message) error) error {
	return s.control(func(fd int) error {
		if s.buf == nil {
			s.buf = make([]byte, recvSize)
		}
		for {
			n, from, err := unix.Recvfrom(fd, s.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
			switch {
			case err == unix.EINTR:
				continue
			case err == unix.EAGAIN:
				return nil
			case err != nil:
				return fmt.Errorf("receive from netlink: %w", err)
			case n > len(s.buf):
				return fmt.Errorf("receive from netlink: message of %d bytes, at most %d expected", n, len(s.buf))
			}
			if nl, ok := from.(*unix.SockaddrNetlink); !ok || nl.Pid != 0 {
				continue // not from the kernel
			}
			if err := messages(s.buf[:n], fn); err != nil {
				return err
			}
		}
	})
}

// wait blocks until an event can be read or ctx ends, then reads one datagram
// and calls fn for each of its messages.
func (s *socket) wait(ctx context.Context, buf []byte, fn func(message) error) error {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		for inner = unix.EINTR; inner == unix.EINTR; {
			n, _, inner = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		}
		return inner != unix.EAGAIN
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case inner != nil:
		return inner
	case n > len(buf):
		return unix.ENOBUFS // an event cut off is an event lost
	}
	return messages(buf[:n], fn)
}

// messages calls fn for each message of a datagram.
func messages(b []byte, fn func(message) error) error {
	for len(b) >= msgHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < msgHeader || size > len(b) {
			return errors.New("truncated netlink message")
		}
		m := message{
			typ:   binary.NativeEndian.Uint16(b[4:]),
			flags: binary.NativeEndian.Uint16(b[6:]),
			seq:   binary.NativeEndian.Uint32(b[8:]),
			port:  binary.NativeEndian.Uint32(b[12:]),
			body:  b[msgHeader:size],
		}
		if err := fn(m); err != nil {
			return err
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// appendMessage appends one message of the nf_tables subsystem.
func appendMessage(b []byte, typ, flags uint16, seq uint32, family uint8, fill func(*attrs)) []byte {
	return appendRaw(b, unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags, seq, family, 0, fill)
}

func appendRaw(b []byte, typ, flags uint16, seq uint32, family uint8, resource uint16, fill func(*attrs)) []byte {
	start := len(b)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, family, unix.NFNETLINK_V0)
	b = binary.BigEndian.AppendUint16(b, resource)
	if fill != nil {
		// Attributes align to the message, and every message here has a size
		// that is a multiple of four.
		a := attrs{b: b}
		fill(&a)
		b = a.b
	}
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

// errDumpInterrupted says that a dump saw two generations of the ruleset.
var errDumpInterrupted = errors.New("the ruleset changed while it was read")

// dump asks for every object of a kind and calls fn for each message of type
// answer. Where the ruleset changes meanwhile it begins anew; start is called
// before each try.
func (s *socket) dump(ctx context.Context, typ, answer int, fill func(*attrs), start func(), fn func(message) error) error {
	for range dumpTries {
		if err := ctx.Err(); err != nil {
			return err
		}
		start()
		err := s.get(uint16(typ), unix.NLM_F_DUMP, answer, fill, fn)
		if !errors.Is(err, errDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return fmt.Errorf("read nftables: %w %d times", errDumpInterrupted, dumpTries)
}

// get sends one request and calls fn for each message of type answer.
func (s *socket) get(typ, flags uint16, answer int, fill func(*attrs), fn func(message) error) error {
	seq := s.seq.Add(1)
	if err := s.send(appendMessage(nil, typ, flags, seq, unix.NFPROTO_INET, fill)); err != nil {
		return fmt.Errorf("ask nftables: %w", err)
	}
	interrupted := false
	var failed error
	err := s.receive(func(m message) error {
		if m.seq != seq || failed != nil {
			return nil // the rest is read and dropped
		}
		interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
		switch {
		case m.typ == unix.NLMSG_ERROR || m.typ == unix.NLMSG_DONE:
			if code := errorCode(m); code != 0 {
				failed = code
			}
		case m.nftType() == answer:
			failed = fn(m)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case interrupted:
		return errDumpInterrupted
	}
	return failed
}

// errorCode is the error of an NLMSG_ERROR or NLMSG_DONE; zero is success.
func errorCode(m message) unix.Errno {
	if len(m.body) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.body)))
}
