package labtest

import (
	"bufio"
	"context"
	"math"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// metricsAddress is where agents serve metrics in a lab.
const metricsAddress = "127.0.0.1:9090"

// Metrics are the samples of a node's agent, by name and labels as it writes them.
type Metrics map[string]float64

// Metrics reads them.
func (l *Lab) Metrics(node string) Metrics {
	l.t.Helper()
	in := l.InNode(node)
	client := http.Client{Timeout: callTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			err = in(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", metricsAddress)
				return err
			})
			return conn, err
		},
	}}
	answer, err := client.Get("http://" + metricsAddress + "/metrics")
	if err != nil {
		l.t.Fatalf("read the metrics of %s: %v", node, err)
	}
	defer answer.Body.Close()
	out := Metrics{}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), "} ")
		if name += "}"; !ok {
			name, value, ok = strings.Cut(lines.Text(), " ")
		}
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			out[name] = v
		}
	}
	if err := lines.Err(); err != nil {
		l.t.Fatalf("read the metrics of %s: %v", node, err)
	}
	return out
}

// Quantile is an upper bound of a quantile of the histogram NAME, of all its series
// with these labels (`command="ADD"`), from the limits of its buckets; and how many
// observations there are.
func (m Metrics) Quantile(name string, q float64, labels ...string) (time.Duration, int) {
	buckets := map[float64]float64{}
	for sample, count := range m {
		rest, ok := strings.CutPrefix(sample, name+"_bucket{")
		for _, label := range labels {
			ok = ok && strings.Contains(rest, label)
		}
		if !ok {
			continue
		}
		_, text, _ := strings.Cut(rest, `le="`)
		limit, err := strconv.ParseFloat(strings.TrimSuffix(text, `"}`), 64)
		if err == nil {
			buckets[limit] += count
		}
	}
	total := buckets[math.Inf(1)]
	best := math.Inf(1)
	for limit, count := range buckets {
		if count >= q*total {
			best = min(best, limit)
		}
	}
	if math.IsInf(best, 1) {
		return math.MaxInt64, int(total)
	}
	return time.Duration(best * float64(time.Second)), int(total)
}

// Limit is the acceptance limit d, which holds on a machine that is otherwise idle:
// one that others keep busy (by its load of the last minute) is given three times as
// much. The test's output says which.
func Limit(t testing.TB, d time.Duration) time.Duration {
	t.Helper()
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatalf("read the machine's load: %v", err)
	}
	first, _, _ := strings.Cut(string(raw), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		t.Fatalf("read the machine's load: %v", err)
	}
	if cores := runtime.NumCPU(); load > float64(cores) {
		t.Logf("the machine is busy (load %.1f, %d cores): the limit is %s instead of %s", load, cores, 3*d, d)
		return 3 * d
	}
	return d
}

// Busy is the share of the machine's CPUs that are in use during d, from 0 to 1. While the
// caller has nothing to do it is what others use.
func Busy(t testing.TB, d time.Duration) float64 {
	t.Helper()
	busy, all := cpuTime(t)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal("the test ended while the CPUs were watched")
	}
	busyThen, allThen := cpuTime(t)
	return (busyThen - busy) / max(1, allThen-all)
}

// cpuTime is what all CPUs together spent since the machine started, in ticks: on anything
// but waiting, and in all (proc_stat(5)).
func cpuTime(t testing.TB) (busy, all float64) {
	t.Helper()
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatalf("read what the CPUs do: %v", err)
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	fields := strings.Fields(first)
	// After "cpu": user, nice, system, idle, iowait, irq, softirq, steal; what follows is
	// counted in the first ones already.
	for i := 1; i <= 8 && i < len(fields); i++ {
		n, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			t.Fatalf("read what the CPUs do: %v", err)
		}
		if all += n; i != 4 && i != 5 {
			busy += n
		}
	}
	return busy, all
}
