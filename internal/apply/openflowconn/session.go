package openflowconn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/openflow"
)

// errSilent says that the switch did not answer a probe.
var errSilent = errors.New("the switch says nothing")

const (
	// maxQueued bounds what waits to be written: one call, and echoes.
	maxQueued = 64
	// chunk is how much is written at once: each shows that the switch is alive.
	chunk = 64 << 10
)

// session is one connection, owned by the goroutine of Run but for read and write.
type session struct {
	conn   *Conn
	socket net.Conn
	frames chan []byte
	out    chan []byte
	broken chan error
	stop   chan struct{}

	queue  [][]byte
	active *call
	state  State
	// heard is when something arrived or was taken, in nanoseconds of time.Since(began).
	began time.Time
	heard atomic.Int64
	asked bool
}

// alive notes that the switch has shown itself.
func (s *session) alive() { s.heard.Store(int64(time.Since(s.began))) }

// read hands the messages that arrive to the owner, one at a time.
func (s *session) read() {
	r := bufio.NewReaderSize(s.socket, chunk)
	for {
		frame, err := next(r)
		if err != nil {
			s.broken <- fmt.Errorf("read from the bridge: %w", err)
			return
		}
		select {
		case s.frames <- frame:
		case <-s.stop:
			return
		}
	}
}

// next reads one message, which is at most 64 KiB long.
func next(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(openflow.HeaderLen)
	if err != nil {
		return nil, err
	}
	h, err := openflow.ParseHeader(head)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, h.Length)
	_, err = io.ReadFull(r, frame)
	return frame, err
}

// write writes what the owner queued, so that the owner can read meanwhile: a switch
// that has answers for us takes nothing more before it is rid of them.
func (s *session) write() {
	for {
		select {
		case b := <-s.out:
			for len(b) > 0 {
				n, err := s.socket.Write(b[:min(len(b), chunk)])
				if err != nil {
					s.broken <- fmt.Errorf("write to the bridge: %w", err)
					return
				}
				s.alive()
				b = b[n:]
			}
		case <-s.stop:
			return
		}
	}
}

// serve shakes hands and then works until something breaks.
func (s *session) serve(ctx context.Context) error {
	s.queue = append(s.queue, openflow.AppendHello(nil, s.conn.reserve(1)))
	probe := time.NewTicker(max(s.conn.config.Probe/8, time.Millisecond))
	defer probe.Stop()
	for {
		var calls chan *call
		if s.state.Connected && s.active == nil {
			calls = s.conn.calls
		}
		var abandoned <-chan struct{}
		if s.active != nil {
			abandoned = s.active.ctx.Done()
		}
		var out chan []byte
		var head []byte
		if len(s.queue) > 0 {
			out, head = s.out, s.queue[0]
		}
		select {
		case frame := <-s.frames:
			if err := s.receive(frame); err != nil {
				return err
			}
		case out <- head:
			s.queue = s.queue[1:]
		case c := <-calls:
			s.active = c
			s.queue = append(s.queue, c.send)
			c.send = nil
		case <-abandoned:
			s.active.answer <- fmt.Errorf("wait for the switch: %w", s.active.ctx.Err())
			s.active = nil
		case <-probe.C:
			if err := s.probe(); err != nil {
				return err
			}
		case err := <-s.broken:
			return err
		case <-ctx.Done():
			return ErrClosed
		}
	}
}

// probe asks a silent switch and gives up on one that stays silent.
func (s *session) probe() error {
	idle := time.Since(s.began) - time.Duration(s.heard.Load())
	switch {
	case idle >= s.conn.config.Probe:
		return fmt.Errorf("%w for %s", errSilent, s.conn.config.Probe)
	case idle < s.conn.config.Probe/2 || s.asked:
		return nil
	}
	s.asked = true
	return s.enqueue(openflow.AppendEchoRequest(nil, s.conn.reserve(1), nil))
}

func (s *session) enqueue(b []byte) error {
	if len(s.queue) >= maxQueued {
		return fmt.Errorf("%w: it asks and does not read the answers", errSilent)
	}
	s.queue = append(s.queue, b)
	return nil
}

func (s *session) receive(frame []byte) error {
	s.alive()
	s.asked = false
	if isFlowUpdate(frame) {
		return s.flowUpdate(frame)
	}
	m, err := openflow.Decode(frame)
	if err != nil {
		return err
	}
	if e, ok := m.Body.(openflow.EchoRequest); ok {
		return s.enqueue(openflow.AppendEchoReply(nil, m.Header.XID, e.Data))
	}
	if p, ok := m.Body.(openflow.PortStatus); ok {
		s.conn.announce(p)
		return nil
	}
	if !s.state.Connected {
		return s.greeted(m)
	}
	if s.active == nil || m.Header.XID-s.active.first > s.active.last-s.active.first {
		return nil // nobody waits for it any more
	}
	if done, err := s.active.take(m); done || err != nil {
		s.active.answer <- err
		s.active = nil
	}
	return nil
}

// greeted takes a message of the handshake: hello, features, and the answer to the
// request to tell of changes.
func (s *session) greeted(m openflow.Message) error {
	switch body := m.Body.(type) {
	case openflow.Hello:
		if body.Versions&(1<<openflow.Version) == 0 {
			return fmt.Errorf("the bridge does not speak OpenFlow 1.5: its column protocols must have OpenFlow15")
		}
		return s.enqueue(openflow.AppendFeaturesRequest(nil, s.conn.reserve(1)))
	case openflow.FeaturesReply:
		s.state.DatapathID, s.state.Watching = body.DatapathID, true
		xid := s.conn.reserve(1)
		return s.enqueue(openflow.AppendBarrierRequest(appendWatchRequest(appendPortsRequest(nil, xid), xid), xid))
	case openflow.BarrierReply:
		s.connected()
	case openflow.Error:
		switch h, err := body.FailedHeader(); {
		case err == nil && h.Type == openflow.TypeMultipartRequest:
			s.state.Watching = false
		case err == nil && (h.Type == typeSetConfig || h.Type == typeSetAsync): // then it does not tell of ports
		default:
			return fmt.Errorf("shake hands with the bridge: %w", body)
		}
	}
	return nil
}

func (s *session) connected() {
	s.state.Connected = true
	s.conn.publish(s.state)
	s.conn.config.Logger.Info("connected to the bridge", "socket", s.conn.config.Socket, "datapath", fmt.Sprintf("%016x", s.state.DatapathID), "watching", s.state.Watching)
}
