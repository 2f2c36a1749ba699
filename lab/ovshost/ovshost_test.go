package ovshost_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/lab/ovshost"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

// TestDatabase holds that the database that we write is one to ovsdb-tool, with the
// schema that it was made of, and that Prepare keeps one that is there.
func TestDatabase(t *testing.T) {
	if err := ovshost.Installed(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	h := ovshost.Host{Run: filepath.Join(dir, "run"), Data: filepath.Join(dir, "db")}
	if err := h.Prepare(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.Data, "conf.db")
	tool := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "ovsdb-tool", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("ovsdb-tool %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got, want := tool("db-version", file), tool("schema-version", ovshost.Schema); got != want {
		t.Errorf("want version %s, got %s", want, got)
	}
	if got, want := tool("db-cksum", file), tool("schema-cksum", ovshost.Schema); got != want {
		t.Errorf("want checksum %s, got %s", want, got)
	}
	tool("transact", file, `["Open_vSwitch",{"op":"insert","table":"Open_vSwitch","row":{}}]`)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Prepare(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("Prepare changed what is there, %v", err)
	}
	if err := h.Wipe(); err != nil {
		t.Fatal(err)
	}
	var rows []struct{ Rows []json.RawMessage }
	out := tool("query", file, `["Open_vSwitch",{"op":"select","table":"Open_vSwitch","where":[]}]`)
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 || len(rows[0].Rows) != 0 {
		t.Errorf("a wiped database holds %s, %v", out, err)
	}
}

// TestTwoHosts holds that two of them on one machine do not know of each other.
func TestTwoHosts(t *testing.T) {
	a, b := ovstest.Start(t, netnstest.New(t)), ovstest.Start(t, netnstest.New(t))
	for name, o := range map[string]*ovstest.OVS{"br-a": a, "br-b": b} {
		o.Run("ovs-vsctl", "add-br", name, "--", "set", "bridge", name, "datapath_type=netdev")
		if got := strings.TrimSpace(o.Run("ovs-vsctl", "list-br")); got != name {
			t.Errorf("want %s, got %s", name, got)
		}
		if _, err := os.Stat(o.Host.Management(name)); err != nil {
			t.Error(err)
		}
	}
	a.Switch.Restart()
	if got := a.Run("ovs-vsctl", "wait-until", "Interface", "br-a", "ofport>0", "--", "get", "Interface", "br-a", "ofport"); got != "65534\n" {
		t.Errorf("after a restart the port is %s", got)
	}
}
