package forwarding

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// F6: agents that are killed, restarted or replaced by another version cost no packet
// and write nothing to the kernel.
func TestScenarioF6RestartCostsNothing(t *testing.T) {
	o := lab.Options{Agent: copyOfAgent(t)}
	l := up(t, o)
	addPods(l, 2, nodes(l)...)
	const flows = 1000
	tr := start(t, l, flows, 400*time.Millisecond, pairings(nodes(l)))
	monitors := map[string]*monitor{}
	for _, n := range nodes(l) {
		monitors[n] = watchKernel(t, inNode(t, l, n))
	}
	for _, step := range []struct {
		name string
		do   func(l *labtest.Lab, node string)
	}{
		{"killed", func(l *labtest.Lab, node string) {
			l.Fault("agent-kill", node)
			tr.more(flows)
			l.Fault("agent-start", node)
		}},
		{"restarted", func(l *labtest.Lab, node string) { l.Fault("agent-restart", node) }},
		{"upgraded", func(l *labtest.Lab, node string) {
			l.Fault("agent-stop", node)
			if node == "node-1" {
				buildAgent(t, o.Agent, "v99.0.0-next")
			}
			l.Fault("agent-start", node)
		}},
	} {
		t.Run(step.name, func(t *testing.T) {
			l := l.With(t)
			for _, node := range nodes(l) {
				before, began := status(l, node), time.Now()
				step.do(l, node)
				took := synced(t, l, node, 10*time.Second)
				clean(t, l, node, time.Second)
				after := status(l, node)
				if !after.Started.After(before.Started) {
					t.Errorf("%s: the agent is the old one", node)
				}
				if step.name == "upgraded" && after.Version != "v99.0.0-next" {
					t.Errorf("%s runs version %s", node, after.Version)
				}
				if got := changesSince(l, node, began); len(got) > 0 {
					t.Errorf("%s: %d changes were made, the first: %v", node, len(got), got[:min(5, len(got))])
				}
				if age := youngestFlow(l, node); l.OVS() && age < time.Since(began) {
					t.Errorf("%s: a flow of the bridge is only %s old", node, age)
				}
				t.Logf("%s is back %s after the start", node, took.Round(time.Millisecond))
			}
			tr.more(2 * flows)
			for node, m := range monitors {
				if got := m.written(t); len(got) > 0 {
					t.Errorf("%s: the kernel was written to: %v", node, got[:min(5, len(got))])
				}
			}
		})
	}
	// The monitor does see what is written.
	l.MustExec("node-1", "ip", "route", "add", "192.0.2.77/32", "dev", "eth0")
	if got := monitors["node-1"].written(t); len(got) == 0 {
		t.Error("the monitor sees nothing")
	}
	tr.intact()
	for _, node := range nodes(l) {
		for reason, n := range dropsOf(l, node) {
			t.Logf("%s dropped %d packets: %s", node, n, reason)
		}
	}
}

// youngestFlow is the age of the last flow that was put into a node's bridge, zero if it
// has none.
func youngestFlow(l *labtest.Lab, node string) (youngest time.Duration) {
	out := l.Exec(node, "ovs-ofctl", "-O", "OpenFlow15", "dump-flows", "fairlead").Stdout
	for line := range strings.Lines(out) {
		_, rest, found := strings.Cut(line, "duration=")
		text, _, _ := strings.Cut(rest, ",")
		if age, err := time.ParseDuration(text); found && err == nil && (youngest == 0 || age < youngest) {
			youngest = age
		}
	}
	return youngest
}

// dropsOf are the reasons for which a node dropped packets.
func dropsOf(l *labtest.Lab, node string) map[string]uint64 {
	out := map[string]uint64{}
	for reason, n := range labtest.AdminGet[admin.Status](l, node, "/v1/status").Drops {
		if n > 0 {
			out[reason] = n
		}
	}
	return out
}

// copyOfAgent is a copy of the agent's program, which can be replaced under a lab.
func copyOfAgent(t *testing.T) string {
	t.Helper()
	bin, err := labtest.Bin()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "fairlead-agent")
	if err := copyFile(path, filepath.Join(bin, "fairlead-agent")); err != nil {
		t.Skipf("copy the agent: %v", err)
	}
	return path
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// buildAgent builds the agent as another version and puts it in a program's place.
func buildAgent(t *testing.T, path, version string) {
	t.Helper()
	root, err := labtest.Repository()
	if err != nil {
		t.Fatal(err)
	}
	next := path + "-next"
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+version, "-o", next, "./cmd/fairlead-agent")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v: %s", err, out)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(fmt.Errorf("replace the agent: %w", err))
	}
}
