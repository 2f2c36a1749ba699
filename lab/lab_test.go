package lab_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// options are those of a lab of stand-ins. The root directory is short: unix sockets
// live below it.
func options(t *testing.T) lab.Options {
	t.Helper()
	ns, err := netspace.New()
	if err != nil {
		t.Skipf("network namespaces cannot be made here: %v", err)
	}
	ns.Close()
	root, err := os.MkdirTemp("", "fl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(root, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	o := lab.Options{Root: filepath.Join(root, "labs"), Name: "test", Nodes: 2}
	for name, field := range map[string]*string{"fairlead-agent": &o.Agent, "fairlead-controller": &o.Controller, "fairlead-cni": &o.CNI} {
		*field = filepath.Join(bin, name)
		if err := os.Symlink(self, *field); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// up starts a lab and takes it down with the test.
func up(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	var steps []string
	l, err := lab.Up(t.Context(), o, func(s lab.Step) {
		steps = append(steps, fmt.Sprintf("%s %d/%d at %s", s.Name, s.Done, s.Total, s.Elapsed.Round(time.Millisecond)))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up: %s", strings.Join(steps, ", "))
	t.Cleanup(func() {
		reportRaces(t, l)
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// reportRaces fails the test if the race detector found something in one of the
// lab's processes, which are this program too.
func reportRaces(t *testing.T, l *lab.Lab) {
	t.Helper()
	var logs []string
	for _, pattern := range []string{"*.log", "nodes/*/log/*.log"} {
		found, err := filepath.Glob(filepath.Join(l.Directory(), pattern))
		if err != nil {
			t.Error(err)
		}
		logs = append(logs, found...)
	}
	for _, path := range logs {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		if i := strings.Index(string(raw), "WARNING: DATA RACE"); i >= 0 {
			t.Errorf("%s:\n%s", path, raw[i:min(len(raw), i+4000)])
		}
	}
}

// hostState is what a lab must not change.
func hostState(t *testing.T, root string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		out["links"] = append(out["links"], fmt.Sprintf("%d %s %s", l.Attrs().Index, l.Attrs().Name, l.Attrs().OperState))
	}
	routes, err := h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		out["routes"] = append(out["routes"], r.String())
	}
	rules, err := h.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		out["rules"] = append(out["rules"], r.String())
	}
	if c, err := nftables.New(); err == nil {
		tables, err := c.ListTables()
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range tables {
			out["nft"] = append(out["nft"], fmt.Sprintf("%d %s", table.Family, table.Name))
		}
	}
	out["mounts"], out["files"] = hostMounts(t, root), hostFiles(t, root)
	out["processes"] = labProcesses(t, root)
	for _, k := range []string{"links", "routes", "rules", "nft", "files"} {
		slices.Sort(out[k])
	}
	return out
}

func hostMounts(t *testing.T, root string) []string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(mounts)) {
		// Other tests of this machine name their namespaces.
		if !strings.Contains(line, " nsfs ") || strings.Contains(line, root) {
			out = append(out, line)
		}
	}
	return out
}

// hostFiles lists the directories that a lab's nodes see otherwise. In those that
// other tests write to as well, only what a lab would make is listed.
func hostFiles(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	for dir, all := range map[string]bool{"/var/lib": true, "/etc": true, root: true, "/run": false, "/run/netns": false, "/sys/fs/bpf": false} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if all || e.Name() == "fairlead" || e.Name() == "netns" || strings.HasPrefix(e.Name(), "cni-") {
				out = append(out, filepath.Join(dir, e.Name()))
			}
		}
	}
	return out
}

// labProcesses lists the processes whose command lines name a directory.
func labProcesses(t *testing.T, root string) []string {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, path := range lines {
		raw, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(raw), root) {
			out = append(out, path+" "+strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}
	return out
}

func TestUpAndDownLeaveNoTrace(t *testing.T) {
	o := options(t)
	if err := os.Mkdir(o.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	before := hostState(t, o.Root)
	began := time.Now()
	l := up(t, o)
	t.Logf("up took %s", time.Since(began))
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Nodes) != 2 || s.Nodes[0].Pid == 0 || !s.Nodes[1].State.Ready || s.Nodes[0].State.Agent.Pid == 0 {
		t.Errorf("status %+v", s)
	}
	for _, k := range []string{"links", "routes", "rules", "nft", "mounts"} {
		if d := cmp.Diff(before[k], hostState(t, o.Root)[k]); d != "" {
			t.Errorf("while the lab runs, the host's %s (-before +during):\n%s", k, d)
		}
	}
	began = time.Now()
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("down took %s", time.Since(began))
	if d := cmp.Diff(before, hostState(t, o.Root)); d != "" {
		t.Errorf("the host after down (-before +after):\n%s", d)
	}
}
