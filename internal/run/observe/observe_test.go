package observe

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/run/reconcile"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func registry(t *testing.T) (*prometheus.Registry, *Metrics) {
	t.Helper()
	r := prometheus.NewRegistry()
	return r, New(r)
}

func TestMetricsPassLint(t *testing.T) {
	r, m := registry(t)
	m.Pass(reconcile.Outcome{Snapshot: &world.Snapshot{Revision: 7}, Intent: intent.Node{Ports: make([]intent.Port, 3)}})
	m.Foreign(apply.Foreign{Subsystem: "route"})
	m.CNI("ADD", "0", time.Millisecond)
	Values{Name: "fairlead_wire_dropped_packets_total", Help: "Drops.", Label: "reason", Counter: true, Read: func() (map[string]float64, error) {
		return map[string]float64{"in-bad-source": 4}, nil
	}}.Register(r)
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "go_") && !strings.HasPrefix(p.Metric, "process_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for name, want := range map[string]string{
		"fairlead_world_revision":              "fairlead_world_revision 7",
		"fairlead_intent_objects":              `fairlead_intent_objects{kind="port"} 3`,
		"fairlead_wire_dropped_packets_total":  `fairlead_wire_dropped_packets_total{reason="in-bad-source"} 4`,
		"fairlead_plane_foreign_changes_total": `fairlead_plane_foreign_changes_total{subsystem="route"} 1`,
		"fairlead_reconcile_passes_total":      `fairlead_reconcile_passes_total{result="ok"} 1`,
	} {
		text := get(t, Handler(r, health.NewRegistry(time.Now), nil), "/metrics", http.StatusOK)
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s: %q is missing", name, want)
		}
	}
}

func get(t *testing.T, h http.Handler, path string, status int) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != status {
		t.Errorf("GET %s: status %d, want %d", path, w.Code, status)
	}
	return w.Body.String()
}

func TestHealthAndReadiness(t *testing.T) {
	r, _ := registry(t)
	states := health.NewRegistry(time.Now)
	var notReady error
	h := Handler(r, states, func() error { return notReady })
	states.Set("plane", health.Degraded, "one port")
	get(t, h, "/healthz", http.StatusOK)
	get(t, h, "/readyz", http.StatusOK)
	states.Set("plane", health.Failed, "dead")
	get(t, h, "/livez", http.StatusOK)
	if body := get(t, h, "/healthz", http.StatusServiceUnavailable); !strings.Contains(body, `"plane: dead"`) {
		t.Errorf("body: %s", body)
	}
	notReady = errors.New("not synced")
	get(t, h, "/readyz", http.StatusServiceUnavailable)
}
