package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply/preflight"
)

func TestPreflight(t *testing.T) {
	c := newCluster(t)
	c.write("net.d/00-other.conflist", "{}")
	dir := filepath.Join(c.dir, "net.d")
	r := c.run("preflight", "--conf-dir", dir, "--subnet", "203.0.113.0/24,2001:db8::/64", "--service-cidr", "203.0.113.0/28", "-o", "json")
	var got []preflight.Check
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.code != exitUsage {
		t.Fatalf("%v: %+v", err, r)
	}
	by := map[string]preflight.Check{}
	for _, x := range got {
		by[x.Name] = x
	}
	if x := by["prefixes"]; x.State != preflight.Missing || !strings.Contains(x.Found, "Subnet 203.0.113.0/24 overlaps the Services' 203.0.113.0/28") {
		t.Errorf("%+v", x)
	}
	if x := by["CNI configurations"]; x.State != preflight.Missing || !strings.Contains(x.Found, "00-other.conflist sorts before 10-fairlead.conflist") {
		t.Errorf("%+v", x)
	}
	if r := c.run("preflight", "--conf-dir", dir, "--conf-file", "00-fairlead.conflist"); !strings.Contains(r.out, "00-other.conflist is also in") || !strings.Contains(r.out, "CHECK") {
		t.Errorf("as a table, under a name that sorts first: %+v", r)
	}
	for _, flag := range []string{"--subnet", "--service-cidr"} {
		if r := c.run("preflight", flag, "10.0.0.1/8"); r.code != exitUsage || !strings.Contains(r.err, "want a prefix") {
			t.Errorf("%s: %+v", flag, r)
		}
	}
}
