package attacks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// token marks a packet, so that it is known wherever it turns up.
type token string

var tokens = regexp.MustCompile(`fl-attack-[0-9]{6}`)

// mint makes tokens.
type mint struct {
	mu sync.Mutex
	n  int
}

func (m *mint) next() token {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n++
	return token(fmt.Sprintf("fl-attack-%06d", m.n))
}

// place is a network namespace and one of its interfaces.
type place struct {
	name string
	ns   *os.File
	dev  string
	mac  packet.MAC
}

// injector sends frames as they are.
type injector struct {
	place
	fd int
}

// inject opens an injector on the place's interface.
func (p place) inject(t testing.TB) *injector {
	t.Helper()
	i := &injector{place: p}
	err := netspace.Do(p.ns, func() (err error) {
		link, err := net.InterfaceByName(p.dev)
		if err != nil {
			return err
		}
		// Protocol 0: the socket receives nothing.
		if i.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(i.fd, &unix.SockaddrLinklayer{Ifindex: link.Index})
	})
	if err != nil {
		t.Fatalf("open a packet socket on %s of %s: %v", p.dev, p.name, err)
	}
	t.Cleanup(func() { _ = unix.Close(i.fd) })
	return i
}

func (i *injector) send(t testing.TB, frames ...[]byte) {
	t.Helper()
	for _, f := range frames {
		if _, err := unix.Write(i.fd, f); err != nil {
			t.Fatalf("send %d bytes from %s of %s: %v", len(f), i.dev, i.name, err)
		}
	}
}

// tap notes the tokens that reach a place.
type tap struct {
	name string

	mu   sync.Mutex
	seen map[token]int
}

// listen opens a tap for frames that come in by any interface of a namespace: what
// a pod or another host gets.
func (p place) listen(t testing.TB) *tap {
	t.Helper()
	return p.tap(t, func() (int, error) {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
		}
		return fd, err
	}, func([]byte) bool { return false })
}

// listenLocal opens taps for packets that the namespace's own sockets get, behind
// all filters. What the tunnel device gets is not delivered yet, and left out.
func (p place) listenLocal(t testing.TB) []*tap {
	t.Helper()
	var out []*tap
	for _, s := range []struct{ family, proto int }{
		{unix.AF_INET, unix.IPPROTO_UDP},
		{unix.AF_INET, unix.IPPROTO_ICMP},
		{unix.AF_INET6, unix.IPPROTO_UDP},
		{unix.AF_INET6, unix.IPPROTO_ICMPV6},
	} {
		tap := p.tap(t, func() (int, error) {
			return unix.Socket(s.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, s.proto)
		}, func(b []byte) bool {
			if s.family == unix.AF_INET && len(b) > 0 {
				b = b[min(len(b), int(b[0]&15)*4):] // IPv6 sockets get no header
			}
			return s.proto == unix.IPPROTO_UDP && len(b) > 4 && binary.BigEndian.Uint16(b[2:]) == claims.VXLANPort
		})
		out = append(out, tap)
	}
	return out
}

func (p place) tap(t testing.TB, open func() (int, error), ignore func([]byte) bool) *tap {
	t.Helper()
	out := &tap{name: p.name, seen: map[token]int{}}
	fd := -1
	err := netspace.Do(p.ns, func() (err error) {
		if fd, err = open(); err == nil {
			err = unix.SetNonblock(fd, true)
		}
		return err
	})
	if err != nil {
		t.Fatalf("listen in %s: %v", p.name, err)
	}
	f := os.NewFile(uintptr(fd), p.name)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 1<<16)
		for {
			n, err := f.Read(b)
			if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENOBUFS) {
				continue // an interface was set down
			}
			if err != nil {
				return
			}
			if !ignore(b[:n]) {
				out.note(b[:n])
			}
		}
	}()
	t.Cleanup(func() {
		_ = f.Close()
		<-ended
	})
	return out
}

func (t *tap) note(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range tokens.FindAll(b, -1) {
		t.seen[token(m)]++
	}
}

func (t *tap) got(k token) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen[k]
}

func htons(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}
