package forwarding

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/run/journal"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// repairTime is how soon an outsider's damage must be gone.
const repairTime = 2 * time.Second

// F2: whatever an outsider deletes, changes or sets down is rebuilt, and an event
// names it.
func TestScenarioF2OutsidersDamageIsRebuilt(t *testing.T) {
	for _, encap := range []string{"VXLAN", "None"} {
		t.Run(encap, func(t *testing.T) {
			l := up(t, lab.Options{Nodes: 2, Encapsulation: encap})
			addPods(l, 2, nodes(l)...)
			ns := inPod(t, l, "a1")
			healthy := func() error {
				for _, v6 := range []bool{false, true} {
					for _, to := range []string{"a2", "b1"} {
						if err := reach(ns, addressOf(t, l, to, v6), "default/"+to, netip.Addr{}); err != nil {
							return err
						}
					}
				}
				return nil
			}
			if err := healthy(); err != nil {
				t.Fatal(err)
			}
			for _, tc := range damages(l, encap) {
				if tc.encap != "" && tc.encap != encap || tc.plane != "" && (tc.plane == config.PlaneOVS) != l.OVS() {
					continue
				}
				t.Run(tc.name, func(t *testing.T) {
					began := time.Now()
					l.With(t).MustExec("node-1", "sh", "-c", tc.command)
					done := time.Now()
					clean(t, l.With(t), "node-1", repairTime)
					took := time.Since(done)
					labtest.Eventually(t, repairTime-took, healthy)
					t.Logf("rebuilt and reachable %s after the damage (the kernel alone: %s)", time.Since(done).Round(time.Millisecond), took.Round(time.Millisecond))
					for _, words := range tc.told {
						if found := audit(l.With(t), "node-1").Foreign; !tells(found, began, words...) {
							t.Errorf("audit names no change with %q; it names %+v", words, found[max(0, len(found)-8):])
						}
						if !journalTells(l.With(t), "node-1", began, words...) {
							t.Errorf("the journal names no change with %q", words)
						}
					}
				})
			}
		})
	}
}

type damage struct {
	name, encap, plane, command string
	// told are the words of events that must be told.
	told [][]string
}

