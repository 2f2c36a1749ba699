package policy

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/examples"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// enforced is how long policy may take to be in force on every node.
const enforced = time.Second

// The worked examples do in a lab what their comments say, for people who follow the
// documentation: applied, checked and deleted by the command line tool.
func TestExamples(t *testing.T) {
	c := newCluster(t)
	root, err := labtest.Repository()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "examples", "policy")
	pods, all, err := examples.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	c.cli("apply", "-f", filepath.Join(dir, examples.WorldFile))
	t.Cleanup(func() { c.remove(pods) })
	limit := labtest.Limit(t, enforced)
	members := c.members()
	c.agree(members, labtest.Patience)
	for _, e := range all {
		t.Run(e.Name, func(t *testing.T) {
			c := c.with(t)
			c.cli("apply", "-f", e.Path)
			on := c.agree(members, limit)
			checked := c.check()
			for _, x := range e.Expect {
				i := slices.IndexFunc(checked.Results, func(f lab.Finding) bool {
					return f.From == x.From.String() && f.To == x.To.String() && f.Proto == x.Protocol.String() && f.Port == int(x.Port)
				})
				if i < 0 {
					t.Errorf("%s: it was not probed", x)
				} else if got := checked.Results[i].Got; got != x.Allowed {
					t.Errorf("%s: reached is %t, want %t", x, got, x.Allowed)
				}
			}
			c.cli("delete", "-f", e.Path)
			off := c.agree(members, limit)
			t.Logf("in force %s after it was applied, gone %s after it was deleted", on.Round(time.Millisecond), off.Round(time.Millisecond))
		})
	}
	if r := c.check(); slices.ContainsFunc(r.Results, func(f lab.Finding) bool { return !f.Got }) {
		t.Error("without a policy not every pod reaches every other")
	}
}

// check is "fairlead lab check --all", which must find nothing.
func (c *cluster) check() lab.CheckResult {
	c.t.Helper()
	var r lab.CheckResult
	out := c.cli("lab", "check", "--all", "-o", "json")
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		c.t.Fatalf("read the answer of lab check: %v: %s", err, out)
	}
	if !r.OK() || r.Probes == 0 || r.Agree != r.Probes {
		c.t.Errorf("lab check: %d of %d agree: %+v", r.Agree, r.Probes, r.Disagree)
	}
	return r
}
