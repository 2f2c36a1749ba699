package forwarding

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// theirs is a table of somebody else, and reload what a firewall daemon does when it
// reloads: everything away, its own rules again.
const (
	theirs = "table inet theirs { chain forward { type filter hook forward priority 5; policy accept; counter; }; }"
	reload = "printf 'flush ruleset\n" + theirs + "\n' | nft -f -"
)

// flushes are what outsiders do to packet filters.
var flushes = map[string]string{
	"nft flush":       "nft flush ruleset",
	"iptables flush":  "iptables -F; iptables -t nat -F; iptables -X; ip6tables -F; ip6tables -t nat -F",
	"firewall reload": reload,
}

// ruleset are the words of our table on a node, without counters, sorted: the elements
// of hashed sets have no order. It is empty if there is no table.
func ruleset(l *labtest.Lab, node string) string {
	words := strings.Fields(strings.ReplaceAll(l.Exec(node, "nft", "-s", "list", "table", "inet", "fairlead").Stdout, ",", " "))
	slices.Sort(words)
	return strings.Join(words, " ")
}

// F3 with an owned table: nothing of ours is lost, not for a moment.
func TestScenarioF3FlushWithOwnedTable(t *testing.T) {
	l := up(t, lab.Options{Nodes: 2})
	addPods(l, 2, nodes(l)...)
	if !strings.Contains(strings.Join(status(l, "node-1").Features, " "), "owned and persistent") {
		t.Skip("this kernel is older than 6.9: its tables have no owner")
	}
	tr := start(t, l, 200, 200*time.Millisecond, pairings(nodes(l)))
	table := func() string { return ruleset(l, "node-1") }
	want, began := table(), time.Now()
	for name, command := range flushes {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				l.With(t).MustExec("node-1", "sh", "-c", command)
				tr.more(200)
			}
			if got := table(); got != want {
				t.Errorf("the table is now\n%s\nit was\n%s", got, want)
			}
			if name == "firewall reload" && !strings.Contains(l.MustExec("node-1", "nft", "list", "tables"), "inet theirs") {
				t.Error("the firewall's own table is gone")
			}
		})
	}
	tr.intact()
	if got := changesSince(l, "node-1", began); len(got) > 0 {
		t.Errorf("there was something to repair: %v", got)
	}
}

// F3 without an owner, as before Linux 6.9: the table is back at once, what others have
// is left alone, and running flows go on. What needs our marks or a translation of
// addresses is lost in the gap.
func TestScenarioF3FlushWithPlainTable(t *testing.T) {
	l := up(t, lab.Options{Nodes: 2, AgentEnv: []string{"FAIRLEAD_PLAIN_TABLE=1"}})
	addPods(l, 2, nodes(l)...)
	if got := strings.Join(status(l, "node-1").Features, " "); !strings.Contains(got, "without an owner") {
		t.Fatalf("the table is not a plain one: %s", got)
	}
	tr := start(t, l, 200, 200*time.Millisecond, pairings(nodes(l)))
	table := func() string { return ruleset(l, "node-1") }
	want := table()
	for name, command := range flushes {
		t.Run(name, func(t *testing.T) {
			l, slowest := l.With(t), time.Duration(0)
			for range 5 {
				began := time.Now()
				l.MustExec("node-1", "sh", "-c", command)
				slowest = max(slowest, labtest.Eventually(t, time.Second, func() error {
					if got := table(); got != want {
						return fmt.Errorf("the table is\n%s\nit was\n%s", got, want)
					}
					return nil
				}))
				clean(t, l, "node-1", time.Second)
				if name != "iptables flush" && !tells(audit(l, "node-1").Foreign, began, "nftables table of ours") {
					t.Error("no event tells of it")
				}
				tr.more(200)
			}
			t.Logf("the table was back within %s", slowest.Round(time.Millisecond))
			if name == "firewall reload" && !strings.Contains(l.MustExec("node-1", "nft", "list", "tables"), "inet theirs") {
				t.Error("the repair took the firewall's table away")
			}
		})
	}
	tr.recovered()
}

// What becomes of flows that begin in the gap, which here lasts as long as the agent is
// frozen: they are judged when the table is back, also where somebody else's rules make
// the kernel remember them as they were. docs/plane-linux.md says so.
func TestScenarioF3FlowsBornInTheGap(t *testing.T) {
	const remember = "printf 'flush ruleset\ntable inet theirs { chain forward { type filter hook forward priority 5; policy accept; ct state established counter; }; }\n' | nft -f -"
	for name, flush := range map[string]string{"no other rules": "nft flush ruleset", "with a firewall": remember} {
		t.Run(name, func(t *testing.T) { bornInTheGap(t, flush) })
	}
}

func bornInTheGap(t *testing.T, flush string) {
	l := up(t, lab.Options{Nodes: 2, AgentEnv: []string{"FAIRLEAD_PLAIN_TABLE=1"}})
	addPods(l, 2, nodes(l)...)
	established := start(t, l, 40, 200*time.Millisecond, pairings(nodes(l)))
	l.Fault("agent-freeze", "node-1")
	l.MustExec("node-1", "sh", "-c", flush)
	established.more(80) // without our rules
	ns := inPod(t, l, "a1")
	nic := listenOn(t, inNode(t, l, "node-1"), "eth0")
	born, err := dial(ns, "udp", netip.AddrPortFrom(outside4, port), "outside", nodeAddress(l, "node-1", false))
	if err != nil {
		t.Fatal(err)
	}
	defer born.conn.Close()
	if _, err := born.conn.Write([]byte("?\n")); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, labtest.Patience, func() error {
		for _, f := range nic.frames(t, outside4) {
			if f.from == addressOf(t, l, "a1", false) {
				return nil
			}
		}
		return fmt.Errorf("in the gap no packet goes out with the pod's own address: the test tests nothing")
	})
	l.Fault("agent-continue", "node-1")
	clean(t, l, "node-1", time.Second)
	back := time.Now()
	labtest.Eventually(t, 10*time.Second, func() error {
		born.trouble = ""
		if _, err := born.conn.Write([]byte("?\n")); err != nil {
			return err
		}
		if err := born.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return err
		}
		line, err := born.in.ReadString('\n')
		if err != nil || !born.right(line) {
			return fmt.Errorf("a masqueraded flow that began in the gap: %q, %w", line, err)
		}
		return nil
	})
	t.Logf("a flow that began without masquerade is answered %s after the table's return", time.Since(back).Round(time.Millisecond))
	established.recovered()
}
