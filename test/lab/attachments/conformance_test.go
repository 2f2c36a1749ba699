package attachments

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	conformance "github.com/fairlead-sdn/fairlead/test/conformance/cni"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// The CNI conformance suite against Fairlead, with both families.
func TestConformance(t *testing.T) {
	l := labtest.Up(t, lab.Options{Nodes: 1, Subnets: []netip.Prefix{
		netip.MustParsePrefix("10.128.0.0/16"), netip.MustParsePrefix("fd00:10::/64"),
	}})
	conformance.Run(t, conformance.Target{
		PluginDirs: []string{filepath.Dir(l.Status().Options.CNI)},
		Conflist:   []byte(`{"cniVersion": "1.1.0", "name": "conformance", "plugins": [{"type": "fairlead-cni", "standalone": true}]}`),
		RunIn:      l.InNode("node-1"),
		Held: func() (held []netip.Addr, err error) {
			list, err := labtest.TryAdminGet[[]admin.Attachment](l, "node-1", "/v1/attachments")
			for _, a := range list {
				held = append(held, a.Addresses...)
			}
			return held, err
		},
	})
}
