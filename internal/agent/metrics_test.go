package agent

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// docs/config.md lists the agent's metrics, with their labels.
func TestMetricsAreDocumented(t *testing.T) {
	n := newNode(t, cluster(t))
	n.boot()
	n.add("c1", "web")
	n.plane.Damage(n.plane.Intent().Ports[0].Ref())
	n.awaitStatus(func(s admin.Status) bool {
		return s.Counts["ports"] == 1 && slices.Contains(n.metricNames(), "fairlead_plane_foreign_changes_total{subsystem}")
	})

	raw, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(raw), "| agent | |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`(fairlead_[^`]+)`").FindAllStringSubmatch(table, -1) {
		documented[m[1]] = true
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(documented)), n.metricNames()); d != "" {
		t.Errorf("docs/config.md against /metrics (-documented +served):\n%s", d)
	}
}

// metricNames are the metrics of Fairlead that the agent serves, as name{label,label}.
func (n *node) metricNames() []string {
	n.t.Helper()
	families, err := n.agent.registry.Gather()
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "fairlead_") {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		name := f.GetName()
		if len(labels) > 0 {
			slices.Sort(labels)
			name += "{" + strings.Join(labels, ",") + "}"
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
