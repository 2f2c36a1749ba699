package policy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// speakEvery is how often each end of a conversation sends something, whether or not
// it hears anything.
const speakEvery = 25 * time.Millisecond

// conversation is a flow over which both ends talk all the time, neither waits for the
// other.
type conversation struct {
	question          // how it began: from opened it
	ends     [2]*side // of from and of to
}

// side is one end.
type side struct {
	conn net.Conn
	// last is when something was heard, in nanoseconds of the Unix epoch.
	last atomic.Int64
	// next is the number that is to be heard next, lost how many were not.
	next, lost atomic.Uint64
}

func (s *side) heard() time.Time { return time.Unix(0, s.last.Load()) }

// silent tells since when nobody has heard anything.
func (c *conversation) silent() time.Time {
	a, b := c.ends[0].heard(), c.ends[1].heard()
	if a.After(b) {
		return a
	}
	return b
}

// lost counts what did not arrive, both ways.
func (c *conversation) lost() uint64 { return c.ends[0].lost.Load() + c.ends[1].lost.Load() }

// converse opens a conversation for each question, at ports of its own, and keeps all
// of them going until the test ends.
func converse(t testing.TB, questions []question) []*conversation {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var out []*conversation
	t.Cleanup(func() {
		stop()
		for _, c := range out {
			for _, s := range c.ends {
				_ = s.conn.Close()
			}
		}
		wg.Wait()
	})
	for _, q := range questions {
		c, err := open(q)
		if err != nil {
			t.Fatalf("begin %s: %v", q, err)
		}
		out = append(out, c)
		for _, s := range c.ends {
			s.last.Store(time.Now().UnixNano())
			wg.Go(func() { s.speak(ctx) })
			wg.Go(s.listen)
		}
	}
	return out
}

// open begins a conversation: its first packet is from's.
func open(q question) (*conversation, error) {
	c := &conversation{question: q, ends: [2]*side{{}, {}}}
	if q.port.Protocol == "UDP" {
		return c, c.openUDP()
	}
	var l net.Listener
	err := netspace.Do(q.to.ns, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(q.target, q.port.Number).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	err = netspace.Do(q.from.ns, func() (err error) {
		d := net.Dialer{Timeout: labtest.Patience}
		c.ends[0].conn, err = d.Dial("tcp", netip.AddrPortFrom(q.target, q.port.Number).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	c.ends[1].conn, err = l.Accept()
	return c, err
}

func (c *conversation) openUDP() error {
	ports := [2]netip.AddrPort{
		netip.AddrPortFrom(c.from.addr(c.target.Is4()), c.port.Number),
		netip.AddrPortFrom(c.target, c.port.Number),
	}
	for i, ns := range []*os.File{c.from.ns, c.to.ns} {
		err := netspace.Do(ns, func() (err error) {
			c.ends[i].conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(ports[i]), net.UDPAddrFromAddrPort(ports[1-i]))
			return err
		})
		if err != nil {
			return err
		}
	}
	// One that does not count, so that the flow is from's.
	if err := write(c.ends[0].conn, 0); err != nil {
		return err
	}
	if err := c.ends[1].conn.SetReadDeadline(time.Now().Add(labtest.Patience)); err != nil {
		return err
	}
	if _, err := c.ends[1].conn.Read(make([]byte, 8)); err != nil {
		return err
	}
	return c.ends[1].conn.SetReadDeadline(time.Time{})
}

func write(w io.Writer, number uint64) error {
	_, err := w.Write(binary.BigEndian.AppendUint64(nil, number))
	return err
}

// speak sends numbers, from 1 on.
func (s *side) speak(ctx context.Context) {
	tick := time.NewTicker(speakEvery)
	defer tick.Stop()
	for number := uint64(1); ; number++ {
		// An error of the network is what the other end must notice.
		_ = write(s.conn, number)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *side) listen() {
	s.next.Store(1)
	b := make([]byte, 8)
	for {
		_, err := io.ReadFull(s.conn, b)
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) {
			continue // an ICMP error for something that was sent
		}
		if err != nil {
			return
		}
		s.last.Store(time.Now().UnixNano())
		number := binary.BigEndian.Uint64(b)
		s.lost.Add(number - s.next.Load())
		s.next.Store(number + 1)
	}
}

// questionsOf are conversations between all members, over both protocols and families,
// each at a port of its own.
func questionsOf(members map[string]*member) []question {
	port := uint16(20000)
	var out []question
	for _, q := range table(members) {
		port++
		q.port = probe.Port{Protocol: q.port.Protocol, Number: port}
		out = append(out, q)
	}
	return out
}

// quiet is how long nothing may be heard of what is cut, while both ends go on.
const quiet = 700 * time.Millisecond

// follows waits until the conversations are what the oracle says since a change at
// began: those that are not allowed are silent, both ways, since limit after it at the
// latest; all others go on. It returns when the last of those that are cut was heard,
// and how many there are.
func (c *cluster) follows(all []*conversation, began time.Time, limit time.Duration) (last time.Duration, cut int) {
	c.t.Helper()
	want := c.wanted(all)
	labtest.Eventually(c.t, limit+2*quiet, func() error {
		last, cut = 0, 0
		for i, x := range all {
			if want[i] {
				continue
			}
			cut++
			last = max(last, x.silent().Sub(began))
			if time.Since(x.silent()) < quiet {
				return fmt.Errorf("%s is still heard %s after the change", x, x.silent().Sub(began).Round(time.Millisecond))
			}
		}
		return nil
	})
	if last > limit {
		c.t.Errorf("something was heard %s after the change, want %s at most", last.Round(time.Millisecond), limit)
	}
	return last, cut
}

// flows waits until all conversations that are allowed are heard, at both ends, after
// a moment.
func (c *cluster) flows(all []*conversation, moment time.Time, limit time.Duration) time.Duration {
	c.t.Helper()
	want := c.wanted(all)
	var last time.Duration
	labtest.Eventually(c.t, limit, func() error {
		for i, x := range all {
			if !want[i] {
				continue
			}
			for j, s := range x.ends {
				if !s.heard().After(moment) {
					return fmt.Errorf("%s: end %d has not heard anything for %s", x, j, time.Since(s.heard()).Round(time.Millisecond))
				}
			}
		}
		last = time.Since(moment)
		return nil
	})
	return last
}

func (c *cluster) wanted(all []*conversation) []bool {
	questions := make([]question, len(all))
	for i, x := range all {
		questions[i] = x.question
	}
	return expected(c.t, c.model(), questions)
}
