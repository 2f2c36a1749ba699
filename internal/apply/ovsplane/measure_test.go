package ovsplane

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/offload"
	"github.com/fairlead-sdn/fairlead/internal/apply/planetest"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// long skips measurements unless FAIRLEAD_LONG=1. Their limits are wide: the machine may be
// busy with other things.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("FAIRLEAD_LONG") != "1" {
		t.Skip("long: runs in make test-long")
	}
}

// theirs is a bridge beside ours, as somebody else would use it.
const theirs = "theirs"

// TestAttachRatioLong attaches pods in turns with the plane, pair, addresses, policy and all,
// and with ovs-vsctl and ovs-ofctl, which get a link that is there and the same flows.
func TestAttachRatioLong(t *testing.T) {
	long(t)
	n := newNode(t)
	p := n.open(t)
	defer p.Close()
	desired := n.intentOf(t, 0)
	applied(t, p, desired, apply.Options{})
	n.ovs.Run("ovs-vsctl", "add-br", theirs, "--", "set", "bridge", theirs, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow15")
	const rounds = 12
	var ours, others []time.Duration
	for i := range rounds {
		port := planetest.Port(i+2, n.pod(t))
		desired.Ports = append(desired.Ports, port)
		began := time.Now()
		applied(t, p, desired, apply.Options{})
		ours = append(ours, time.Since(began))

		var flows []of.Flow
		for _, part := range p.flows.pipe.Parts {
			if part.Name == "port "+port.ID {
				flows = part.Flows
			}
		}
		link := fmt.Sprintf("other%d", i)
		if err := n.out.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: link}, PeerName: link + "p"}); err != nil {
			t.Fatal(err)
		}
		text := of.Text(flows)
		began = time.Now()
		n.ovs.Run("ovs-vsctl", "add-port", theirs, link)
		if out, err := n.ovs.Try([]byte(text), "ovs-ofctl", "-O", "OpenFlow15", "--bundle", "add-flows", theirs, "-"); err != nil {
			t.Fatalf("ovs-ofctl: %v\n%s", err, out)
		}
		others = append(others, time.Since(began))
	}
	slices.Sort(ours)
	slices.Sort(others)
	ratio := float64(ours[rounds/2]) / float64(others[rounds/2])
	t.Logf("attach of one pod: ours p50 %s (%s to %s), ovs-vsctl and ovs-ofctl p50 %s (%s to %s), ratio %.2f",
		ours[rounds/2], ours[0], ours[rounds-1], others[rounds/2], others[0], others[rounds-1], ratio)
	if ratio > 0.5 {
		t.Errorf("the ratio is %.2f", ratio)
	}
}

// TestThroughputRatioLong sends between two pods through our pipeline, and in turns through
// another bridge of the same Open vSwitch that commits every connection and is a learning
// switch otherwise.
func TestThroughputRatioLong(t *testing.T) {
	long(t)
	n := newNode(t)
	p := n.open(t)
	defer p.Close()
	desired := n.intentOf(t, 2)
	applied(t, p, desired, apply.Options{})
	a, b := desired.Ports[0], desired.Ports[1]
	from, to := n.neighbours(t)
	const rounds = 7
	rates := map[string][]float64{}
	for range rounds {
		rates["ours"] = append(rates["ours"], rate(t, n.pods[a.Netns], n.pods[b.Netns], b.Addresses[0]))
		for _, actions := range []string{"ct(commit),NORMAL", "NORMAL"} {
			n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "del-flows", theirs)
			n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "add-flow", theirs, "priority=0,actions=NORMAL")
			n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "add-flow", theirs, "priority=1,ip,actions="+actions)
			rates[actions] = append(rates[actions], rate(t, from, to, addr("10.9.0.2")))
		}
	}
	for _, list := range rates {
		slices.Sort(list)
	}
	ours, tracked := rates["ours"][rounds/2], rates["ct(commit),NORMAL"][rounds/2]
	t.Logf("TCP between two pods, Mbit/s: ours %.0f, ct(commit),NORMAL %.0f, NORMAL %.0f; ratio to the second %.2f",
		ours, tracked, rates["NORMAL"][rounds/2], ours/tracked)
	if ours < tracked/2 {
		t.Errorf("the ratio is %.2f", ours/tracked)
	}
}

// neighbours are two pods in the other bridge.
func (n *node) neighbours(t *testing.T) (from, to *netns.NS) {
	t.Helper()
	n.ovs.Run("ovs-vsctl", "add-br", theirs, "--", "set", "bridge", theirs, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow15")
	var out [2]*netns.NS
	for i := range out {
		out[i] = netnstest.New(t)
		name := "their" + strconv.Itoa(i+1)
		err := n.out.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1430}, PeerName: "eth0", PeerMTU: 1430, PeerNamespace: netlink.NsFd(out[i].FD())})
		if err != nil {
			t.Fatal(err)
		}
		up(t, n.out, name)
		h := handle(t, out[i])
		up(t, h, "eth0")
		l, err := h.LinkByName("eth0")
		if err == nil {
			a, _ := netlink.ParseAddr(fmt.Sprintf("10.9.0.%d/24", i+1))
			err = h.AddrAdd(l, a)
		}
		if err == nil {
			err = out[i].Do(func() error {
				_, err := offload.FinishFrames("eth0")
				return err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		n.ovs.Run("ovs-vsctl", "add-port", theirs, name)
	}
	return out[0], out[1]
}

// rate sends over TCP for a while, and returns what arrived in Mbit/s.
func rate(t *testing.T, from, to *netns.NS, dst netip.Addr) float64 {
	t.Helper()
	const lasts = 700 * time.Millisecond
	var l net.Listener
	err := to.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(dst, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	arrived := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			arrived <- 0
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		arrived <- n
	}()
	var c net.Conn
	err = from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_ = c.SetDeadline(began.Add(lasts))
	for b := []byte(strings.Repeat("x", 64<<10)); err == nil; {
		_, err = c.Write(b)
	}
	c.Close()
	return float64(<-arrived) * 8 / 1e6 / time.Since(began).Seconds()
}
