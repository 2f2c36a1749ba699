package netnstest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
)

// Patience is how long a probe waits for an answer that does not come.
const Patience = 2 * time.Second

// Serve answers in the namespace on TCP and UDP, on every address: it sends back
// what it gets. It ends with the test.
func Serve(t testing.TB, ns *netns.NS, port uint16) {
	t.Helper()
	var open []io.Closer
	var serve []func()
	err := ns.Do(func() error {
		// Each family by itself: what Go believes about dual-stack sockets it found
		// out in whatever namespace it was in first.
		for _, family := range []string{"4", "6"} {
			tcp, err := net.Listen("tcp"+family, fmt.Sprintf(":%d", port))
			if err != nil {
				return err
			}
			open, serve = append(open, tcp), append(serve, func() { serveTCP(tcp) })
			udp, err := net.ListenPacket("udp"+family, fmt.Sprintf(":%d", port))
			if err != nil {
				return err
			}
			open, serve = append(open, udp), append(serve, func() { serveUDP(udp) })
		}
		return nil
	})
	var running sync.WaitGroup
	t.Cleanup(func() {
		for _, c := range open {
			_ = c.Close()
		}
		running.Wait()
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range serve {
		running.Go(s)
	}
}

func serveTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(Patience))
			_, _ = io.Copy(c, c)
		}()
	}
}

func serveUDP(c net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(buf[:n], from)
	}
}

// Probe sends a few bytes from the namespace to a Serve and waits for them to come
// back. It returns the sender's own address as it appears on the socket.
func Probe(ctx context.Context, from *netns.NS, network string, to netip.AddrPort) (netip.Addr, error) {
	var c net.Conn
	err := from.Do(func() (err error) {
		d := net.Dialer{Timeout: Patience}
		c, err = d.DialContext(ctx, network, to.String())
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(Patience))
	want, got := "knock", make([]byte, 5)
	if _, err := io.WriteString(c, want); err != nil {
		return netip.Addr{}, err
	}
	if _, err := io.ReadFull(c, got); err != nil {
		return netip.Addr{}, err
	}
	if string(got) != want {
		return netip.Addr{}, fmt.Errorf("sent %q, got back %q", want, got)
	}
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	return local.Addr(), err
}
