package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

// testPlugin makes what is to be installed, and empty directories of a runtime.
func testPlugin(t *testing.T) Plugin {
	t.Helper()
	dir := t.TempDir()
	p := Plugin{
		Program: filepath.Join(dir, "plugin"), List: filepath.Join(dir, "10-fairlead.conflist"),
		BinDir: filepath.Join(dir, "opt/bin"), ConfDir: filepath.Join(dir, "net.d"),
	}
	write(t, p.Program, "program")
	write(t, p.List, `{"cniVersion":"1.1.0","name":"fairlead","plugins":[{"type":"fairlead-cni"}]}`)
	return p
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestPluginIsInstalledAndRemoved(t *testing.T) {
	p := testPlugin(t)
	foreign := filepath.Join(p.ConfDir, "20-other.conflist")
	write(t, foreign, `{"name":"other","plugins":[{"type":"bridge"},{"type":"fairlead-cni"}]}`)
	for range 2 { // again: an upgrade
		if err := p.Install(); err != nil {
			t.Fatal(err)
		}
		warning, err := p.Offer()
		if err != nil || !strings.HasPrefix(warning, "20-other.conflist is also in "+p.ConfDir) {
			t.Fatalf("Offer() = %q, %v", warning, err)
		}
	}
	if diff := cmp.Diff([]string{"fairlead-cni"}, names(t, p.BinDir)); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10-fairlead.conflist", "20-other.conflist"}, names(t, p.ConfDir)); diff != "" {
		t.Errorf("configurations (-want +got):\n%s", diff)
	}
	info, err := os.Stat(filepath.Join(p.BinDir, "fairlead-cni"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode of the plugin: %v, %v", info.Mode(), err)
	}
	// A configuration of an older release, under another name, is ours too.
	write(t, filepath.Join(p.ConfDir, "05-old.conflist"), `{"plugins":[{"type":"fairlead-cni"}]}`)
	for range 2 {
		if err := p.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, p.BinDir); len(got) != 0 {
		t.Errorf("programs are left: %v", got)
	}
	if diff := cmp.Diff([]string{"20-other.conflist"}, names(t, p.ConfDir)); diff != "" {
		t.Errorf("configurations (-want +got):\n%s", diff)
	}
}

func TestForeignConfigurationThatSortsFirstIsNamed(t *testing.T) {
	p := testPlugin(t)
	write(t, filepath.Join(p.ConfDir, "05-other.conf"), `{"type":"bridge"}`)
	write(t, filepath.Join(p.ConfDir, "00-readme"), "no configuration")
	warning, err := p.Offer()
	if err != nil || !strings.HasPrefix(warning, "05-other.conf sorts before 10-fairlead.conflist in "+p.ConfDir) {
		t.Errorf("Offer() = %q, %v", warning, err)
	}
}

func TestWrongListIsNotInstalled(t *testing.T) {
	p := testPlugin(t)
	write(t, p.List, `{"plugins":[{"type":"bridge"}]}`)
	if _, err := p.Offer(); err == nil || !strings.Contains(err.Error(), "is not a list with the plugin fairlead-cni") {
		t.Errorf("Offer() = %v", err)
	}
	if _, err := os.Stat(p.ConfDir); !os.IsNotExist(err) {
		t.Errorf("something was installed: %v", err)
	}
}

func TestRemoveWhereNothingIs(t *testing.T) {
	if err := testPlugin(t).Remove(); err != nil {
		t.Error(err)
	}
}

// awaitNames waits until a directory has these files; one that is missing has none.
func awaitNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	var diff string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		entries, _ := os.ReadDir(dir)
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if diff = cmp.Diff(want, got); diff == "" {
			return
		}
	}
	t.Fatalf("not in time: files in %s (-want +got):\n%s", dir, diff)
}

// The runtime takes a node for ready when it finds the configuration: it comes when pods
// can be served, comes back when it is removed, and others beside it are named.
func TestConfigurationIsOfferedWhenPodsCanBeServed(t *testing.T) {
	n := newNode(t, cluster(t))
	n.plugin = testPlugin(t)
	n.boot()
	list := filepath.Join(n.plugin.ConfDir, "10-fairlead.conflist")
	awaitNames(t, n.plugin.ConfDir, "10-fairlead.conflist")
	if code, out := n.cni(cniapi.Status, "", "", conf); code != 0 {
		t.Errorf("with the configuration there, STATUS: %v", out)
	}
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	awaitNames(t, n.plugin.ConfDir, "10-fairlead.conflist")

	foreign := filepath.Join(n.plugin.ConfDir, "05-other.conf")
	write(t, foreign, `{"type":"bridge"}`)
	level := func(want health.Level, message string) func(admin.Status) bool {
		return func(s admin.Status) bool {
			return slices.ContainsFunc(s.Health, func(h health.State) bool {
				return h.Component == "cni configuration" && h.Level == want && strings.HasPrefix(h.Message, message)
			})
		}
	}
	n.awaitStatus(level(health.Degraded, "05-other.conf sorts before 10-fairlead.conflist"))
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	n.awaitStatus(level(health.OK, ""))
	second := filepath.Join(n.plugin.ConfDir, "20-other.conflist")
	write(t, filepath.Join(n.plugin.ConfDir, "99-loopback.conf"), `{"type":"loopback"}`)
	write(t, second, `{"plugins":[{"type":"bridge"}]}`)
	n.awaitStatus(level(health.Degraded, "20-other.conflist is also in "))
	if code, out := n.cni(cniapi.Status, "", "", conf); code != 0 {
		t.Errorf("with another network that sorts after ours, STATUS: %v", out)
	}
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	n.awaitStatus(level(health.OK, ""))
}

// A node that knows nothing yet offers nothing; the runtime says that it has no network.
func TestNoConfigurationWithoutDatastore(t *testing.T) {
	n := newNode(t, away{})
	n.plugin = testPlugin(t)
	end := n.boot()
	n.awaitStatus(func(s admin.Status) bool { return s.NotReady != "" })
	end()
	if _, err := os.Stat(n.plugin.ConfDir); !os.IsNotExist(err) {
		t.Errorf("the network configuration was offered: %v", err)
	}
}