// damages to node-1. The one who sets the NIC down gives it back what it loses by
// that, as a network manager does: that is not ours.
func damages(l *labtest.Lab, encap string) []damage {
	a1 := hostEnd(l, "node-1", "a1")
	gateway := "ip route replace default via 172.30.0.1 dev eth0 proto static; ip -6 addr replace fd00:30::11/64 dev eth0 nodad; ip -6 route replace default via fd00:30::1 dev eth0 proto static"
	// With Open vSwitch and a tunnel nothing of ours depends on the NIC being up.
	nicTold := map[string][][]string{"VXLAN": {{"link eth0 set down"}}, "None": {{"link eth0 set down"}}}
	if l.OVS() {
		nicTold["VXLAN"] = nil
	}
	nic := "ip link set eth0 down; ip link set eth0 up; " + gateway
	return []damage{
		{"tunnel deleted", "VXLAN", config.PlaneLinux, "ip link del fl.vxlan", [][]string{{"link fl.vxlan deleted"}}},
		{"tunnel's MAC", "VXLAN", config.PlaneLinux, "ip link set fl.vxlan address 02:00:00:00:00:99", [][]string{{"link fl.vxlan", "MAC", "02:00:00:00:00:99"}}},
		{"tunnel down and up", "VXLAN", config.PlaneLinux, "ip link set fl.vxlan down; ip link set fl.vxlan up", [][]string{{"fl.vxlan"}}},
		{"IPv4 routes flushed", "", "", "ip -4 route flush proto 97", [][]string{{"route 10.1", "deleted"}}},
		{"IPv6 routes flushed", "", "", "ip -6 route flush proto 97", [][]string{{"route fd00:128::", "deleted"}}},
		{"NIC down and up", "", "", nic, nicTold[encap]},
		{"NIC down and up at once", "", "", "printf 'link set eth0 down\nlink set eth0 up\n' | ip -batch -; " + gateway, nicTold[encap]},
		{"pod's link down and up", "", "", "printf 'link set LINK down\nlink set LINK up\n' | sed s/LINK/" + a1 + "/ | ip -batch -", [][]string{{a1}}},
		{"pod's neighbour", "", config.PlaneLinux, "ip neigh del $(ip neigh show dev " + a1 + " | awk '/10[.]/{print $1}') dev " + a1, [][]string{{"neighbour 10.", a1, "deleted"}}},
		{"controller set", "", config.PlaneOVS, "ovs-vsctl set-controller fairlead tcp:127.0.0.1:6653", [][]string{{"database", "controller"}}},
		{"tunnel deleted", "VXLAN", config.PlaneOVS, "ovs-vsctl del-port fairlead-tun", [][]string{{"database", "port fairlead-tun"}}},
		{"MAC of the host's port", "", config.PlaneOVS, "ip link set fairlead-gw address 02:00:00:00:00:99", [][]string{{"link fairlead-gw", "mac", "02:00:00:00:00:99"}}},
		{"host's port down and up", "", config.PlaneOVS, "ip link set fairlead-gw down; ip link set fairlead-gw up", [][]string{{"fairlead-gw"}}},
		{"bridge of the NIC deleted", "VXLAN", config.PlaneOVS, "ovs-vsctl del-br fairlead-phy", [][]string{{"database", "bridge fairlead-phy"}}},
		{"bridge deleted", "", config.PlaneOVS, "ovs-vsctl del-br fairlead", [][]string{{"database", "bridge fairlead"}}},
		{"flows deleted", "", config.PlaneOVS, "ovs-ofctl -O OpenFlow15 del-flows fairlead", [][]string{{"flows of ours in the bridge fairlead were changed"}}},
		{"forwarding off", "", "", "echo 0 > /proc/sys/net/ipv4/ip_forward", [][]string{{"ip_forward"}}},
	}
}

// hostEnd is the node's link of a pod.
func hostEnd(l *labtest.Lab, node, name string) string {
	for _, a := range labtest.AdminGet[[]admin.Attachment](l, node, "/v1/attachments") {
		if a.Pod == name {
			return a.HostInterface
		}
	}
	return "no-link-of-" + name
}

func journalTells(l *labtest.Lab, node string, since time.Time, words ...string) bool {
	return slices.ContainsFunc(labtest.AdminGet[[]journal.Entry](l, node, "/v1/journal"), func(e journal.Entry) bool {
		return tells(e.Foreign, since, words...)
	})
}

// The same outsider while nobody watches: the agent that comes back repairs it.
func TestScenarioF2DamageWhileTheAgentIsAway(t *testing.T) {
	l := up(t, lab.Options{Nodes: 2})
	addPods(l, 1, nodes(l)...)
	l.Fault("agent-kill", "node-1")
	tunnel := "ip link del fl.vxlan"
	if l.OVS() {
		tunnel = "ovs-vsctl del-port fairlead-tun; ovs-ofctl -O OpenFlow15 del-flows fairlead"
	}
	l.MustExec("node-1", "sh", "-c", tunnel+"; ip route flush proto 97; nft flush ruleset; ip link set "+strings.TrimSpace(l.MustExec("node-1", "sh", "-c", "ls /sys/class/net | grep ^flp"))+" down")
	l.Fault("agent-start", "node-1")
	took := clean(t, l, "node-1", repairTime)
	t.Logf("rebuilt %s after the agent was started", took)
	for _, v6 := range []bool{false, true} {
		if err := reach(inPod(t, l, "a1"), addressOf(t, l, "b1", v6), "default/b1", netip.Addr{}); err != nil {
			t.Error(err)
		}
	}
	if got := l.MustExec("node-1", "nft", "list", "tables"); !strings.Contains(got, "inet fairlead") {
		t.Errorf("tables: %q", got)
	}
}
