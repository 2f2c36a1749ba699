package openflowconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/reconnect"
	"github.com/fairlead-sdn/fairlead/internal/openflow"
)

// ErrDisconnected says that there is no connection to the bridge, or that it broke.
var ErrDisconnected = errors.New("not connected to the bridge")

// ErrUncertain says that a change was handed to the switch and that its answer was not
// waited for or did not come: it may have happened or not.
var ErrUncertain = errors.New("the switch has not answered: the change may have happened")

// ErrClosed says that the connection's Run has ended.
var ErrClosed = errors.New("the connection to the bridge is closed")

// Config says which bridge, and what in it is ours. Zero values of limits and times
// mean their defaults.
type Config struct {
	// Socket is the path of the bridge's management socket, BRIDGE.mgmt.
	Socket string
	Owned  Owned
	// MaxBundle is the largest number of messages in one bundle. Default 4000.
	MaxBundle int
	// Probe is how long the switch may say nothing until it is taken for dead; half of
	// it, and it is asked. Default 5 s.
	Probe time.Duration
	// MinBackoff and MaxBackoff bound the time between two tries to connect, which
	// doubles and bears jitter of a quarter. Defaults 20 ms and 1 s.
	MinBackoff, MaxBackoff time.Duration
	// Logger gets what changes in the connection; nil is silent.
	Logger *slog.Logger
}

// State is how the connection is.
type State struct {
	Connected bool
	// Connection counts the connections: after another number the tables must be read.
	Connection uint64
	// DatapathID of the bridge.
	DatapathID uint64
	// Touched counts what others did to flows of ours on this connection.
	Touched uint64
	// Foreign counts what others did to flows that are not ours on this connection.
	Foreign uint64
	// Watching says that the switch tells what others do; those before Open vSwitch
	// 2.17 do not, and must be read from time to time.
	Watching bool
	// Err says why it is not connected, nil if nothing failed yet.
	Err error
}

// Conn is a connection to a bridge. It is safe for use by several goroutines; Run must
// be running for anything to happen.
type Conn struct {
	config Config
	calls  chan *call
	ended  chan struct{}
	xids   atomic.Uint32
	bundle atomic.Uint32

	mu      sync.Mutex
	state   State
	changed chan struct{}
	// ports are those that the switch said it added, since the connection began.
	ports        map[string]openflow.Port
	portsChanged chan struct{}
}

