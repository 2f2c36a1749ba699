package openflow_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ovs is a database and a switch of the test's own, in a network namespace of
// their own.
type ovs struct {
	dir string
}

// startOVS starts them with bridges br0 and br1 of the userspace datapath.
func startOVS(t *testing.T) *ovs {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to start Open vSwitch")
	}
	for _, tool := range []string{"ovsdb-server", "ovs-vswitchd", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("Open vSwitch is not installed: %v", err)
		}
	}
	dir, err := os.MkdirTemp("", "openflow")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &ovs{dir}
	const schema = "/usr/share/openvswitch/vswitch.ovsschema"
	s.run(t, "", "ovsdb-tool", "create", filepath.Join(dir, "conf.db"), schema)
	s.start(t, "ovsdb-server", filepath.Join(dir, "conf.db"), "--remote=punix:"+filepath.Join(dir, "db.sock"),
		"--unixctl="+filepath.Join(dir, "ovsdb.ctl"), "-vconsole:off", "--no-chdir")
	s.start(t, "ovs-vswitchd", "unix:"+filepath.Join(dir, "db.sock"),
		"--unixctl="+filepath.Join(dir, "vswitchd.ctl"), "-vconsole:off", "--disable-system", "--no-chdir")
	args := []string{"--db=unix:" + filepath.Join(dir, "db.sock"), "--retry", "--timeout=30", "--no-wait", "init"}
	s.run(t, "", "ovs-vsctl", args...)
	args = []string{"--db=unix:" + filepath.Join(dir, "db.sock"), "--timeout=30"}
	for _, br := range []string{"br0", "br1"} {
		args = append(args, "--", "add-br", br, "--", "set", "bridge", br, "datapath_type=netdev",
			"fail_mode=secure", "protocols=OpenFlow10,OpenFlow15")
	}
	s.run(t, "", "ovs-vsctl", args...)
	return s
}

func (s *ovs) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+s.dir, "OVS_DBDIR="+s.dir, "OVS_LOGDIR="+s.dir, "OVS_SYSCONFDIR="+s.dir)
	return cmd
}

// start starts a daemon that ends with the test.
func (s *ovs) start(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := s.command(context.Background(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() && stderr.Len() > 0 {
			t.Logf("%s: %s", name, stderr.String())
		}
	})
}

// run runs a tool and gives its output.
func (s *ovs) run(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := s.command(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

func (s *ovs) ofctl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	return s.run(t, stdin, "ovs-ofctl", append([]string{"-O", "OpenFlow15"}, args...)...)
}

// socket is where a bridge listens for controllers.
func (s *ovs) socket(bridge string) string { return filepath.Join(s.dir, bridge+".mgmt") }
