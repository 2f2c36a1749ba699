package attacks

import (
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/test/lab/wire"
)

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
	*wire.Injector
}

// inject opens an injector on the place's interface.
func (p place) inject(t testing.TB) *injector {
	t.Helper()
	return &injector{place: p, Injector: wire.Inject(t, p.ns, p.dev, p.name)}
}

// listen opens a tap for frames that come in by any interface of a namespace: what
// a pod or another host gets.
func (p place) listen(t testing.TB) *tap {
	t.Helper()
	return wire.Listen(t, p.ns, p.name)
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
		tap := wire.Open(t, p.ns, p.name, func() (int, error) {
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