// New makes a Conn. It does nothing until Run.
func New(c Config) *Conn {
	c.MaxBundle = orDefault(c.MaxBundle, 4000)
	c.Probe = orDefault(c.Probe, 5*time.Second)
	c.MinBackoff = orDefault(c.MinBackoff, 20*time.Millisecond)
	c.MaxBackoff = orDefault(c.MaxBackoff, time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Conn{
		config: c, calls: make(chan *call), ended: make(chan struct{}), changed: make(chan struct{}), portsChanged: make(chan struct{}),
	}
}

func orDefault[T int | time.Duration](v, def T) T {
	if v > 0 {
		return v
	}
	return def
}

// State returns how the connection is, and a channel that is closed when that changes.
func (c *Conn) State() (State, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.changed
}

// Await waits until the bridge is connected.
func (c *Conn) Await(ctx context.Context) (State, error) {
	for {
		s, changed := c.State()
		if s.Connected {
			return s, nil
		}
		select {
		case <-changed:
		case <-c.ended:
			return s, ErrClosed
		case <-ctx.Done():
			if s.Err != nil {
				return s, fmt.Errorf("wait for the bridge on %s: %w: %w", c.config.Socket, ctx.Err(), s.Err)
			}
			return s, fmt.Errorf("wait for the bridge on %s: %w", c.config.Socket, ctx.Err())
		}
	}
}

func (c *Conn) publish(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.Connected {
		c.ports = nil
	}
	c.state = s
	close(c.changed)
	c.changed = make(chan struct{})
}

// Run keeps the connection until ctx ends, and returns nil then. It may be called
// once.
func (c *Conn) Run(ctx context.Context) error {
	defer close(c.ended)
	reconnect.Loop[*call]{
		Min: c.config.MinBackoff, Max: c.config.MaxBackoff, Calls: c.calls,
		Refuse: func(call *call, why error) { call.answer <- fmt.Errorf("%w: %w", ErrDisconnected, why) },
	}.Run(ctx, func(n uint64) error {
		unanswered, err := c.connection(ctx, n)
		c.lost(ctx, n, err)
		// Who hears that the connection is lost finds a State that says so.
		if unanswered != nil {
			unanswered.answer <- fmt.Errorf("%w: %w", ErrDisconnected, err)
		}
		return err
	})
	return nil
}

// lost publishes that the connection is lost, and logs it when the reason is new.
func (c *Conn) lost(ctx context.Context, n uint64, err error) {
	old, _ := c.State()
	if ctx.Err() != nil {
		err = ErrClosed
	} else if old.Err == nil || old.Err.Error() != err.Error() {
		c.config.Logger.Warn("no connection to the bridge", "socket", c.config.Socket, "error", err)
	}
	c.publish(State{Connection: n, Err: err})
}

// connection runs one connection from dialling to its end. It returns the call that
// was under way, if there was one, and why it ended.
func (c *Conn) connection(ctx context.Context, n uint64) (unanswered *call, err error) {
	d := net.Dialer{Timeout: c.config.Probe}
	conn, err := d.DialContext(ctx, "unix", c.config.Socket)
	if err != nil {
		return nil, fmt.Errorf("connect to the bridge (does it exist, and does ovs-vswitchd run?): %w", err)
	}
	s := &session{
		conn: c, socket: conn, state: State{Connection: n}, began: time.Now(),
		frames: make(chan []byte), out: make(chan []byte), broken: make(chan error, 2), stop: make(chan struct{}),
	}
	var halves sync.WaitGroup
	halves.Go(s.read)
	halves.Go(s.write)
	err = s.serve(ctx)
	close(s.stop)
	conn.Close()
	halves.Wait()
	return s.active, err
}

// call is something to send and the answers to it.
type call struct {
	ctx context.Context
	// first to last are the xids of what is sent.
	first, last uint32
	send        []byte
	// take gets the answers, in the owner's goroutine, until it says that it has all.
	take func(openflow.Message) (done bool, err error)
	// answer has room for one: the owner never waits.
	answer chan error
}

// reserve gives the first of n xids that nobody else uses.
func (c *Conn) reserve(n int) uint32 { return c.xids.Add(uint32(n)) - uint32(n) + 1 }

// do hands a call to the owner and waits until it is through with it. After that take
// is not called any more.
func (c *Conn) do(ctx context.Context, first uint32, n int, send []byte, take func(openflow.Message) (bool, error)) error {
	call := &call{ctx: ctx, first: first, last: first + uint32(n) - 1, send: send, take: take, answer: make(chan error, 1)}
	select {
	case c.calls <- call:
		return <-call.answer
	case <-c.ended:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("wait for the connection to the bridge: %w", ctx.Err())
	}
}

// Barrier waits until the switch has done everything that was sent before.
func (c *Conn) Barrier(ctx context.Context) error {
	xid := c.reserve(1)
	return c.do(ctx, xid, 1, openflow.AppendBarrierRequest(nil, xid), func(m openflow.Message) (bool, error) {
		return answered[openflow.BarrierReply](m)
	})
}

// answered reports whether the message is of the kind that was waited for. Any other
// answer is an error.
func answered[T openflow.Body](m openflow.Message) (bool, error) {
	switch body := m.Body.(type) {
	case T:
		return true, nil
	case openflow.Error:
		return false, body
	default:
		return false, fmt.Errorf("the switch answers with a message of type %d", m.Header.Type)
	}
}
