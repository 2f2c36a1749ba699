package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// link is a veth whose other end has 10.9.0.2; this end is "host0".
func link(t *testing.T) (host, pod *netns.NS) {
	t.Helper()
	host, pod = netnstest.New(t), netnstest.New(t)
	err := host.Do(func() error {
		a := netlink.NewLinkAttrs()
		a.Name, a.MTU = "host0", 1500
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "pod0", PeerNamespace: netlink.NsFd(pod.FD())}); err != nil {
			return err
		}
		return up("host0", "10.9.0.1/24")
	})
	if err == nil {
		err = pod.Do(func() error { return up("pod0", "10.9.0.2/24") })
	}
	if err != nil {
		t.Fatal(err)
	}
	return host, pod
}

func up(name, address string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
}

// listen opens a capture in a namespace.
func listen(t *testing.T, ns *netns.NS, o Options, filter string) *Capture {
	t.Helper()
	var err error
	if o.Filter, err = ParseFilter(filter); err != nil {
		t.Fatal(err)
	}
	o.Link = "host0"
	var c *Capture
	if err := ns.Do(func() error { c, err = Open(o); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// send sends UDP datagrams from the pod to a port of the host's end.
func send(t *testing.T, pod *netns.NS, port, count, size int) {
	t.Helper()
	err := pod.Do(func() error {
		// Not connected: the host's answer, that nobody listens, is no error of the next one.
		c, err := net.ListenPacket("udp4", ":0")
		if err != nil {
			return err
		}
		defer c.Close()
		for range count {
			if _, err := c.WriteTo(make([]byte, size), &net.UDPAddr{IP: net.IPv4(10, 9, 0, 1), Port: port}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// record is a packet of a file.
type record struct {
	at     time.Time
	length int
	data   []byte
}

// read reads a pcap file as its specification says, not as the writer does.
func read(t *testing.T, r io.Reader) []record {
	t.Helper()
	var header struct {
		Magic        uint32
		Major, Minor uint16
		Zone, Sigfig uint32
		Snap, Link   uint32
	}
	if err := binary.Read(r, binary.LittleEndian, &header); err != nil {
		t.Fatal(err)
	}
	if header.Magic != 0xa1b23c4d || header.Major != 2 || header.Minor != 4 || header.Link != 1 || header.Snap == 0 {
		t.Fatalf("the header is %+v", header)
	}
	var out []record
	for {
		var x struct{ Sec, Nano, Captured, Length uint32 }
		err := binary.Read(r, binary.LittleEndian, &x)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil || x.Captured > header.Snap {
			t.Fatalf("record %d: %+v, %v", len(out), x, err)
		}
		data := make([]byte, x.Captured)
		if _, err := io.ReadFull(r, data); err != nil {
			t.Fatal(err)
		}
		out = append(out, record{time.Unix(int64(x.Sec), int64(x.Nano)), int(x.Length), data})
	}
}

func TestCaptureOfRealPackets(t *testing.T) {
	host, pod := link(t)
	begin := time.Now()
	c := listen(t, host, Options{Packets: 3, Snap: 60}, "udp dst port 7000 and src host 10.9.0.2")
	send(t, pod, 6999, 5, 10)
	send(t, pod, 7000, 3, 500)
	var b bytes.Buffer
	r, err := c.Copy(t.Context(), &b)
	if err != nil || r.Packets != 3 || r.Bytes != uint64(b.Len()) || r.Lost != 0 || !strings.Contains(r.String(), "number of packets") {
		t.Fatalf("%+v, %v; %d bytes", r, err, b.Len())
	}
	got := read(t, &b)
	if len(got) != 3 {
		t.Fatalf("%d packets", len(got))
	}
	for _, x := range got {
		if len(x.data) != 60 || x.length != 542 || binary.BigEndian.Uint16(x.data[36:]) != 7000 {
			t.Errorf("captured %d of %d bytes: %x", len(x.data), x.length, x.data)
		}
		if x.at.Before(begin.Add(-time.Second)) || x.at.After(time.Now().Add(time.Second)) {
			t.Errorf("at %s", x.at)
		}
	}
}

// Both directions are seen, and what was seen is written at once.
func TestCaptureIsLive(t *testing.T) {
	host, pod := link(t)
	c := listen(t, host, Options{}, "icmp or udp")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan Result, 1)
	go func() {
		got, err := c.Copy(ctx, w)
		if err != nil {
			t.Error(err)
		}
		done <- got
		_ = w.Close()
	}()
	send(t, pod, 7000, 1, 10)
	seen := make([]byte, headerSize+recordSize+52)
	if _, err := io.ReadFull(r, seen); err != nil { // the datagram
		t.Fatal(err)
	}
	answer := make([]byte, recordSize+14+20+8+38)
	if _, err := io.ReadFull(r, answer); err != nil { // the host: port unreachable
		t.Fatal(err)
	}
	if answer[recordSize+23] != 1 {
		t.Errorf("the answer is of protocol %d", answer[recordSize+23])
	}
	cancel()
	if got := <-done; got.Packets != 2 || got.End != "stopped" {
		t.Errorf("%+v", got)
	}
}

func TestCaptureEnds(t *testing.T) {
	host, pod := link(t)
	t.Run("time", func(t *testing.T) {
		r, err := listen(t, host, Options{For: time.Millisecond}, "").Copy(t.Context(), io.Discard)
		if err != nil || r.End != "its time is over" {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		c := listen(t, host, Options{Bytes: 500}, "udp")
		send(t, pod, 7000, 10, 100)
		var b bytes.Buffer
		r, err := c.Copy(t.Context(), &b)
		if err != nil || r.End != "its file is full" || b.Len() > 500 || r.Packets != 3 || len(read(t, &b)) != 3 {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("reader", func(t *testing.T) {
		c := listen(t, host, Options{}, "udp")
		send(t, pod, 7000, 1, 100)
		r, w := io.Pipe()
		_ = r.Close()
		if _, err := c.Copy(t.Context(), w); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the reader left: %v", err)
		}
	})
	t.Run("rate", func(t *testing.T) {
		c := listen(t, host, Options{Rate: 1, Snap: 64}, "udp") // the burst, then a byte a second
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		send(t, pod, 7000, 1, 100)
		if r, err := c.Copy(ctx, io.Discard); err != nil || r.End != "stopped" {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("link", func(t *testing.T) {
		c := listen(t, host, Options{}, "")
		if err := pod.Do(func() error {
			l, err := netlink.LinkByName("pod0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(l)
		}); err != nil {
			t.Fatal(err)
		}
		r, err := c.Copy(t.Context(), io.Discard)
		if err != nil || !strings.Contains(r.End, "gone") {
			t.Errorf("%+v, %v", r, err)
		}
	})
	if err := host.Do(func() error { _, err := Open(Options{Link: "nobody0"}); return err }); err == nil || !strings.Contains(err.Error(), "capture on nobody0") {
		t.Errorf("a link that is not there: %v", err)
	}
}

// The kernel takes what the compiler makes: its own checker is stricter than ours.
func TestKernelTakesFilters(t *testing.T) {
	host, _ := link(t)
	for _, filter := range []string{
		"", "arp", "icmp6", "not (tcp or udp) and net fd00::/13", "host 10.0.0.1 or host fd00::1 or src port 1-1000",
		strings.TrimSuffix(strings.Repeat("port 80 or ", 90), " or "),
	} {
		if err := listen(t, host, Options{}, filter).Close(); err != nil {
			t.Errorf("%.60q: %v", filter, err)
		}
	}
}
