package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

const (
	flowPeriod = 20 * time.Millisecond
	// flowSilence without an answer means that a flow is cut.
	flowSilence = 1500 * time.Millisecond
	flowPort    = 7007
)

// podNetwork opens the network namespace in which an address is, by looking at those of all
// processes: kubectl exec is of no use while the API server is away.
func podNetwork(a netip.Addr) (*os.File, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, path := range paths {
		id, err := os.Readlink(path)
		if err != nil || seen[id] {
			continue // ended meanwhile, or looked at
		}
		seen[id] = true
		ns, err := netspace.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		if holds(ns, a) {
			return ns, nil
		}
		if err := ns.Close(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no process is in a network namespace with the address %s", a)
}

func holds(ns *os.File, a netip.Addr) bool {
	found := false
	_ = netspace.Do(ns, func() error { // One that cannot be entered is not a pod's.
		all, err := net.InterfaceAddrs()
		for _, have := range all {
			if p, err := netip.ParsePrefix(have.String()); err == nil && p.Addr() == a {
				found = true
			}
		}
		return err
	})
	return found
}

// flow is a client in one pod that asks a server in another all the time.
type flow struct {
	network string
	conn    net.Conn
	closers []io.Closer
	running sync.WaitGroup
	stop    chan struct{}

	mu             sync.Mutex
	sent, answered int
	last           time.Time
}

// startFlow makes both ends in the namespaces of pods. network is tcp or udp.
func startFlow(ctx context.Context, network string, from, to netip.Addr) (f *flow, err error) {
	f = &flow{network: network, stop: make(chan struct{}), last: time.Now()}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if err := f.serve(ctx, to); err != nil {
		return nil, fmt.Errorf("serve %s in pod %s: %w", network, to, err)
	}
	ns, err := podNetwork(from)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	err = netspace.Do(ns, func() error {
		d := net.Dialer{Timeout: 5 * time.Second}
		f.conn, err = d.DialContext(ctx, network, netip.AddrPortFrom(to, flowPort).String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect from pod %s over %s: %w", from, network, err)
	}
	f.closers = append(f.closers, f.conn)
	f.running.Go(f.send)
	f.running.Go(f.receive)
	return f, nil
}

func (f *flow) serve(ctx context.Context, at netip.Addr) error {
	ns, err := podNetwork(at)
	if err != nil {
		return err
	}
	defer ns.Close()
	address := netip.AddrPortFrom(at, flowPort).String()
	var listen net.ListenConfig
	if f.network == "udp" {
		var c net.PacketConn
		err = netspace.Do(ns, func() error {
			c, err = listen.ListenPacket(ctx, "udp", address)
			return err
		})
		if err != nil {
			return err
		}
		f.closers = append(f.closers, c)
		f.running.Go(func() { echoPackets(c) })
		return nil
	}
	var l net.Listener
	err = netspace.Do(ns, func() error {
		l, err = listen.Listen(ctx, "tcp", address)
		return err
	})
	if err != nil {
		return err
	}
	f.closers = append(f.closers, l)
	f.running.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		f.running.Go(func() {
			<-f.stop
			_ = c.Close()
		})
		_, _ = io.Copy(c, c) // It ends with the flow.
	})
	return nil
}

func echoPackets(c net.PacketConn) {
	buf := make([]byte, 64)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = c.WriteTo(buf[:n], from) // Lost ones are what is counted.
		}
	}
}

func (f *flow) send() {
	tick := time.NewTicker(flowPeriod)
	defer tick.Stop()
	var message [8]byte
	for n := uint64(0); ; n++ {
		binary.BigEndian.PutUint64(message[:], n)
		if _, err := f.conn.Write(message[:]); err == nil {
			f.mu.Lock()
			f.sent++
			f.mu.Unlock()
		}
		select {
		case <-tick.C:
		case <-f.stop:
			return
		}
	}
}

func (f *flow) receive() {
	var message [8]byte
	for {
		_, err := io.ReadFull(f.conn, message[:])
		select {
		case <-f.stop:
			return
		default:
		}
		if err != nil {
			if f.network == "tcp" {
				return
			}
			continue // an ICMP error of a moment ago
		}
		f.mu.Lock()
		f.answered++
		f.last = time.Now()
		f.mu.Unlock()
	}
}

// counts are the questions and the answers so far.
func (f *flow) counts() (sent, answered int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent, f.answered
}

func (f *flow) lastAnswer() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// cut waits until no answer comes any more, and returns how long after a moment the last one
// came.
func (f *flow) cut(ctx context.Context, since time.Time) (time.Duration, error) {
	err := poll(ctx, flowPeriod, func() error {
		if time.Since(f.lastAnswer()) < flowSilence {
			return fmt.Errorf("the %s flow is still answered", f.network)
		}
		return nil
	})
	return max(0, f.lastAnswer().Sub(since)), err
}

// answeredSince waits for an answer that comes after a moment, and returns how long after.
func (f *flow) answeredSince(ctx context.Context, since time.Time) (time.Duration, error) {
	err := poll(ctx, flowPeriod, func() error {
		if !f.lastAnswer().After(since) {
			return fmt.Errorf("the %s flow is not answered", f.network)
		}
		return nil
	})
	return f.lastAnswer().Sub(since), err
}

// close ends both ends.
func (f *flow) close() {
	close(f.stop)
	for _, c := range f.closers {
		_ = c.Close() // A connection that was cut says so.
	}
	f.running.Wait()
}
