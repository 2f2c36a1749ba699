package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

const (
	// AtOnce is how many probes a machine should have under way, all namespaces
	// together: enough to keep it busy, few enough that its own load does not look
	// like a lost packet.
	AtOnce = 8
	// A probe counts as under way until it is answered, or for as long as several
	// answers take, within these bounds: one that is dropped costs nothing while it
	// waits for its timeout.
	minSettling = 4 * time.Millisecond
	maxSettling = 100 * time.Millisecond
	// visit is how many sockets are made in one visit to a namespace.
	visit = 64
	// maxOpen bounds the sockets that are open.
	maxOpen = 8192
)

// Question is one probe.
type Question struct {
	Protocol string         `json:"protocol"`
	To       netip.AddrPort `json:"to"`
	// Timeout is how long the answer may take.
	Timeout time.Duration `json:"timeout"`
}

// Answer is what a probe found.
type Answer struct {
	// Connected: the handshake of TCP or SCTP succeeded, or UDP's datagram was answered.
	Connected bool `json:"connected"`
	// Server and Seen are the server's name and the client's address as the server
	// saw it, if a server of this package answered.
	Server string         `json:"server,omitempty"`
	Seen   netip.AddrPort `json:"seen,omitzero"`
	// Err says why there is no connection.
	Err string `json:"err,omitempty"`
}

// Ask asks every question from inside the network namespace ns, and returns the
// answers in the order of the questions. Several calls may share slots.
func Ask(ctx context.Context, ns *os.File, questions []Question, slots *Slots) []Answer {
	answers := make([]Answer, len(questions))
	var wg sync.WaitGroup
	for start := 0; start < len(questions); start += visit {
		batch := questions[start:min(start+visit, len(questions))]
		sockets := openSockets(ns, batch)
		for i := range batch {
			done, err := slots.take(ctx)
			if err != nil {
				sockets[i].close()
				answers[start+i] = Answer{Err: err.Error()}
				continue
			}
			wg.Go(func() {
				a := ask(ctx, sockets[i], batch[i])
				answers[start+i] = a
				done(a.Connected)
			})
		}
	}
	wg.Wait()
	return answers
}

// Slots bounds what is under way.
type Slots struct {
	starting, open chan struct{}

	mu sync.Mutex
	// usual is a moving average of how long answers take.
	usual time.Duration
}

// NewSlots makes the bounds that several Asks share: up to starting probes, at least
// one, are under way at the same time.
func NewSlots(starting int) *Slots {
	return &Slots{starting: make(chan struct{}, max(1, starting)), open: make(chan struct{}, maxOpen)}
}

// take waits for a slot. It is free again when done is called or when the probe has
// settled.
func (s *Slots) take(ctx context.Context) (done func(answered bool), err error) {
	for _, c := range []chan struct{}{s.open, s.starting} {
		select {
		case c <- struct{}{}:
		case <-ctx.Done():
			if c == s.starting {
				<-s.open
			}
			return nil, ctx.Err()
		}
	}
	began := time.Now()
	settled := sync.OnceFunc(func() { <-s.starting })
	timer := time.AfterFunc(s.settling(), settled)
	return func(answered bool) {
		timer.Stop()
		settled()
		<-s.open
		if answered {
			s.learn(time.Since(began))
		}
	}, nil
}

// settling is how long a probe may be under way: four times what is usual.
func (s *Slots) settling() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(minSettling, min(4*s.usual, maxSettling))
}

func (s *Slots) learn(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usual += (min(took, maxSettling) - s.usual) / 8
}

// socket is one made inside a namespace, not yet connected.
type socket struct {
	file *os.File
	err  error
}

func (s socket) close() {
	if s.file != nil {
		s.file.Close()
	}
}

// openSockets makes the sockets of a batch in one visit to the namespace.
func openSockets(ns *os.File, batch []Question) []socket {
	sockets := make([]socket, len(batch))
	err := netspace.Do(ns, func() error {
		for i, q := range batch {
			family, kind, protocol := unix.AF_INET6, unix.SOCK_STREAM, 0
			if q.To.Addr().Is4() {
				family = unix.AF_INET
			}
			switch q.Protocol {
			case "UDP":
				kind = unix.SOCK_DGRAM
			case "SCTP":
				protocol = unix.IPPROTO_SCTP
			}
			fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
			if err != nil {
				sockets[i].err = fmt.Errorf("open a socket: %w", err)
				continue
			}
			sockets[i].file = os.NewFile(uintptr(fd), q.Protocol+" "+q.To.String())
		}
		return nil
	})
	if err != nil {
		for i := range sockets {
			sockets[i].close()
			sockets[i] = socket{err: err}
		}
	}
	return sockets
}

func ask(ctx context.Context, s socket, q Question) Answer {
	if s.err != nil {
		return Answer{Err: s.err.Error()}
	}
	defer s.file.Close()
	stop := context.AfterFunc(ctx, func() { s.file.Close() })
	defer stop()
	if err := s.file.SetDeadline(time.Now().Add(q.Timeout)); err != nil {
		return Answer{Err: err.Error()}
	}
	if err := connect(s.file, q.To); err != nil {
		return Answer{Err: reason(q, err)}
	}
	a := Answer{Connected: q.Protocol != "UDP"}
	_, err := s.file.WriteString("who are you?\n")
	var line string
	if err == nil {
		line, err = readLine(s.file)
	}
	if err != nil {
		a.Err = reason(q, err)
		return a
	}
	a.Connected = true
	server, seen, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	if from, err := netip.ParseAddrPort(seen); ok && err == nil {
		a.Server, a.Seen = server, from
	}
	return a
}

// readLine reads up to a line's end, a datagram's end or maxLine bytes.
func readLine(f *os.File) (string, error) {
	buffer := make([]byte, maxLine)
	n := 0
	for n < len(buffer) {
		m, err := f.Read(buffer[n:])
		n += m
		if n > 0 && (err != nil || strings.Contains(string(buffer[:n]), "\n")) {
			return string(buffer[:n]), nil
		}
		if err != nil {
			return "", err
		}
	}
	return string(buffer[:n]), nil
}

// connect connects a non-blocking socket; asking again tells how an attempt under
// way stands.
func connect(f *os.File, to netip.AddrPort) error {
	var address unix.Sockaddr = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	if to.Addr().Is4() {
		address = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		result = unix.Connect(int(fd), address)
		switch {
		case errors.Is(result, unix.EINPROGRESS), errors.Is(result, unix.EALREADY), errors.Is(result, unix.EINTR):
			return false
		case errors.Is(result, unix.EISCONN):
			result = nil
		}
		return true
	})
	return errors.Join(err, result)
}

func reason(q Question, err error) string {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer within " + q.Timeout.String()
	case errors.Is(err, os.ErrClosed):
		return "ended before an answer came"
	case errors.Is(err, unix.ECONNREFUSED):
		return "connection refused"
	}
	return err.Error()
}
