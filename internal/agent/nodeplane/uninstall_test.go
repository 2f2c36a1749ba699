package nodeplane

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/agent"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/serve/socket"
)

// An agent that runs would put back what an uninstall removes: it is waited for, and kept
// from starting again.
func TestUninstallWaitsForTheAgent(t *testing.T) {
	u := Uninstall{Config: config.Agent{RunDir: t.TempDir()}, Patience: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler)}
	running, err := socket.Listen(u.socket(), "CNI", u.Log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.keepAgentOff(t.Context()); err == nil || !strings.Contains(err.Error(), "another fairlead-agent serves the CNI socket") {
		t.Errorf("while an agent runs: %v", err)
	}

	ended := make(chan error, 1)
	go func() { ended <- errors.Join(running.Close(), running.Remove()) }()
	u.Patience = time.Minute
	done, err := u.keepAgentOff(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, err := socket.Listen(u.socket(), "CNI", u.Log); err == nil {
		t.Error("an agent starts while the node is uninstalled")
	}
	if err := done(); err != nil {
		t.Fatal(err)
	}
	next, err := socket.Listen(u.socket(), "CNI", u.Log)
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	if err := errors.Join(next.Close(), next.Remove()); err != nil {
		t.Error(err)
	}
}

// The linux plane does not know what that of Open vSwitch has made: a node with it is left
// whole until the right configuration is given.
func TestUninstallOfTheOtherPlane(t *testing.T) {
	ns := netnstest.New(t)
	err := ns.Do(func() error {
		a := netlink.NewLinkAttrs()
		a.Name = claims.OVSBridge
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "peer"}); err != nil {
			return err
		}
		c := config.DefaultAgent()
		c.StateDir, c.RunDir, c.BPFDir = t.TempDir(), t.TempDir(), t.TempDir()
		record := filepath.Join(c.StateDir, "world.checkpoint")
		if err := os.WriteFile(record, []byte("x"), 0o600); err != nil {
			return err
		}
		u := Uninstall{Config: c, Plugin: agent.Plugin{BinDir: t.TempDir(), ConfDir: t.TempDir()}, Patience: time.Second, Log: slog.New(slog.DiscardHandler)}
		if found, err := u.Found(); err != nil || u.Check(found) == nil {
			t.Errorf("found %v: %v", found, err)
		}
		removed, err := u.Run(context.WithoutCancel(t.Context()))
		if len(removed) > 0 || err == nil || !strings.Contains(err.Error(), "plane: ovs; give the agent's with --config FILE") {
			t.Errorf("removed %v: %v", removed, err)
		}
		_, err = os.Stat(record)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What is ours is found, removed and told; what is not stays. Nothing is pinned where no BPF
// file system is.
func TestUninstallWithoutBPFFileSystem(t *testing.T) {
	ns := netnstest.New(t)
	if err := ns.Do(func() error { uninstallAll(t, filepath.Join(t.TempDir(), "fairlead")); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestUninstallTellsWhatItRemoves(t *testing.T) {
	bpf := t.TempDir()
	if err := unix.Mount("bpf", bpf, "bpf", 0, ""); err != nil {
		t.Skipf("cannot mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(bpf, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", bpf, err)
		}
	})
	ns := netnstest.New(t)
	if err := ns.Do(func() error { uninstallAll(t, filepath.Join(bpf, "fairlead")); return nil }); err != nil {
		t.Fatal(err)
	}
}

func uninstallAll(t *testing.T, bpf string) {
	dir := t.TempDir()
	c := config.DefaultAgent()
	c.StateDir, c.RunDir, c.BPFDir = filepath.Join(dir, "state"), filepath.Join(dir, "run"), bpf
	p := agent.Plugin{BinDir: filepath.Join(dir, "bin"), ConfDir: filepath.Join(dir, "net.d")}
	for path, text := range map[string]string{
		"state/world.checkpoint": "x", "state/mine.txt": "of somebody else", "bin/fairlead-cni": "x", "bin/bridge": "x",
		"net.d/10-fairlead.conflist": `{"plugins": [{"type": "fairlead-cni"}]}`, "net.d/20-other.conflist": `{"plugins": [{"type": "bridge"}]}`,
	} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Error(err)
			return
		}
	}
	for _, name := range []string{claims.PortPrefix + "x", "other0"} {
		a := netlink.NewLinkAttrs()
		a.Name = name
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "peer-" + name}); err != nil {
			t.Error(err)
			return
		}
	}
	u := Uninstall{Config: c, Plugin: p, Patience: time.Second, Log: slog.New(slog.DiscardHandler)}
	want := []string{
		"link " + claims.PortPrefix + "x", "file " + filepath.Join(dir, "net.d/10-fairlead.conflist"), "file " + filepath.Join(dir, "bin/fairlead-cni"),
		"file " + filepath.Join(dir, "state/world.checkpoint"),
	}
	found, err := u.Found()
	if err != nil {
		t.Error(err)
		return
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	removed, err := u.Run(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Error(err)
		return
	}
	if diff := cmp.Diff(want, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	for _, path := range []string{"state/mine.txt", "bin/bridge", "net.d/20-other.conflist"} {
		if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
			t.Errorf("of somebody else: %v", err)
		}
	}
	if _, err := netlink.LinkByName("other0"); err != nil {
		t.Errorf("a link of somebody else: %v", err)
	}
	if left, err := u.Found(); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if again, err := u.Run(context.WithoutCancel(t.Context())); err != nil || len(again) > 0 {
		t.Errorf("the second time it removes %v: %v", again, err)
	}
}
