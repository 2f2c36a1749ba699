package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab"
)

func TestTwoLabsSideBySide(t *testing.T) {
	o := options(t)
	other := o
	other.Name = "other"
	a, b := up(t, o), up(t, other)
	labs, err := lab.List(o.Root)
	if err != nil {
		t.Fatal(err)
	}
	want := []lab.Info{{Name: "other", Running: true}, {Name: "test", Running: true}}
	if d := cmp.Diff(want, labs); d != "" {
		t.Errorf("list (-want +got):\n%s", d)
	}
	// The same addresses in both, and pods in one of them only.
	apply(t, openStore(t, a), manifest)
	pods := ready(t, openStore(t, a))
	if r, err := a.Check(t.Context(), pods, allReachAll, false); err != nil || !r.OK() || r.Probes == 0 {
		t.Errorf("check: %+v, error %v", r, err)
	}
	if got := ready(t, openStore(t, b)); len(got) != 0 {
		t.Errorf("the other lab has %d pods", len(got))
	}
	if d := cmp.Diff(status(t, a).Nodes[0].Addresses, status(t, b).Nodes[0].Addresses, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Errorf("addresses differ:\n%s", d)
	}
	if _, err := lab.Open(o.Root, ""); !errors.Is(err, lab.ErrNotFound) || !strings.HasPrefix(err.Error(), "no lab is named") || !strings.Contains(err.Error(), "other, test; name one with --lab") {
		t.Errorf("open without a name, where there are two: %v", err)
	}
	if err := a.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	status(t, b)
	// Without a name the only one is meant.
	l, err := lab.Open(o.Root, "")
	if err != nil || l.Name() != "other" {
		t.Errorf("open without a name: %v, %v", l, err)
	}
}

func TestUpTwice(t *testing.T) {
	o := options(t)
	up(t, o)
	if _, err := lab.Up(t.Context(), o, nil); !errors.Is(err, lab.ErrExists) {
		t.Errorf("up again: %v, want ErrExists", err)
	}
	if _, err := lab.Open(o.Root, "nothing"); !errors.Is(err, lab.ErrNotFound) || !strings.Contains(err.Error(), "test") {
		t.Errorf("open what is not there: %v, want ErrNotFound that names the lab there is", err)
	}
}

func TestKilledSupervisorTakesAllWithIt(t *testing.T) {
	o := options(t)
	if err := os.Mkdir(o.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	before := hostState(t, o.Root)
	l := up(t, o)
	apply(t, openStore(t, l), manifest)
	ready(t, openStore(t, l))
	pid := status(t, l).Pid
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		_ = unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOHANG, nil) // it is our child
		return strings.Join(labProcesses(t, o.Root), "\n")
	})
	if _, err := lab.Open(o.Root, ""); !errors.Is(err, lab.ErrNotRunning) {
		t.Errorf("open: %v, want ErrNotRunning", err)
	}
	if _, err := lab.Up(t.Context(), o, nil); err == nil || !strings.Contains(err.Error(), "down") {
		t.Errorf("up over the remains: %v, want an error that says what to do", err)
	}
	if err := lab.Down(t.Context(), o.Root, ""); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, hostState(t, o.Root)); d != "" {
		t.Errorf("the host after down (-before +after):\n%s", d)
	}
}

func TestFailedUpLeavesNoTrace(t *testing.T) {
	base := options(t)
	if err := os.Mkdir(base.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	before := hostState(t, base.Root)
	t.Run("the agent ends", func(t *testing.T) {
		o := base
		o.AgentEnv = []string{"STAND_IN_FAILS=1"}
		_, err := lab.Up(t.Context(), o, nil)
		if err == nil || !strings.Contains(err.Error(), "step agents") || !strings.Contains(err.Error(), "the stand-in was told to fail") {
			t.Errorf("got %v, want an error with the step and what the agent said", err)
		}
	})
	t.Run("nobody is ready in time", func(t *testing.T) {
		o := base
		o.Wait = time.Millisecond
		if _, err := lab.Up(t.Context(), o, nil); err == nil {
			t.Error("up in a millisecond")
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := lab.Up(ctx, base, func(s lab.Step) {
			if s.Name == "objects" {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that it was cancelled", err)
		}
	})
	if d := cmp.Diff(before, hostState(t, base.Root)); d != "" {
		t.Errorf("the host afterwards (-before +after):\n%s", d)
	}
}

func TestPreflight(t *testing.T) {
	base := options(t)
	for _, tc := range []struct {
		name   string
		change func(*lab.Options)
		want   string
	}{
		{"name", func(o *lab.Options) { o.Name = "../x" }, "lab name"},
		{"long name", func(o *lab.Options) { o.Name = strings.Repeat("x", 33) }, "lab name"},
		{"nodes", func(o *lab.Options) { o.Nodes = 500 }, "500 nodes"},
		{"segments", func(o *lab.Options) { o.Segments = 3 }, "segments: 3, nodes: 2: some segments would be empty"},
		{"mtu", func(o *lab.Options) { o.MTU = 100 }, "MTU 100"},
		{"plane", func(o *lab.Options) { o.Plane = "linux,dpdk" }, `plane "dpdk"`},
		{"encapsulation", func(o *lab.Options) { o.Encapsulation = "GRE" }, `encapsulation "GRE"`},
		{"subnet over the underlay", func(o *lab.Options) { o.Subnets = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")} }, "overlaps 172.30.0.0/16"},
		{"subnet with host bits", func(o *lab.Options) { o.Subnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")} }, "want 10.0.0.0/8"},
		{"subnets that overlap", func(o *lab.Options) {
			o.Subnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")}
		}, "overlap"},
		{"underlay", func(o *lab.Options) { o.Underlay = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24")} }, "is a /16"},
		{"underlay of multicast", func(o *lab.Options) { o.Underlay = []netip.Prefix{netip.MustParsePrefix("224.1.0.0/16")} }, "such as 172.30.0.0/16"},
		{"underlay of link-local", func(o *lab.Options) { o.Underlay = []netip.Prefix{netip.MustParsePrefix("fe80::/32")} }, "such as fd00:30::/32"},
		{"underlay of the outside host", func(o *lab.Options) { o.Underlay = []netip.Prefix{netip.MustParsePrefix("203.0.0.0/16")} }, "overlaps 203.0.113.0/24"},
		{"underlay over the default subnet", func(o *lab.Options) { o.Underlay = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/16")} }, "such as 10.64.0.0/14"},
		{"subnet of multicast", func(o *lab.Options) { o.Subnets = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4")} }, "subnet 224.0.0.0/4: overlaps"},
		{"subnet of link-local", func(o *lab.Options) { o.Subnets = []netip.Prefix{netip.MustParsePrefix("fe80::/64")} }, "subnet fe80::/64: overlaps"},
		{"log level", func(o *lab.Options) { o.LogLevel = "loud" }, `log level "loud"`},
		{"missing agent", func(o *lab.Options) { o.Agent = "/does/not/exist" }, "the agent: stat /does/not/exist"},
		{"agent is no program", func(o *lab.Options) { o.Agent = "/etc/passwd" }, "not an executable"},
		{"missing etcd", func(o *lab.Options) { o.Etcd = "/does/not/exist" }, "etcd: stat"},
		{"missing conflist", func(o *lab.Options) { o.Conflist = "/does/not/exist" }, "network configuration"},
		{"long path", func(o *lab.Options) { o.Root = "/tmp/" + strings.Repeat("x", 80) }, "too long"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := base
			tc.change(&o)
			_, err := lab.Up(t.Context(), o, nil)
			if !errors.Is(err, lab.ErrPreflight) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want ErrPreflight with %q", err, tc.want)
			}
			if strings.Contains(fmt.Sprint(err), "\n") {
				t.Errorf("more than one sentence: %v", err)
			}
		})
	}
	if _, err := os.Stat(base.Root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of labs was made: %v", err)
	}
}

func TestIPv6Underlay(t *testing.T) {
	o := options(t)
	o.Underlay = []netip.Prefix{netip.MustParsePrefix("fd00:77::/32")}
	l := up(t, o)
	s := status(t, l)
	if got := s.Nodes[1].Addresses; len(got) != 1 || got[0].String() != "fd00:77::12/64" {
		t.Errorf("node-2 has %v", got)
	}
	got, exit := execOutput(t, l, lab.ExecRequest{Node: "node-1", Command: []string{"cat", "/proc/net/if_inet6"}})
	if exit != 0 || !strings.Contains(got, "fd000077000000000000000000000011") {
		t.Errorf("addresses of node-1: %s", got)
	}
}

func TestExternalEtcd(t *testing.T) {
	o := options(t)
	o.Etcd = "/usr/bin/etcd"
	if _, err := os.Stat(o.Etcd); err != nil {
		t.Skipf("no etcd program here: %v", err)
	}
	l := up(t, o)
	store := openStore(t, l)
	apply(t, store, manifest)
	pods := ready(t, store)
	fault(t, l, "datastore-kill", "")
	fault(t, l, "datastore-start", "")
	fault(t, l, "datastore-compact", "")
	if got := ready(t, store); len(got) != len(pods) {
		t.Errorf("%d pods after a restart, want %d", len(got), len(pods))
	}
}

func TestReferencePlugins(t *testing.T) {
	o := options(t)
	const bin = "/usr/lib/cni"
	if _, err := os.Stat(bin + "/bridge"); err != nil {
		t.Skipf("no reference CNI plugins here: %v", err)
	}
	o.CNIPath = []string{bin}
	o.Conflist = filepath.Join(filepath.Dir(o.Root), "bridge.conflist")
	conflist := `{"cniVersion": "1.0.0", "name": "bridge", "plugins": [{
		"type": "bridge", "bridge": "cni1", "isGateway": true,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.99.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`
	if err := os.WriteFile(o.Conflist, []byte(conflist), 0o600); err != nil {
		t.Fatal(err)
	}
	l := up(t, o)
	store := openStore(t, l)
	for i := range 3 {
		apply(t, store, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p%d}\nspec: {nodeName: node-1, containers: [{name: c, image: any, ports: [{containerPort: 80}]}]}", i))
	}
	pods := ready(t, store)
	r, err := l.Check(t.Context(), pods, allReachAll, true)
	if err != nil || r.Agree != 6 || !r.OK() {
		t.Errorf("check: %+v, error %v", r, err)
	}
	if _, err := os.Stat("/var/lib/cni/networks/bridge"); err == nil {
		t.Error("the plugin's state is on the host, not on the node")
	}
	fault(t, l, "node-check", "node-1")
}

func TestDiskFull(t *testing.T) {
	o := options(t)
	if err := os.Mkdir(o.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", o.Root, "tmpfs", 0, "size=12m"); err != nil { // less than etcd reserves
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(o.Root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, size := range []string{"12m", "256k"} {
		if err := unix.Mount("", o.Root, "", unix.MS_REMOUNT, "size="+size); err != nil {
			t.Fatal(err)
		}
		if _, err := lab.Up(t.Context(), o, nil); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("up where %s are left: %v", size, err)
		}
		if entries, err := os.ReadDir(o.Root); err != nil || len(entries) > 0 {
			t.Errorf("it left %v (%v)", entries, err)
		}
	}
}
