package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		warning, err := p.Install()
		if err != nil || warning != "" {
			t.Fatalf("Install() = %q, %v", warning, err)
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
	warning, err := p.Install()
	if err != nil || !strings.HasPrefix(warning, "05-other.conf sorts before 10-fairlead.conflist in "+p.ConfDir) {
		t.Errorf("Install() = %q, %v", warning, err)
	}
}

func TestWrongListIsNotInstalled(t *testing.T) {
	p := testPlugin(t)
	write(t, p.List, `{"plugins":[{"type":"bridge"}]}`)
	if _, err := p.Install(); err == nil || !strings.Contains(err.Error(), "is not a list with the plugin fairlead-cni") {
		t.Errorf("Install() = %v", err)
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
