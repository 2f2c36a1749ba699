package conformance

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var (
	pluginDir  = flag.String("plugin-dir", "", "folders with the plugins to test, separated by colons; default: the reference plugins in "+referenceDir)
	conflist   = flag.String("conflist", "", "file with the network configuration list to test them with")
	notClaimed = flag.String("not-claimed", "", "cases that the plugin need not pass, as NAME=REASON separated by semicolons")
)

// referenceDir is where Debian's containernetworking-plugins are.
const referenceDir = "/usr/lib/cni"

// referenceTargets are the reference plugins bridge and host-local as one would use
// them: with masquerading, and with both families.
func referenceTargets() map[string]Target {
	const list = `{"cniVersion":"1.0.0","name":"conformance","plugins":[{
		"type":"bridge","bridge":"cnc0","isGateway":true,"ipMasq":%t,"hairpinMode":true,
		"ipam":{"type":"host-local","ranges":[%s],"routes":[%s]}}]}`
	dirs := []string{referenceDir}
	return map[string]Target{
		"reference plugins with masquerading": {
			PluginDirs: dirs,
			Conflist:   fmt.Appendf(nil, list, true, `[{"subnet":"10.93.7.0/24"}]`, `{"dst":"0.0.0.0/0"}`),
			NotClaimed: map[string]string{
				"Two interfaces in one container are independent": "with ipMasq, bridge keeps one iptables chain per container, and a DEL of one interface fails while the other uses it",
			},
		},
		"reference plugins with IPv4 and IPv6": {
			PluginDirs: dirs,
			Conflist:   fmt.Appendf(nil, list, false, `[{"subnet":"10.93.7.0/24"}],[{"subnet":"fd93:7::/64"}]`, `{"dst":"0.0.0.0/0"},{"dst":"::/0"}`),
		},
	}
}

// TestPlugin runs the suite on the plugin of the command line, else on the
// reference plugins.
func TestPlugin(t *testing.T) {
	if *pluginDir != "" || *conflist != "" {
		if *pluginDir == "" || *conflist == "" {
			t.Fatal("give both -plugin-dir and -conflist, or none")
		}
		list, err := os.ReadFile(*conflist)
		if err != nil {
			t.Fatal(err)
		}
		target := Target{PluginDirs: filepath.SplitList(*pluginDir), Conflist: list, NotClaimed: map[string]string{}}
		for entry := range strings.SplitSeq(*notClaimed, ";") {
			if name, reason, ok := strings.Cut(entry, "="); ok {
				target.NotClaimed[name] = reason
			} else if entry != "" {
				t.Fatalf("-not-claimed: %q is not NAME=REASON", entry)
			}
		}
		Run(t, observed(t, target))
		return
	}
	for name, target := range referenceTargets() {
		t.Run(name, func(t *testing.T) {
			requireReference(t)
			Run(t, observed(t, target))
		})
	}
}

func requireReference(t *testing.T) {
	t.Helper()
	for _, name := range []string{"bridge", "host-local"} {
		if _, err := os.Stat(filepath.Join(referenceDir, name)); err != nil {
			t.Skipf("the reference plugins are not installed (package containernetworking-plugins): %v", err)
		}
	}
}

// observed adds a fresh node, and Held if host-local is the list's allocator: it
// keeps one file per address.
func observed(t *testing.T, target Target) Target {
	t.Helper()
	target.RunIn = NewNode(t)
	var list struct {
		Name    string `json:"name"`
		Plugins []struct {
			IPAM struct {
				Type    string `json:"type"`
				DataDir string `json:"dataDir"`
			} `json:"ipam"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal(target.Conflist, &list); err != nil {
		t.Fatal(err)
	}
	for _, plugin := range list.Plugins {
		if plugin.IPAM.Type != "host-local" {
			continue
		}
		dir := plugin.IPAM.DataDir
		if dir == "" {
			dir = "/var/lib/cni/networks"
		}
		target.Held = func() (held []netip.Addr, err error) {
			err = target.RunIn(func() error {
				held, err = hostLocalAddresses(filepath.Join(dir, list.Name))
				return err
			})
			return held, err
		}
	}
	return target
}

func hostLocalAddresses(dir string) ([]netip.Addr, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var held []netip.Addr
	for _, e := range entries {
		if addr, err := netip.ParseAddr(e.Name()); err == nil {
			held = append(held, addr)
		}
	}
	return held, err
}

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == wrapperName {
		os.Exit(wrapperMain())
	}
	flag.Parse()
	os.Exit(m.Run())
}

func TestNoCaseIsNamedTwice(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range Cases() {
		if seen[name] {
			t.Errorf("two cases are named %q", name)
		}
		seen[name] = true
	}
}

// The guide lists every case.
func TestGuideListsEveryCase(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/cni-conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases() {
		line := fmt.Sprintf("- %s", c.name)
		if c.since != "" {
			line += " (" + c.since + ")"
		}
		if !strings.Contains(string(guide), line+"\n") {
			t.Errorf("docs/cni-conformance.md lacks the line %q", line)
		}
	}
}
