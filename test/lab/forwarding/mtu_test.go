package forwarding

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// F4: a packet of exactly the announced MTU passes without fragments, one byte more is
// an error at once, and streams flow.
func TestScenarioF4MTU(t *testing.T) { mtus(t, 16<<20) }

// The same with a stream of a GiB.
func TestLongScenarioF4Stream(t *testing.T) {
	labtest.Long(t)
	mtus(t, 1<<30)
}

func mtus(t *testing.T, stream int64) {
	v6 := []netip.Prefix{netip.MustParsePrefix("fd00:30::/32")}
	for _, tc := range []struct {
		encap    string
		segments int
		underlay []netip.Prefix
	}{{"VXLAN", 1, nil}, {"VXLAN", 1, v6}, {"None", 1, nil}, {"CrossSubnet", 2, nil}} {
		for _, underlay := range []int{1500, 9000} {
			t.Run(fmt.Sprintf("%s %d %v", tc.encap, underlay, tc.underlay), func(t *testing.T) {
				l := up(t, lab.Options{Nodes: 3, Encapsulation: tc.encap, Segments: tc.segments, MTU: underlay, Underlay: tc.underlay})
				addPods(l, 2, nodes(l)...)
				mtu := announced(t, l, underlay)
				for _, v6 := range []bool{false, true} {
					// On one node, and, with two segments, over a router (b) and in one (c).
					for _, to := range []string{"a2", "b1", "c1"} {
						exactly(t, l, to, v6, mtu)
					}
				}
				took := transfer(t, l, addressOf(t, l, "b1", false), stream)
				t.Logf("MTU %d; %d MiB in %s", mtu, stream>>20, took.Round(time.Millisecond))
			})
		}
	}
}

// announced is the MTU that all nodes and pods agree on, which must fit the underlay.
func announced(t *testing.T, l *labtest.Lab, underlay int) int {
	t.Helper()
	mtu := 0
	for _, n := range nodes(l) {
		got := status(l, n).PodMTU
		if mtu != 0 && got != mtu || got > underlay || got < underlay-70 {
			t.Errorf("%s announces MTU %d, the first node %d, over an underlay of %d", n, got, mtu, underlay)
		}
		mtu = got
		raw := l.MustExec("default/"+podName(n, 1), "cat", "/sys/class/net/eth0/mtu")
		if inPod, err := strconv.Atoi(strings.TrimSpace(raw)); err != nil || inPod != got {
			t.Errorf("a pod of %s has MTU %s, announced is %d", n, raw, got)
		}
	}
	return mtu
}

// exactly sends UDP with DF from a1.
func exactly(t *testing.T, l *labtest.Lab, to string, v6 bool, mtu int) {
	t.Helper()
	f, err := dial(inPod(t, l, "a1"), "udp", netip.AddrPortFrom(addressOf(t, l, to, v6), port), "default/"+to, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.conn.Close()
	headers := 20 + 8
	if v6 {
		headers = 40 + 8
	}
	if err := dontFragment(f.conn.(*net.UDPConn), v6); err != nil {
		t.Fatal(err)
	}
	if _, err := f.conn.Write(make([]byte, mtu-headers+1)); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("→ %s (IPv6 %t): a packet of %d bytes: %v, want EMSGSIZE", to, v6, mtu+1, err)
	}
	if _, err := f.conn.Write(make([]byte, mtu-headers)); err != nil {
		t.Errorf("→ %s (IPv6 %t): a packet of %d bytes: %v", to, v6, mtu, err)
		return
	}
	if err := f.conn.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
		t.Fatal(err)
	}
	if line, err := f.in.ReadString('\n'); err != nil || !f.right(line) {
		t.Errorf("→ %s (IPv6 %t): a packet of %d bytes got the answer %q, %v", to, v6, mtu, line, err)
	}
}

func dontFragment(c *net.UDPConn, v6 bool) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		if v6 {
			set = errors.Join(
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1),
			)
			return
		}
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	return errors.Join(err, set)
}

// transfer sends n bytes over TCP from a1 to b1.
func transfer(t *testing.T, l *labtest.Lab, to netip.Addr, n int64) time.Duration {
	t.Helper()
	const sink = 9000
	var listener net.Listener
	err := netspace.Do(inPod(t, l, "b1"), func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(to, sink).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	received := make(chan int64, 1)
	go func() {
		c, err := listener.Accept()
		if err != nil {
			received <- -1
			return
		}
		defer c.Close()
		got, _ := io.Copy(io.Discard, c)
		received <- got
	}()
	began := time.Now()
	if err := send(inPod(t, l, "a1"), netip.AddrPortFrom(to, sink), n); err != nil {
		t.Error(err)
	}
	select {
	case got := <-received:
		if got != n {
			t.Errorf("%d of %d bytes arrived", got, n)
		}
	case <-time.After(time.Minute):
		t.Errorf("the stream of %d bytes does not end", n)
	}
	return time.Since(began)
}

func send(ns *os.File, to netip.AddrPort, n int64) error {
	var c net.Conn
	err := netspace.Do(ns, func() (err error) {
		d := net.Dialer{Timeout: answerTime}
		c, err = d.Dial("tcp", to.String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	chunk := make([]byte, 1<<20)
	for left := n; left > 0; left -= int64(len(chunk)) {
		if err := c.SetWriteDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write(chunk[:min(left, int64(len(chunk)))]); err != nil {
			return fmt.Errorf("with %d bytes left: %w", left, err)
		}
	}
	return nil
}
