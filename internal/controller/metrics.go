package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fairlead-sdn/fairlead/internal/controller/plan"
)

// Metrics of a controller. Make it with NewMetrics.
type Metrics struct {
	leader     prometheus.Gauge
	plans      prometheus.Counter
	planTime   prometheus.Histogram
	writes     *prometheus.CounterVec
	vanished   prometheus.Gauge
	held       prometheus.Gauge
	suppressed prometheus.Gauge
}

// NewMetrics registers the metrics, and those of the process.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		leader:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_controller_leader", Help: "1 while this controller leads."}),
		plans:      prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_controller_plans_total", Help: "Plans made while leading."}),
		planTime:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "fairlead_controller_plan_seconds", Help: "Time to decide what to write.", Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 12)}),
		writes:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_controller_writes_total", Help: "Writes by kind, action and result (ok, conflict, refused by a check before it, error)."}, []string{"kind", "action", "result"}),
		vanished:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_controller_vanished_nodes", Help: "Nodes without a Node object that have left blocks or a NodeNetwork."}),
		held:       prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_controller_held_blocks", Help: "Blocks of vanished nodes that are kept for living pods."}),
		suppressed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_controller_suppressed_events", Help: "Problems without an Event because there are too many."}),
	}
	r.MustRegister(m.leader, m.plans, m.planTime, m.writes, m.vanished, m.held, m.suppressed,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *Metrics) planned(p plan.Plan, took time.Duration) {
	m.plans.Inc()
	m.planTime.Observe(took.Seconds())
	m.vanished.Set(float64(len(p.Vanished)))
	m.held.Set(float64(len(p.Held)))
	m.suppressed.Set(float64(p.Suppressed))
}

func (m *Metrics) wrote(w plan.Write, result string) {
	m.writes.WithLabelValues(string(w.Kind), w.Action.String(), result).Inc()
}
