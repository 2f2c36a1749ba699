package labtest_test

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

func TestQuantile(t *testing.T) {
	m := labtest.Metrics{
		`x_bucket{code="0",command="ADD",le="0.1"}`:   90,
		`x_bucket{code="0",command="ADD",le="1"}`:     98,
		`x_bucket{code="0",command="ADD",le="+Inf"}`:  98,
		`x_bucket{code="11",command="ADD",le="0.1"}`:  0,
		`x_bucket{code="11",command="ADD",le="1"}`:    1,
		`x_bucket{code="11",command="ADD",le="+Inf"}`: 2,
		`x_bucket{code="0",command="DEL",le="0.1"}`:   0,
		`x_bucket{code="0",command="DEL",le="+Inf"}`:  1000,
	}
	for q, want := range map[float64]time.Duration{0.5: 100 * time.Millisecond, 0.99: time.Second, 1: math.MaxInt64} {
		if got, n := m.Quantile("x", q, `command="ADD"`); got != want || n != 100 {
			t.Errorf("quantile %v: %s of %d, want %s of 100", q, got, n, want)
		}
	}
}

// The harness itself, in a lab.
func TestHarness(t *testing.T) {
	before, err := os.ReadDir("/run")
	if err != nil {
		t.Fatal(err)
	}
	l := labtest.Up(t, lab.Options{Nodes: 1})
	t.Run("exec", func(t *testing.T) {
		l := l.With(t)
		if got := l.Exec("node-1", "sh", "-c", "hostname; echo oh >&2; exit 3"); got != (labtest.Output{Stdout: "node-1\n", Stderr: "oh\n", Exit: 3}) {
			t.Errorf("on a node: %s", got)
		}
		l.Apply("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: any, ports: [{containerPort: 80}]}]}")
		l.WaitPods()
		if got := l.MustExec("default/p", "hostname"); got != "p\n" {
			t.Errorf("in a pod: %q", got)
		}
		if got := l.MustExec("outside", "hostname"); got != "outside\n" {
			t.Errorf("outside: %q", got)
		}
	})
	t.Run("runtime", func(t *testing.T) {
		l := l.With(t)
		r := l.Runtime("node-1")
		s := r.Sandbox(t, "harness")
		a, err := s.Add(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Check(t.Context(), a), s.Del(t.Context()), r.Status(t.Context())); err != nil {
			t.Error(err)
		}
		s.ID = "../x"
		if _, err := s.Add(t.Context()); labtest.CodeOf(err) != 4 {
			t.Errorf("a bad id: %v, want code 4", err)
		}
		if _, n := l.Metrics("node-1").Quantile("fairlead_cni_request_seconds", 1, `command="ADD"`); n < 2 {
			t.Errorf("the agent has counted %d ADDs", n)
		}
		if got := labtest.AdminGet[admin.Status](l, "node-1", "/v1/status").Node; got != "node-1" {
			t.Errorf("the agent is that of %q", got)
		}
	})
	after, err := os.ReadDir("/run")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range after {
		known := strings.HasPrefix(e.Name(), "fairlead-")
		for _, b := range before {
			known = known || b.Name() == e.Name()
		}
		if !known {
			t.Errorf("a lab made /run/%s", e.Name())
		}
	}
}
