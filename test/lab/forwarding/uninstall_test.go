package forwarding

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// everything prints what an agent could have changed on a node.
const everything = `
echo links; ip -d -o link
echo addresses; ip -o addr
echo routes; ip route show table all; ip -6 route show table all
echo rules; ip rule; ip -6 rule
echo neighbours; ip neigh show nud permanent
echo tc; tc qdisc show; for l in /sys/class/net/*; do tc filter show dev ${l##*/} ingress; tc filter show dev ${l##*/} egress; done
echo nftables; nft list ruleset
echo sysctls; grep -r . /proc/sys/net/ipv4 /proc/sys/net/ipv6 /proc/sys/net/core 2>/dev/null | sort
echo files; find /sys/fs/bpf /run/fairlead /var/lib/fairlead | grep -v '[.]debug$' | sort
`

// F8: uninstall leaves a node as it was before an agent ran on it.
func TestScenarioF8Uninstall(t *testing.T) {
	for _, encap := range []string{"VXLAN", "None"} {
		t.Run(encap, func(t *testing.T) {
			o := lab.Options{Nodes: 2, Encapsulation: encap, Agent: copyOfAgent(t)}
			l := up(t, o)
			before := bare(t, l, o.Agent)
			addPods(l, 3, nodes(l)...)
			if got := state(l, "node-2"); cmp.Equal(before, got) {
				t.Fatal("the agent has changed nothing: the test tests nothing")
			}
			l.Fault("agent-stop", "node-2")
			l.MustExec("node-2", o.Agent, "uninstall", "--config", "/var/lib/fairlead-lab/etc/agent.yaml")
			if d := cmp.Diff(before, state(l, "node-2")); d != "" {
				t.Errorf("the node (-before +after uninstall):\n%s", d)
			}
			// Once more is no error, and the agent can be installed again.
			l.MustExec("node-2", o.Agent, "uninstall", "--config", "/var/lib/fairlead-lab/etc/agent.yaml")
			l.Fault("agent-start", "node-2")
			l.WaitReady("node-2")
		})
	}
}

func state(l *labtest.Lab, node string) []string {
	return strings.Split(l.MustExec(node, "sh", "-c", everything), "\n")
}

// bare is the state of node-2 booted with a program in the agent's place that does
// nothing; afterwards it runs the agent.
func bare(t *testing.T, l *labtest.Lab, agent string) []string {
	t.Helper()
	l.Fault("node-power-off", "node-2")
	if err := os.Rename(agent, agent+"-real"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(agent, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"attachments", "addresses.json", "world.checkpoint", "journal.jsonl", "journal.jsonl.1"} {
		if err := os.RemoveAll(filepath.Join(l.NodeDirectory("node-2"), "var", name)); err != nil {
			t.Fatal(err)
		}
	}
	l.Fault("node-power-on", "node-2")
	var out []string
	labtest.Eventually(t, labtest.Patience, func() error {
		previous := out
		out = state(l, "node-2")
		text := strings.Join(out, "\n")
		if !slices.Equal(previous, out) || !strings.Contains(text, "default via fd00:30::1") || strings.Contains(text, "tentative") {
			return errors.New("the node's own network is not complete")
		}
		return nil
	})
	if slices.ContainsFunc(out, func(s string) bool { return strings.Contains(s, "fl.vxlan") }) {
		t.Fatal("the agent has run already")
	}
	l.Fault("agent-stop", "node-2")
	if err := os.Rename(agent+"-real", agent); err != nil {
		t.Fatal(err)
	}
	l.Fault("agent-start", "node-2")
	l.WaitReady("node-2")
	return out
}

// F8: lab down leaves the host as it was.
func TestScenarioF8LabDown(t *testing.T) {
	snapshot := func() []string {
		t.Helper()
		var out []string
		for _, command := range [][]string{
			{"ip", "-d", "-o", "link"},
			{"ip", "-o", "addr"},
			{"ip", "route", "show", "table", "all"},
			{"ip", "-6", "route", "show", "table", "all"},
			{"ip", "rule"},
			{"ip", "-6", "rule"},
			{"nft", "list", "ruleset"},
			{"ip", "netns"},
		} {
			out = append(out, strings.Split(run(t, command...), "\n")...)
		}
		return append(out, mountsAndProcesses(t)...)
	}
	before := snapshot()
	t.Run("a lab", func(t *testing.T) {
		l := up(t, lab.Options{Nodes: 2})
		addPods(l, 2, nodes(l)...)
	})
	if d := cmp.Diff(before, snapshot()); d != "" {
		t.Errorf("the host (-before +after):\n%s", d)
	}
}

func run(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", command, err, out)
	}
	return string(out)
}

// mountsAndProcesses are those of the host that a lab of these tests could have left:
// labs of other programs may come and go meanwhile.
func mountsAndProcesses(t *testing.T) []string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	self := filepath.Base(os.Args[0])
	var out []string
	for _, line := range strings.Split(string(raw), "\n") {
		if strings.Contains(line, "fairlead") {
			out = append(out, line)
		}
	}
	paths, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		// One that has ended meanwhile has no program.
		if exe, err := os.Readlink(path); err == nil && filepath.Base(exe) == self && path != "/proc/"+strconv.Itoa(os.Getpid())+"/exe" {
			out = append(out, "process "+path)
		}
	}
	return out
}
