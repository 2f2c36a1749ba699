package agent

import (
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

var _ Tabled = (*linuxplane.Plane)(nil)

// shown is a plane with tables.
type shown struct{ *plane }

func (shown) Tables(n intent.Node) string { return "table of " + n.Name }

func TestServeTables(t *testing.T) {
	n := newNode(t, cluster(t))
	n.boot()
	var got admin.Tables
	if err := n.client.Get(t.Context(), "/v1/tables", &got); err == nil || !strings.Contains(err.Error(), "has no tables to show") {
		t.Errorf("a plane without tables: %v", err)
	}
	show := &Agent{Config: n.agent.Config, loop: n.agent.loop}
	show.Plane = shown{n.plane}
	answer, err := show.serveTables(t.Context(), nil)
	if tables, ok := answer.(admin.Tables); err != nil || !ok || tables.Node != "n1" || tables.Plane != "linux" || !strings.HasPrefix(tables.Text, "table of ") {
		t.Errorf("%+v, %v", answer, err)
	}
}
