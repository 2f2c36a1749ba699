package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	msgHeader = 16 // struct nlmsghdr
	genHeader = 4  // struct nfgenmsg

	// Messages of ctnetlink.
	msgNew    = 0
	msgGet    = 1
	msgDelete = 2
	msgStats  = 5

	// recvSize holds any dump message: the kernel fills at most 32 KiB.
	recvSize = 64 << 10
	// kernelWait is in seconds: the kernel answers at once, so a longer silence is an
	// answer that was lost.
	kernelWait = 10
)

// errInterrupted says that a dump may be incomplete.
var errInterrupted = errors.New("the entries changed while they were read")

type socket struct {
	fd  int
	seq uint32
	buf []byte
}

// openSocket opens a socket in the network namespace of the calling thread.
func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	err = errors.Join(
		// An error comes without the request that it is about.
		os.NewSyscallError("setsockopt NETLINK_CAP_ACK", unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)),
		os.NewSyscallError("setsockopt SO_RCVTIMEO", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: kernelWait})),
		os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})),
	)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &socket{fd: fd, buf: make([]byte, recvSize)}, nil
}

func (s *socket) close() error {
	fd := s.fd
	s.fd = -1 // the number will be another file's
	return os.NewSyscallError("close", unix.Close(fd))
}

func (s *socket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// message is one received netlink message.
type message struct {
	typ, flags uint16
	seq        uint32
	// body follows the netlink header.
	body []byte
}

// receive reads one datagram and calls fn for each of its messages.
func (s *socket) receive(fn func(message)) error {
	n, from, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_TRUNC)
	switch {
	case err == unix.EINTR:
		return nil
	case err == unix.EAGAIN:
		return fmt.Errorf("the kernel did not answer within %d s", kernelWait)
	case err == unix.ENOBUFS:
		return errInterrupted // messages were lost
	case err != nil:
		return os.NewSyscallError("recvfrom", err)
	case n > len(s.buf):
		return fmt.Errorf("netlink message of %d bytes, at most %d expected", n, len(s.buf))
	}
	if nl, ok := from.(*unix.SockaddrNetlink); !ok || nl.Pid != 0 {
		return nil // not from the kernel
	}
	return messages(s.buf[:n], fn)
}

// messages calls fn for each message of a datagram.
func messages(b []byte, fn func(message)) error {
	for len(b) >= msgHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < msgHeader || size > len(b) {
			return errors.New("truncated netlink message")
		}
		fn(message{
			typ: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]),
			seq: binary.NativeEndian.Uint32(b[8:]), body: b[msgHeader:size],
		})
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// dump calls fn with the attributes of each entry, as the kernel hands them out: it
// prepares the next ones when these are read. They are valid until fn returns. The
// error is errInterrupted if some may be missing.
func (s *socket) dump(ctx context.Context, f filter, fn func([]byte)) error {
	s.seq++
	request := appendMessage(nil, unix.NFNL_SUBSYS_CTNETLINK<<8|msgGet, unix.NLM_F_DUMP, s.seq, f.family(), f.append)
	if err := s.send(request); err != nil {
		return err
	}
	var failed error
	for done := false; !done; {
		err := s.receive(func(m message) {
			if m.seq != s.seq {
				return // of a dump that was given up
			}
			if m.flags&unix.NLM_F_DUMP_INTR != 0 {
				failed = errInterrupted
			}
			switch m.typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done = true
				switch code := errorCode(m); code {
				case 0:
				case unix.EINTR, unix.EAGAIN, unix.ENOBUFS:
					failed = errInterrupted
				default:
					failed = code
				}
			case unix.NFNL_SUBSYS_CTNETLINK<<8 | msgNew:
				// A cancelled caller wants nothing more; the dump is read to its end, so
				// that the socket can be used again.
				if ctx.Err() == nil && len(m.body) >= genHeader {
					fn(m.body[genHeader:])
				}
			}
		})
		if err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return failed
}

// count asks for the number of entries of the namespace.
func (s *socket) count() (n int, err error) {
	s.seq++
	if err := s.send(appendMessage(nil, unix.NFNL_SUBSYS_CTNETLINK<<8|msgStats, unix.NLM_F_ACK, s.seq, unix.AF_UNSPEC, nil)); err != nil {
		return 0, err
	}
	var failed error
	for done := false; !done && err == nil; {
		err = s.receive(func(m message) {
			switch {
			case m.seq != s.seq:
			case m.typ == unix.NLMSG_ERROR:
				done = true
				if code := errorCode(m); code != 0 {
					failed = code
				}
			case len(m.body) >= genHeader:
				attributes(m.body[genHeader:], func(typ uint16, v []byte) bool {
					if typ == ctStatsEntries && len(v) == 4 {
						n = int(binary.BigEndian.Uint32(v))
					}
					return true
				})
			}
		})
	}
	return n, errors.Join(err, failed)
}

// writer sends changes to the kernel, many in one call. The kernel has done them when
// the call returns; it answers those that failed.
type writer struct {
	*socket
	result  *Result
	batch   []byte
	first   uint32 // sequence number of the batch's first change
	pending int
	failed  int
	errs    []error
}

// batchSize bounds the changes of one call: the answers to all of them fit the receive
// buffer of a socket.
const batchSize = 128

func (w *writer) add(e entry, d Decision) {
	if !d.Delete && d.Mask == 0 {
		return
	}
	if w.pending == 0 {
		w.first = w.seq + 1
	}
	w.seq++
	w.pending++
	w.batch = appendChange(w.batch, w.seq, e, d)
	if w.pending == batchSize {
		w.flush()
	}
}

// flush sends the batch. A request that the kernel always answers, and that changes
// nothing, ends it.
func (w *writer) flush() {
	if w.pending == 0 {
		return
	}
	changes := w.pending
	w.seq++
	last := w.seq
	batch := appendMessage(w.batch, unix.NLMSG_NOOP, unix.NLM_F_ACK, last, unix.AF_UNSPEC, nil)
	w.batch, w.pending = w.batch[:0], 0
	err := w.send(batch)
	for done := err != nil; !done && err == nil; {
		err = w.receive(func(m message) {
			if m.typ != unix.NLMSG_ERROR || m.seq-w.first > last-w.first {
				return
			}
			done = done || m.seq == last
			if code := errorCode(m); code == unix.ENOENT {
				changes--
				w.result.Gone++
			} else if code != 0 {
				changes--
				w.fail(code)
			}
		})
	}
	if err != nil {
		changes = 0
		w.fail(err)
	}
	w.result.Changed += changes
}

// fail keeps the first errors: one cause has the same for all.
func (w *writer) fail(err error) {
	const most = 3
	if w.failed++; w.failed <= most {
		w.errs = append(w.errs, err)
	}
}

func (w *writer) err() error {
	if w.failed == 0 {
		return nil
	}
	return fmt.Errorf("change conntrack entries: %d times: %w", w.failed, errors.Join(w.errs...))
}

func appendMessage(b []byte, typ, flags uint16, seq uint32, family uint8, attrs func([]byte) []byte) []byte {
	start := len(b)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, family, unix.NFNETLINK_V0, 0, 0)
	if attrs != nil {
		b = attrs(b)
	}
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

// errorCode is the error of an NLMSG_ERROR or NLMSG_DONE; zero is success.
func errorCode(m message) unix.Errno {
	if len(m.body) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.body)))
}
