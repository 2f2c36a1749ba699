package rtnl

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
)

// A pod says what it likes in ARP; none of it may enter the node's neighbour table,
// which all links share. A port of an agent that knew no better is corrected, and one
// that somebody gave ARP back.
func TestPortsHaveNoARP(t *testing.T) {
	n, w := newNode(t), newWorld()
	pod := w.addPod(t, 1)
	state := w.state()
	n.mustApply(state, apply.Options{})
	arp := func() bool { return n.link(pod.HostInterface).Attrs().RawFlags&unix.IFF_NOARP == 0 }
	if arp() {
		t.Fatal("a new port has ARP")
	}
	if err := n.out.LinkSetARPOn(n.link(pod.HostInterface)); err != nil {
		t.Fatal(err)
	}
	if !arp() {
		t.Fatal("the test could not give ARP back")
	}
	n.mustApply(state, apply.Options{})
	if arp() {
		t.Error("the port has ARP still")
	}
	n.audit()
	// The kernel flushes neighbours when the flag changes: the pod's are back.
	list, err := n.out.NeighList(n.link(pod.HostInterface).Attrs().Index, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, x := range list {
		if x.HardwareAddr.String() == net.HardwareAddr(pod.MAC[:]).String() {
			found++
		}
	}
	if found != len(pod.Addresses) {
		t.Errorf("%d neighbours of the pod, want %d: %v", found, len(pod.Addresses), list)
	}
}
