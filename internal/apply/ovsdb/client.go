package ovsdb

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/jsonrpc"
	"github.com/fairlead-sdn/fairlead/internal/apply/reconnect"
)

// Config says what a Client connects to and watches. Zero values of the limits and
// times mean their defaults.
type Config struct {
	// Socket is the path of the server's unix socket.
	Socket string
	// Database is the database's name.
	Database string
	// Watch names the columns to replicate, by table. A server without them is
	// refused (SchemaError).
	Watch map[string][]string
	// Need names more columns, by table, that the database must have.
	Need map[string][]string
	// Probe is how long the server may say nothing until it is taken for dead; half
	// of it, and it is asked. Default 5 s.
	Probe time.Duration
	// MinBackoff and MaxBackoff bound the time between two tries to connect, which
	// doubles and bears jitter of a quarter. Defaults 50 ms and 2 s.
	MinBackoff, MaxBackoff time.Duration
	// MaxMessage is the largest message to take, in bytes. Default 64 MiB.
	MaxMessage int
	// MaxRows is the largest number of rows to replicate. Default 200,000.
	MaxRows int
	// Logger gets what changes in the connection; nil is silent.
	Logger *slog.Logger
}

// maxPending bounds the transactions that wait for their answer; more wait in their
// callers.
const maxPending = 64

// Client is a connection to a database and a replica of a part of it. It is safe for
// use by several goroutines; Run must be running for anything to happen.
type Client struct {
	config   Config
	requests chan *request
	ended    chan struct{}

	mu       sync.Mutex
	snapshot *Snapshot
	changed  chan struct{}
}

// request is a transaction on its way through the owner.
type request struct {
	ctx context.Context
	ops []Operation
	// answer has room for one answer: the owner never waits.
	answer chan answer
}

type answer struct {
	results []Result
	err     error
}

// New makes a Client. It does nothing until Run.
func New(c Config) *Client {
	c.Probe = orDefault(c.Probe, 5*time.Second)
	c.MinBackoff = orDefault(c.MinBackoff, 50*time.Millisecond)
	c.MaxBackoff = orDefault(c.MaxBackoff, 2*time.Second)
	c.MaxMessage = orDefault(c.MaxMessage, 64<<20)
	c.MaxRows = orDefault(c.MaxRows, 200_000)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Client{
		config: c, requests: make(chan *request), ended: make(chan struct{}),
		snapshot: &Snapshot{}, changed: make(chan struct{}),
	}
}

func orDefault[T int | time.Duration](v, def T) T {
	if v > 0 {
		return v
	}
	return def
}

// Snapshot returns the newest Snapshot, and a channel that is closed when there is
// a newer one.
func (c *Client) Snapshot() (*Snapshot, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshot, c.changed
}

// Await returns the first synced Snapshot, from now on, that satisfies the condition.
func (c *Client) Await(ctx context.Context, condition func(*Snapshot) bool) (*Snapshot, error) {
	for {
		s, changed := c.Snapshot()
		if s.Synced && condition(s) {
			return s, nil
		}
		select {
		case <-changed:
		case <-c.ended:
			return nil, ErrClosed
		case <-ctx.Done():
			if s.Err != nil {
				return nil, fmt.Errorf("wait for the OVSDB server on %s: %w: %w", c.config.Socket, ctx.Err(), s.Err)
			}
			return nil, fmt.Errorf("wait for the OVSDB server on %s: %w", c.config.Socket, ctx.Err())
		}
	}
}

func (c *Client) publish(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshot = s
	close(c.changed)
	c.changed = make(chan struct{})
}

// Transact sends a transaction and waits for its results, one per operation. While
// there is no connection it fails at once with ErrDisconnected; while one is being
// set up it waits for that.
func (c *Client) Transact(ctx context.Context, ops ...Operation) ([]Result, error) {
	r := &request{ctx: ctx, ops: ops, answer: make(chan answer, 1)}
	select {
	case c.requests <- r:
	case <-c.ended:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, fmt.Errorf("send a transaction to the OVSDB server: %w", ctx.Err())
	}
	select {
	case a := <-r.answer:
		return a.results, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the OVSDB server's answer: %w", ctx.Err())
	}
}

// Run keeps the connection until ctx ends, and returns nil then. It may be called
// once.
func (c *Client) Run(ctx context.Context) error {
	defer close(c.ended)
	reconnect.Loop[*request]{
		Min: c.config.MinBackoff, Max: c.config.MaxBackoff, Calls: c.requests,
		Refuse: func(r *request, why error) { r.answer <- answer{err: fmt.Errorf("%w: %w", ErrDisconnected, why)} },
	}.Run(ctx, func(n uint64) error {
		unanswered, err := c.connection(ctx, n)
		c.lost(ctx, n, err)
		// Who hears that the connection is lost finds a Snapshot that says so.
		for _, r := range unanswered {
			r.answer <- answer{err: fmt.Errorf("%w: %w", ErrUncertain, err)}
		}
		return err
	})
	return nil
}

// lost publishes that the connection is lost, and logs it when the reason is new.
func (c *Client) lost(ctx context.Context, n uint64, err error) {
	old, _ := c.Snapshot()
	if ctx.Err() != nil {
		err = ErrClosed
	} else if old.Err == nil || old.Err.Error() != err.Error() {
		c.config.Logger.Warn("no connection to the OVSDB server", "socket", c.config.Socket, "error", err)
	}
	c.publish(&Snapshot{Connection: n, Err: err})
}

// connection runs one connection from dialling to its end. It returns the
// transactions that were under way, and why it ended.
func (c *Client) connection(ctx context.Context, n uint64) (unanswered map[uint64]*request, err error) {
	d := net.Dialer{Timeout: c.config.Probe}
	conn, err := d.DialContext(ctx, "unix", c.config.Socket)
	if err != nil {
		return nil, fmt.Errorf("connect to the OVSDB server (is Open vSwitch installed and running?): %w", err)
	}
	s := &session{
		client: c, number: n, conn: conn, pending: map[uint64]*request{},
		frames: make(chan []byte), broken: make(chan error, 1), stop: make(chan struct{}),
	}
	var reader sync.WaitGroup
	reader.Go(s.read)
	defer func() {
		close(s.stop)
		conn.Close()
		reader.Wait()
	}()
	return s.pending, s.serve(ctx)
}

// read hands the messages that arrive to the owner, one at a time.
func (s *session) read() {
	r := jsonrpc.NewReader(s.conn, s.client.config.MaxMessage)
	for {
		frame, err := r.Next()
		if err != nil {
			s.broken <- fmt.Errorf("read from the OVSDB server: %w", err)
			return
		}
		select {
		case s.frames <- frame:
		case <-s.stop:
			return
		}
	}
}
