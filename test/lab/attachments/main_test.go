package attachments

import (
	"testing"

	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// shared is a lab of two nodes, one for calls of a made-up runtime and one for pods,
// that the tests leave as they find it.
var shared = &labtest.Shared{Options: lab.Options{Nodes: 2}}

func TestMain(m *testing.M) { labtest.Main(m, shared) }
