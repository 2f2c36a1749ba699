package ovstest

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/lab/ovshost"
	"github.com/fairlead-sdn/fairlead/lab/process"
)

// patience is how long a daemon may take to start, and a program to answer.
const patience = 30 * time.Second

// OVS is an Open vSwitch.
type OVS struct {
	Host ovshost.Host
	// Server is ovsdb-server, Switch is ovs-vswitchd.
	Server, Switch *Daemon
	t              testing.TB
}

// Start starts an Open vSwitch in the namespace, or skips the test if none is
// installed.
func Start(t testing.TB, ns *netns.NS) *OVS {
	t.Helper()
	if err := ovshost.Installed(); err != nil {
		t.Skip(err)
	}
	// Not t.TempDir: its paths are too long for sockets.
	dir, err := os.MkdirTemp("", "ovs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	o := &OVS{Host: ovshost.Host{Run: filepath.Join(dir, "run"), Data: filepath.Join(dir, "db")}, t: t}
	if err := o.Host.Prepare(); err != nil {
		t.Fatal(err)
	}
	server, err := o.Host.DatabaseServer()
	if err != nil {
		t.Fatal(err)
	}
	vswitch, err := o.Host.Switch()
	if err != nil {
		t.Fatal(err)
	}
	o.Server = newDaemon(t, ns, server, func() string { return o.Host.Database() })
	o.Switch = newDaemon(t, ns, vswitch, func() string {
		pid, err := os.ReadFile(filepath.Join(o.Host.Run, "ovs-vswitchd.pid"))
		if err != nil {
			return ""
		}
		return filepath.Join(o.Host.Run, "ovs-vswitchd."+string(bytes.TrimSpace(pid))+".ctl")
	})
	o.Server.Start()
	o.Switch.Start()
	return o
}

// Wipe replaces the database by an empty one; ovsdb-server is killed for it and
// started again.
func (o *OVS) Wipe() {
	o.t.Helper()
	o.Server.Kill()
	if err := o.Host.Wipe(); err != nil {
		o.t.Fatal(err)
	}
	o.Server.Start()
}

// Run runs a program of Open vSwitch (ovs-vsctl, ovs-ofctl, ovs-appctl) against this
// one and returns what it prints. The test fails if it does.
func (o *OVS) Run(name string, args ...string) string {
	o.t.Helper()
	out, err := o.Try(nil, name, args...)
	if err != nil {
		o.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

// Try is Run with input, and returns the error.
func (o *OVS) Try(stdin []byte, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = o.Host.Env()
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Daemon is a process that a test starts and mistreats.
type Daemon struct {
	t       testing.TB
	ns      *netns.NS
	command process.Command
	// socket is what it listens on when it is ready, "" while that is not known.
	socket func() string
	log    bytes.Buffer
	cmd    *exec.Cmd
	done   chan struct{}
}

func newDaemon(t testing.TB, ns *netns.NS, c process.Command, socket func() string) *Daemon {
	d := &Daemon{t: t, ns: ns, command: c, socket: socket}
	t.Cleanup(func() {
		d.Kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", c.Args[0], d.log.Bytes())
		}
	})
	return d
}

// Start starts the daemon and waits until it listens.
func (d *Daemon) Start() {
	d.t.Helper()
	d.cmd = &exec.Cmd{
		Path: d.command.Path, Args: d.command.Args, Env: d.command.Env, Dir: d.command.Dir,
		Stdout: &d.log, Stderr: &d.log, SysProcAttr: dieWithParent(),
	}
	d.done = make(chan struct{})
	started := make(chan error, 1)
	go func(cmd *exec.Cmd, done chan<- struct{}) {
		defer close(done)
		// The thread waits for the process, for the kernel kills it with its thread.
		err := d.ns.Do(func() error {
			err := cmd.Start()
			started <- err
			if err == nil {
				_ = cmd.Wait()
			}
			return nil
		})
		if err != nil {
			started <- err
		}
	}(d.cmd, d.done)
	if err := <-started; err != nil {
		d.t.Fatalf("start %s: %v", d.command.Path, err)
	}
	d.ready()
}

func (d *Daemon) ready() {
	d.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		if socket := d.socket(); socket != "" {
			if c, err := net.Dial("unix", socket); err == nil {
				c.Close()
				return
			}
		}
		select {
		case <-tick.C:
		case <-d.done:
			d.t.Fatalf("%s ended:\n%s", d.command.Args[0], d.log.Bytes())
		case <-deadline.C:
			d.t.Fatalf("%s does not listen", d.command.Args[0])
		}
	}
}

// Kill kills the daemon and waits until it is gone. One that does not run is no
// error.
func (d *Daemon) Kill() {
	if d.cmd == nil || d.cmd.Process == nil {
		return
	}
	_ = d.cmd.Process.Kill()
	<-d.done
}

// Restart kills the daemon and starts it again.
func (d *Daemon) Restart() {
	d.t.Helper()
	d.Kill()
	d.Start()
}

// Signal sends a signal: SIGSTOP freezes, SIGCONT continues, SIGTERM asks to end.
func (d *Daemon) Signal(sig os.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatalf("signal %s to %s: %v", sig, d.command.Args[0], err)
	}
}

// Pid is the daemon's process.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }
