package attacks

import (
	"net/netip"
	"testing"

	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// shared is a dual-stack lab that the tests leave as they find it.
var shared = &labtest.Shared{Options: lab.Options{
	Nodes:   3,
	Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd00:128::/48")},
}}

func TestMain(m *testing.M) { labtest.Main(m, shared) }
