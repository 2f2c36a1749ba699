package observe

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/run/reconcile"
)

// Metrics of an agent. Make it with New.
type Metrics struct {
	passes   *prometheus.CounterVec
	compile  prometheus.Histogram
	apply    prometheus.Histogram
	changes  prometheus.Counter
	failed   prometheus.Gauge
	problems prometheus.Gauge
	revision prometheus.Gauge
	objects  *prometheus.GaugeVec
	foreign  *prometheus.CounterVec
	cni      *prometheus.HistogramVec
}

// buckets reach from a tenth of a millisecond to half a minute, in numbers that people
// set limits in.
var buckets = []float64{
	0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30,
}

// New registers the metrics.
func New(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		passes:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_reconcile_passes_total", Help: "Passes of the reconcile loop by result."}, []string{"result"}),
		compile:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "fairlead_reconcile_compile_seconds", Help: "Time to compile the node's intent.", Buckets: buckets}),
		apply:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "fairlead_reconcile_apply_seconds", Help: "Time to apply the node's intent.", Buckets: buckets}),
		changes:  prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_plane_changes_total", Help: "Changes made in the kernel."}),
		failed:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_plane_failed_objects", Help: "Objects of the intent that are not applied."}),
		problems: prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_decide_problems", Help: "Problems with objects, as this node sees them."}),
		revision: prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_world_revision", Help: "Revision of the world that was applied last."}),
		objects:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fairlead_intent_objects", Help: "Objects of the node's intent by kind."}, []string{"kind"}),
		foreign:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_plane_foreign_changes_total", Help: "Changes that somebody else made to what is ours."}, []string{"subsystem"}),
		cni:      prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fairlead_cni_request_seconds", Help: "Time to serve CNI requests by command and result code.", Buckets: buckets}, []string{"command", "code"}),
	}
	r.MustRegister(m.passes, m.compile, m.apply, m.changes, m.failed, m.problems, m.revision, m.objects, m.foreign, m.cni,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Pass counts one pass of the loop.
func (m *Metrics) Pass(o reconcile.Outcome) {
	result := "ok"
	switch {
	case o.Err != nil:
		result = "error"
	case len(o.Report.Failed) > 0:
		result = "partial"
	}
	m.passes.WithLabelValues(result).Inc()
	m.compile.Observe(o.Compile.Seconds())
	m.apply.Observe(o.Report.Duration.Seconds())
	m.changes.Add(float64(len(o.Report.Changes)))
	m.failed.Set(float64(len(o.Report.Failed)))
	m.problems.Set(float64(len(o.Problems)))
	m.revision.Set(float64(o.Snapshot.Revision))
	for kind, n := range map[string]int{
		"vpc": len(o.Intent.VPCs), "subnet": len(o.Intent.Subnets), "peer": len(o.Intent.Peers),
		"route": len(o.Intent.Routes), "port": len(o.Intent.Ports),
	} {
		m.objects.WithLabelValues(kind).Set(float64(n))
	}
}

// Foreign counts a change made from outside.
func (m *Metrics) Foreign(f apply.Foreign) { m.foreign.WithLabelValues(f.Subsystem).Inc() }

// CNI counts one request of a runtime; code is "0" for success, else the CNI error
// code.
func (m *Metrics) CNI(command, code string, took time.Duration) {
	m.cni.WithLabelValues(command, code).Observe(took.Seconds())
}

// Values is a family of gauges or counters that is read when somebody asks.
type Values struct {
	Name, Help string
	// Label names what distinguishes the values, "reason" or "subnet".
	Label   string
	Counter bool
	// Read returns label → value. An error leaves the family out of this scrape.
	Read func() (map[string]float64, error)
}

// Register adds the family.
func (v Values) Register(r prometheus.Registerer) {
	r.MustRegister(&collector{values: v, desc: prometheus.NewDesc(v.Name, v.Help, []string{v.Label}, nil)})
}

type collector struct {
	values Values
	desc   *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	read, err := c.values.Read()
	if err != nil {
		return
	}
	kind := prometheus.GaugeValue
	if c.values.Counter {
		kind = prometheus.CounterValue
	}
	for label, v := range read {
		ch <- prometheus.MustNewConstMetric(c.desc, kind, v, label)
	}
}

// Handler serves /metrics, /livez (200), /healthz (200 unless a component has failed) and
// /readyz (200 once ready returns nil), the last three with every component's state as JSON.
// Only /livez is a reason to restart the process: what has failed elsewhere, say a switch
// that is away, is retried by the one that runs, and waits for the kubelet's back-off
// otherwise.
func Handler(g prometheus.Gatherer, h *health.Registry, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	answer := func(w http.ResponseWriter, err error) {
		body := struct {
			Error  string         `json:"error,omitempty"`
			States []health.State `json:"states"`
		}{States: h.States()}
		status := http.StatusOK
		if err != nil {
			body.Error, status = err.Error(), http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		// The reader may be gone; there is nobody to tell.
		_ = json.NewEncoder(w).Encode(body)
	}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, failed(h.Worst())) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, ready()) })
	return mux
}

type failure health.State

func (f failure) Error() string { return f.Component + ": " + f.Message }

func failed(s health.State) error {
	if s.Level == health.Failed {
		return failure(s)
	}
	return nil
}
