package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-sdn/fairlead/internal/controller/plan"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

func TestMetricsPassLint(t *testing.T) {
	r := prometheus.NewRegistry()
	m := NewMetrics(r)
	m.planned(plan.Plan{Vanished: make([]plan.Vanished, 3)}, time.Millisecond)
	m.wrote(plan.Write{Action: plan.Release, Ref: plan.Ref{Kind: datastore.KindIPBlock}}, "ok")
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "go_") && !strings.HasPrefix(p.Metric, "process_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	if got := testutil.ToFloat64(m.vanished); got != 3 {
		t.Errorf("vanished nodes: %v, want 3", got)
	}
}
