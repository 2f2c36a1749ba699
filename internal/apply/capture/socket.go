package capture

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// receiveBuffer holds what comes while the reader is slow, in bytes.
const receiveBuffer = 4 << 20

// errEmpty says that no packet waits.
var errEmpty = errors.New("no packet waits")

// socket receives the frames of one link. The runtime waits for it, so a deadline ends a
// wait.
type socket struct {
	file *os.File
	// control is where the kernel writes what it knows about a frame.
	control []byte
}

// frame is what came.
type frame struct {
	at time.Time
	// n bytes were kept of length.
	n, length int
}

// open listens on a link of the calling thread's network namespace. Nothing passes before
// the filter is there.
func open(link string, program []bpf.RawInstruction) (*socket, error) {
	i, err := net.InterfaceByName(link)
	if err != nil {
		return nil, fmt.Errorf("capture on %s: %w", link, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("capture on %s: open a packet socket (it needs CAP_NET_RAW): %w", link, err)
	}
	if err := prepare(fd, i.Index, program); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("capture on %s: %w", link, err)
	}
	return &socket{file: os.NewFile(uintptr(fd), "capture on "+link), control: make([]byte, 256)}, nil
}

func prepare(fd, link int, program []bpf.RawInstruction) error {
	filter := make([]unix.SockFilter, len(program))
	for i, x := range program {
		filter[i] = unix.SockFilter{Code: x.Op, Jt: x.Jt, Jf: x.Jf, K: x.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return fmt.Errorf("the kernel refuses the filter: %w", err)
	}
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1},
		{unix.SOL_PACKET, unix.PACKET_AUXDATA, 1},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("prepare the socket: %w", err)
		}
	}
	// A smaller buffer loses packets sooner, and the loss is counted.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: link}); err != nil {
		return fmt.Errorf("listen on the link: %w", err)
	}
	return nil
}

func htons(v uint16) uint16 {
	b := [2]byte{byte(v >> 8), byte(v)}
	return *(*uint16)(unsafe.Pointer(&b))
}

// receive reads one frame into b. Unless it may wait, it returns errEmpty if there is none.
func (s *socket) receive(b []byte, wait bool) (frame, error) {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return frame{}, err
	}
	var f frame
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		n, control, _, _, err := unix.Recvmsg(int(fd), b, s.control, 0)
		switch {
		case err == nil:
			f, failed = s.describe(n, control), nil
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			failed = errEmpty
			return !wait
		default:
			failed = err
		}
		return true
	})
	if err != nil {
		return frame{}, err
	}
	return f, failed
}

// describe reads what the kernel says about a frame.
func (s *socket) describe(n, control int) frame {
	f := frame{n: n, length: n}
	messages, err := unix.ParseSocketControlMessage(s.control[:control])
	if err != nil {
		messages = nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})):
			ts := *(*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
			f.at = time.Unix(ts.Unix())
		case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 8:
			// struct tpacket_auxdata: status, length before it was cut, …
			f.length = max(n, int(*(*uint32)(unsafe.Pointer(&m.Data[4]))))
		}
	}
	if f.at.IsZero() {
		f.at = time.Now()
	}
	return f
}

// lost is how many frames found no room since it was asked last.
func (s *socket) lost() uint64 {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return 0
	}
	var n uint64
	_ = conn.Control(func(fd uintptr) {
		if stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			n = uint64(stats.Drops)
		}
	})
	return n
}
