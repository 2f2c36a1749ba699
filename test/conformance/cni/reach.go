package conformance

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

func testContainersReach(t *testing.T, s *suite) {
	from, to := s.eth0(t), s.eth0(t)
	from.mustAdd(t)
	target := to.mustAdd(t)
	for _, addr := range addresses(target) {
		if err := exchangeBytes(t, to.box, addr, from.box.in); err != nil {
			t.Fatalf("from one container to %s in another: %v", addr, err)
		}
	}
}

func testNodeReaches(t *testing.T, s *suite) {
	a := s.eth0(t)
	for _, addr := range addresses(a.mustAdd(t)) {
		if err := exchangeBytes(t, a.box, addr, s.target.RunIn); err != nil {
			t.Fatalf("from the node to %s in a container: %v", addr, err)
		}
	}
}

// exchangeBytes listens on addr in the container and sends a message to it and back
// over TCP from where dialIn leads.
func exchangeBytes(t *testing.T, server *container, addr netip.Addr, dialIn func(func() error) error) error {
	t.Helper()
	var listener net.Listener
	// The wildcard, as addr may still be tentative; of one family by name, as for
	// "tcp" Go chooses by what this process's own namespace supports.
	network, wildcard := "tcp4", "0.0.0.0:0"
	if addr.Is6() {
		network, wildcard = "tcp6", "[::]:0"
	}
	err := server.in(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(t.Context(), network, wildcard)
		return err
	})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	defer func() {
		listener.Close()
		<-done
	}()

	target := netip.AddrPortFrom(addr, uint16(listener.Addr().(*net.TCPAddr).Port))
	// Dialing is repeated: duplicate address detection holds back a new IPv6 address
	// for a second or two.
	eventually(t.Context(), func() bool {
		err = dialIn(func() error { return sendAndReceive(t.Context(), target) })
		return err == nil
	})
	return err
}

func sendAndReceive(ctx context.Context, target netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	const message = "conformance"
	if _, err := io.WriteString(conn, message); err != nil {
		return err
	}
	got := make([]byte, len(message))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != message {
		return fmt.Errorf("got %q back, want %q", got, message)
	}
	return nil
}
