package capture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

const (
	// MaxSnap is the largest frame, in bytes: a packet before it is segmented, and room.
	MaxSnap = 256 << 10
	// gather is how much is written at once if packets come fast, in bytes.
	gather = 64 << 10
)

// Options of a capture.
type Options struct {
	// Link by its name, in the network namespace of the thread that calls Open.
	Link   string
	Filter Filter
	// Snap is how many bytes of each packet are kept; 0 means all.
	Snap int
	// Packets, Bytes (of the file) and For end the capture; 0 means no limit.
	Packets, Bytes uint64
	For            time.Duration
	// Rate bounds the file's growth, in bytes a second; 0 means no limit.
	Rate int
}

// Result is what was captured.
type Result struct {
	Packets, Bytes uint64
	// Lost packets were wanted, but came faster than the reader or the rate allow.
	Lost uint64
	// End says why it is over.
	End string
}

// String is a sentence for people.
func (r Result) String() string {
	text := fmt.Sprintf("%d packets, %d bytes: %s", r.Packets, r.Bytes, r.End)
	if r.Lost > 0 {
		text += fmt.Sprintf("; %d packets were lost because they came too fast", r.Lost)
	}
	return text
}

// Capture is one that is open. Packets are kept from Open on; Close ends it.
type Capture struct {
	options Options
	socket  *socket
	limiter *rate.Limiter
}

// Open begins to listen.
func Open(o Options) (*Capture, error) {
	if o.Snap <= 0 || o.Snap > MaxSnap {
		o.Snap = MaxSnap
	}
	program, err := o.Filter.Compile(uint32(o.Snap))
	if err != nil {
		return nil, err
	}
	s, err := open(o.Link, program)
	if err != nil {
		return nil, err
	}
	limit := rate.Inf
	if o.Rate > 0 {
		limit = rate.Limit(o.Rate)
	}
	return &Capture{options: o, socket: s, limiter: rate.NewLimiter(limit, max(o.Rate, 2*MaxSnap))}, nil
}

// Close ends the capture.
func (c *Capture) Close() error { return c.socket.file.Close() }

// Copy writes the file until ctx ends, one of the limits is reached, or the link goes; none
// of which is an error. Packets are written as soon as no other waits.
func (c *Capture) Copy(ctx context.Context, w io.Writer) (Result, error) {
	if c.options.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.options.For)
		defer cancel()
	}
	// A deadline that has passed ends the wait for a packet.
	stop := context.AfterFunc(ctx, func() { _ = c.socket.file.SetReadDeadline(time.Now()) })
	defer stop()
	var r Result
	out := bufio.NewWriterSize(w, gather)
	err := c.copy(ctx, out, &r)
	r.Lost = c.socket.lost()
	return r, errors.Join(err, out.Flush())
}

func (c *Capture) copy(ctx context.Context, out *bufio.Writer, r *Result) error {
	r.Bytes = headerSize
	if _, err := out.Write(appendHeader(nil, uint32(c.options.Snap))); err != nil {
		return err
	}
	packet, record := make([]byte, c.options.Snap), make([]byte, 0, recordSize)
	for {
		f, err := c.next(packet, out)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(ctx.Err(), context.DeadlineExceeded):
			r.End = "its time is over"
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			r.End = "stopped"
			return nil
		case errors.Is(err, unix.ENETDOWN):
			r.End = "the link is gone or down"
			return nil
		case err != nil:
			return fmt.Errorf("capture on %s: %w", c.options.Link, err)
		}
		size := uint64(recordSize + f.n)
		if c.options.Bytes > 0 && r.Bytes+size > c.options.Bytes {
			r.End = "its file is full"
			return nil
		}
		record = appendRecord(record[:0], f.at, f.n, f.length)
		if _, err := out.Write(record); err != nil {
			return err
		}
		if _, err := out.Write(packet[:f.n]); err != nil {
			return err
		}
		r.Packets, r.Bytes = r.Packets+1, r.Bytes+size
		if r.Packets == c.options.Packets {
			r.End = "it has its number of packets"
			return nil
		}
		// An error is that of ctx, which the next read tells.
		_ = c.limiter.WaitN(ctx, int(size))
	}
}

// next waits for a packet; what was written before is not held back meanwhile.
func (c *Capture) next(packet []byte, out *bufio.Writer) (frame, error) {
	f, err := c.socket.receive(packet, out.Buffered() == 0)
	if !errors.Is(err, errEmpty) {
		return f, err
	}
	if err := out.Flush(); err != nil {
		return frame{}, err
	}
	return c.socket.receive(packet, true)
}
