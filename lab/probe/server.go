package probe

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

const (
	// firstLine is how long a TCP server waits for a client to speak first.
	firstLine = time.Second
	// idle ends a TCP connection on which nobody speaks.
	idle = 10 * time.Minute
	// maxLine bounds a line of a client, in bytes.
	maxLine = 4096
)

// Port is what a server listens on.
type Port struct {
	// Protocol is "TCP", "UDP" or, where HasSCTP says so, "SCTP".
	Protocol string `json:"protocol"`
	Number   uint16 `json:"number"`
}

// String is "80/TCP".
func (p Port) String() string { return fmt.Sprintf("%d/%s", p.Number, p.Protocol) }

// Server answers on the ports of one network namespace.
type Server struct {
	name  string
	wg    sync.WaitGroup
	mu    sync.Mutex
	ended bool
	open  map[io.Closer]struct{}
}

// Serve listens on all addresses of the network namespace ns (nil: the program's
// own) until Close. name is what the answers say.
func Serve(ns *os.File, name string, ports []Port) (*Server, error) {
	s := &Server{name: name, open: map[io.Closer]struct{}{}}
	err := netspace.Do(ns, func() error {
		for _, p := range ports {
			if err := s.listen(p); err != nil {
				return fmt.Errorf("listen on port %s: %w", p, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// listen makes one socket on the calling thread and serves it.
func (s *Server) listen(p Port) error {
	address := net.JoinHostPort("", fmt.Sprint(p.Number))
	switch p.Protocol {
	case "TCP":
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		s.track(l)
		s.wg.Go(func() { s.accept(l) })
	case "UDP":
		lc := net.ListenConfig{Control: packetInfo}
		pc, err := lc.ListenPacket(context.Background(), "udp", address)
		if err != nil {
			return err
		}
		c := pc.(*net.UDPConn)
		s.track(c)
		s.wg.Go(func() { s.answerDatagrams(c) })
	case "SCTP":
		l, err := listenSCTP(p.Number)
		if err != nil {
			return err
		}
		s.track(l)
		s.wg.Go(func() { s.accept(l) })
	default:
		return fmt.Errorf("the built-in server speaks TCP, UDP and SCTP, not %s", p.Protocol)
	}
	return nil
}

// HasSCTP is nil if the kernel has SCTP, and says what is missing if not.
func HasSCTP() error {
	fd, err := socketSCTP()
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func socketSCTP() (int, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return -1, fmt.Errorf("open a socket of SCTP: %w", err)
	}
	return fd, nil
}

// listenSCTP makes a one-to-one socket (RFC 6458, section 4) for both IP families. It
// is used like one of TCP, and package net takes it for that.
func listenSCTP(port uint16) (net.Listener, error) {
	fd, err := socketSCTP()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "SCTP")
	defer f.Close()
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Port: int(port)}); err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return nil, err
	}
	return net.FileListener(f)
}

// packetInfo asks for the address that a datagram was sent to, so that the answer
// leaves from it.
func packetInfo(network, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) {
		if network == "udp4" {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
			return
		}
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	return errors.Join(err, set)
}

// track remembers c for Close, or closes it if Close was called.
func (s *Server) track(c io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		c.Close()
		return false
	}
	s.open[c] = struct{}{}
	return true
}

func (s *Server) forget(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	c.Close()
}

// Close ends every listener and connection and waits for them.
func (s *Server) Close() error {
	s.mu.Lock()
	s.ended = true
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

func (s *Server) accept(l net.Listener) {
	defer s.forget(l)
	for {
		c, err := l.Accept()
		if err != nil {
			var passing interface{ Temporary() bool }
			if errors.As(err, &passing) && passing.Temporary() {
				continue
			}
			return
		}
		if !s.track(c) {
			return
		}
		s.wg.Go(func() {
			defer s.forget(c)
			s.converse(c.(*net.TCPConn))
		})
	}
}

// answer is the line for a client.
func (s *Server) answer(client netip.AddrPort) string {
	return s.name + " " + netip.AddrPortFrom(client.Addr().Unmap(), client.Port()).String() + "\n"
}

// converse speaks with one TCP client until one of both ends it.
func (s *Server) converse(c *net.TCPConn) {
	client, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return
	}
	line := s.answer(client)
	in := bufio.NewReaderSize(c, maxLine)
	wait := firstLine
	for {
		if c.SetReadDeadline(time.Now().Add(wait)) != nil {
			return
		}
		said, err := in.ReadSlice('\n')
		switch {
		case wait == firstLine && errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return
		case wait == firstLine && speaksHTTP(string(said)):
			// The client's header is of no interest; half-closing lets it read the answer.
			fmt.Fprintf(c, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(line), line)
			if c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(firstLine)) == nil {
				_, _ = io.Copy(io.Discard, in)
			}
			return
		}
		wait = idle
		if _, err := io.WriteString(c, line); err != nil {
			return
		}
	}
}

func speaksHTTP(line string) bool {
	return strings.Contains(line, " HTTP/1.")
}

func (s *Server) answerDatagrams(c *net.UDPConn) {
	defer s.forget(c)
	data, control := make([]byte, maxLine), make([]byte, 256)
	for {
		_, n, _, client, err := c.ReadMsgUDPAddrPort(data, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for an earlier answer
		}
		from, err := answerFrom(control[:n])
		if err != nil {
			continue
		}
		_, _, err = c.WriteMsgUDPAddrPort([]byte(s.answer(client)), from, client)
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// answerFrom turns the control message that came with a datagram into one that
// makes the answer leave from the address that the datagram was sent to, over
// whichever interface the route says.
func answerFrom(control []byte) ([]byte, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			// ipi_ifindex, ipi_spec_dst, ipi_addr
			info := unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[8:12])}
			return unix.PktInfo4(&info), nil
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			info := unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])}
			if netip.AddrFrom16(info.Addr).IsLinkLocalUnicast() {
				info.Ifindex = binary.NativeEndian.Uint32(m.Data[16:20])
			}
			return unix.PktInfo6(&info), nil
		}
	}
	return nil, nil
}
