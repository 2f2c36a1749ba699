package agent

import (
	"context"
	"fmt"
	"net/url"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// Tabled is a Plane that can show, as text for people, the tables that an intent renders to.
type Tabled interface {
	Tables(intent.Node) string
}

// serveTables shows what the kernel's tables should be; audit tells whether they are.
func (a *Agent) serveTables(context.Context, url.Values) (any, error) {
	t, ok := a.Plane.(Tabled)
	if !ok {
		return nil, fmt.Errorf("node %s: this data plane has no tables to show", a.Node)
	}
	return admin.Tables{Node: a.Node, Plane: a.Config.Agent.Plane, Text: t.Tables(a.loop.Last().Intent)}, nil
}
