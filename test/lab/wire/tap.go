package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// Token marks a packet, so that it is known wherever it turns up.
type Token string

var tokens = regexp.MustCompile(`fl-token-[0-9]{8}`)

// TokenLen is the length of every token in bytes.
const TokenLen = len("fl-token-00000000")

// Mint makes tokens. Its zero value is ready, and may be shared by goroutines.
type Mint struct {
	mu sync.Mutex
	n  int
}

// Next is a token that no packet bears yet.
func (m *Mint) Next() Token {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n++
	return Token(fmt.Sprintf("fl-token-%08d", m.n))
}

// Injector sends frames as they are, by one interface.
type Injector struct {
	name string
	fd   int
}

// Inject opens an injector on an interface of a network namespace; name is for
// failures. It ends with the test.
func Inject(t testing.TB, ns *os.File, dev, name string) *Injector {
	t.Helper()
	i := &Injector{name: dev + " of " + name}
	err := netspace.Do(ns, func() (err error) {
		link, err := net.InterfaceByName(dev)
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
		t.Fatalf("open a packet socket on %s: %v", i.name, err)
	}
	t.Cleanup(func() { _ = unix.Close(i.fd) })
	return i
}

// Send sends frames, or ends the test.
func (i *Injector) Send(t testing.TB, frames ...[]byte) {
	t.Helper()
	if err := i.TrySend(frames...); err != nil {
		t.Fatal(err)
	}
}

// TrySend is Send for other goroutines than the test's.
func (i *Injector) TrySend(frames ...[]byte) error {
	for _, f := range frames {
		if _, err := unix.Write(i.fd, f); err != nil {
			return fmt.Errorf("send %d bytes from %s: %w", len(f), i.name, err)
		}
	}
	return nil
}

// Tap notes the tokens that reach a place.
type Tap struct {
	mu    sync.Mutex
	seen  map[Token]int
	first map[Token]time.Time
}

// Listen opens a tap for frames that come in by any interface of a network namespace,
// those that it will have later too: what a pod or another host gets. It ends with
// the test.
func Listen(t testing.TB, ns *os.File, name string) *Tap {
	t.Helper()
	return Open(t, ns, name, func() (int, error) {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
		}
		return fd, err
	}, func([]byte) bool { return false })
}

// Open opens a tap on the socket that open makes inside the namespace. What ignore
// says is not noted.
func Open(t testing.TB, ns *os.File, name string, open func() (int, error), ignore func([]byte) bool) *Tap {
	t.Helper()
	out := &Tap{seen: map[Token]int{}, first: map[Token]time.Time{}}
	fd := -1
	err := netspace.Do(ns, func() (err error) {
		if fd, err = open(); err == nil {
			err = errors.Join(unix.SetNonblock(fd, true), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
		}
		return err
	})
	if err != nil {
		t.Fatalf("listen in %s: %v", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatalf("listen in %s: %v", name, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b, oob := make([]byte, 1<<16), make([]byte, unix.CmsgSpace(16))
		for {
			n, at, err := receive(raw, b, oob)
			if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENOBUFS) {
				continue // an interface was set down
			}
			if err != nil {
				return
			}
			if !ignore(b[:n]) {
				out.note(b[:n], at)
			}
		}
	}()
	t.Cleanup(func() {
		_ = f.Close()
		<-ended
	})
	return out
}

// receive reads a packet, and when the kernel had it: who reads may come to that late.
func receive(raw syscall.RawConn, b, oob []byte) (n int, at time.Time, err error) {
	err = errors.Join(raw.Read(func(fd uintptr) bool {
		var k int
		n, k, _, _, err = unix.Recvmsg(int(fd), b, oob, 0)
		if err == nil {
			at = Stamp(oob[:k])
		}
		return !errors.Is(err, unix.EAGAIN)
	}), err)
	return n, at, err
}

// Stamp is the kernel's time in the control messages of a packet, of a socket with
// SO_TIMESTAMPNS; without one it is now.
func Stamp(oob []byte) time.Time {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Now()
	}
	for _, m := range list {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Now()
}

func (t *Tap) note(b []byte, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range tokens.FindAll(b, -1) {
		k := Token(m)
		if t.seen[k]++; t.seen[k] == 1 {
			t.first[k] = now
		}
	}
}

// Got counts the packets with a token.
func (t *Tap) Got(k Token) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen[k]
}

// First is when the first packet with a token came; ok says that one did.
func (t *Tap) First(k Token) (at time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok = t.first[k]
	return at, ok
}

func htons(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}
