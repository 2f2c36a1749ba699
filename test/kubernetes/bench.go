package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

const (
	benchNamespace = "bench"
	benchLimit     = 15 * time.Minute
)

// dialer makes connections in the network of a machine.
func (c *cluster) dialer(name string) (func(context.Context, string, string) (net.Conn, error), error) {
	r, err := c.find(name)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		ns, err := netspace.Open(fmt.Sprintf("/proc/%d/ns/net", r.Pid))
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		// One address, no name: the connection is made on the calling thread.
		err = netspace.Do(ns, func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}, nil
}

// api is a client of the API server that tells when things happened: kubectl takes longer
// to start than some of what is measured here.
type api struct {
	client *http.Client
	base   string
}

func (c *cluster) api() (*api, error) {
	dial, err := c.dialer("control")
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(c.pki("admin.crt"), c.pki("admin.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.pki("ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &api{
		base: fmt.Sprintf("https://%s:6443/api/v1/", controlAddress()),
		client: &http.Client{Transport: &http.Transport{
			DialContext: dial, ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS13},
		}},
	}, nil
}

func (a *api) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return resp, nil
}

// podEvent is what is read of a watch.
type podEvent struct {
	Object struct {
		Metadata struct{ Name string }
		Status   struct {
			Conditions []struct{ Type, Status string }
		}
	}
}

// ready tells when each pod of the namespace becomes Ready, until ctx ends or the watch
// does; the channel is closed then.
func (a *api) ready(ctx context.Context) <-chan string {
	out := make(chan string)
	go func() {
		defer close(out)
		resp, err := a.do(ctx, http.MethodGet, "namespaces/"+benchNamespace+"/pods?watch=1", nil)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		seen := map[string]bool{}
		for d := json.NewDecoder(resp.Body); ; {
			var e podEvent
			if d.Decode(&e) != nil {
				return
			}
			if name := e.Object.Metadata.Name; e.isReady() && !seen[name] {
				seen[name] = true
				select {
				case out <- name:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (e podEvent) isReady() bool {
	for _, c := range e.Object.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return true
		}
	}
	return false
}

func (a *api) createPod(ctx context.Context, namespace, name, node, image string) error {
	resp, err := a.do(ctx, http.MethodPost, "namespaces/"+namespace+"/pods", map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"nodeName": node, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
			"containers": []any{map[string]any{"name": "c", "image": image, "imagePullPolicy": "Never"}},
		},
	})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// bench makes pods one after another, then as many at once, and tells how long they took
// to be Ready and how much of that was ADD.
func (c *cluster) bench(ctx context.Context, pods int, w io.Writer) error {
	return c.inBenchNamespace(ctx, func(ctx context.Context, a *api) error {
		ready := a.ready(ctx)
		for _, kind := range []struct {
			name  string
			burst bool
		}{{"single", false}, {"burst", true}} {
			if err := c.round(ctx, a, ready, kind.name, pods, kind.burst, w); err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
		}
		return nil
	})
}

// inBenchNamespace runs something with a namespace for pods, which is removed afterwards.
func (c *cluster) inBenchNamespace(ctx context.Context, run func(context.Context, *api) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, benchLimit)
	defer cancel()
	a, err := c.api()
	if err != nil {
		return err
	}
	if err := c.apply(ctx, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", benchNamespace)); err != nil {
		return err
	}
	defer func() {
		_, e := c.kubectl(context.WithoutCancel(ctx), nil, "delete", "namespace", benchNamespace, "--timeout=180s")
		err = errors.Join(err, e)
	}()
	err = poll(ctx, 200*time.Millisecond, func() error {
		_, err := c.kubectl(ctx, nil, "-n", benchNamespace, "get", "serviceaccount", "default")
		return err
	})
	if err != nil {
		return err
	}
	return run(ctx, a)
}

func (c *cluster) round(ctx context.Context, a *api, ready <-chan string, prefix string, pods int, burst bool, w io.Writer) error {
	before, err := c.addTimes(ctx)
	if err != nil {
		return err
	}
	created := map[string]time.Time{}
	var took []time.Duration
	wait := func() error {
		select {
		case name, ok := <-ready:
			if !ok {
				return errors.New("the watch has ended")
			}
			took = append(took, time.Since(created[name]))
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods are Ready: %w", len(took), pods, ctx.Err())
		}
	}
	start := time.Now()
	for i := range pods {
		name := fmt.Sprintf("%s-%d", prefix, i)
		created[name] = time.Now()
		if err := a.createPod(ctx, benchNamespace, name, nodeName(i%c.Nodes+1), "registry.k8s.io/pause:3.10"); err != nil {
			return err
		}
		if !burst {
			if err := wait(); err != nil {
				return err
			}
		}
	}
	for len(took) < pods {
		if err := wait(); err != nil {
			return err
		}
	}
	all := time.Since(start)
	after, err := c.addTimes(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%-6s %3d pods on %d nodes: ", prefix, pods, c.Nodes)
	tell(took, all, after.minus(before), w)
	return nil
}

// tell prints a round: how long each pod took, how long all of them, and their ADDs.
func tell(took []time.Duration, all time.Duration, add histogram, w io.Writer) {
	slices.Sort(took)
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	fmt.Fprintf(w, "create → Ready p50 %d ms, p99 %d ms, all %.1f s",
		took[len(took)/2].Milliseconds(), took[(len(took)*99)/100].Milliseconds(), all.Seconds())
	if add.count > 0 {
		mean := add.sum / add.count
		fmt.Fprintf(w, "; ADD p50 ≤ %.1f ms, p99 ≤ %.1f ms, mean %.1f ms: %.1f %% of the time",
			1000*add.quantile(0.5), 1000*add.quantile(0.99), 1000*mean, 100*mean/(sum.Seconds()/float64(len(took))))
	}
	fmt.Fprintln(w)
}

// histogram is Prometheus' one, of seconds.
type histogram struct {
	buckets    map[float64]float64
	sum, count float64
}

func (h histogram) minus(old histogram) histogram {
	out := histogram{buckets: map[float64]float64{}, sum: h.sum - old.sum, count: h.count - old.count}
	for le, n := range h.buckets {
		out.buckets[le] = n - old.buckets[le]
	}
	return out
}

// quantile is the upper bound of the bucket that holds it.
func (h histogram) quantile(q float64) float64 {
	for _, le := range slices.Sorted(maps.Keys(h.buckets)) {
		if h.buckets[le] >= q*h.count {
			return le
		}
	}
	return 0
}

// estimate is a quantile, in seconds, with the values of a bucket spread evenly over it: two
// of them can be compared.
func (h histogram) estimate(q float64) float64 {
	lower, below := 0.0, 0.0
	for _, le := range slices.Sorted(maps.Keys(h.buckets)) {
		switch n := h.buckets[le]; {
		case n < q*h.count:
			lower, below = le, n
		case math.IsInf(le, 1): // Nothing is known but that it is more.
			return lower
		default:
			return lower + (le-lower)*(q*h.count-below)/max(1, n-below)
		}
	}
	return lower
}

// addTimes sums up what the agents tell of ADDs that succeeded. Other networks tell nothing.
func (c *cluster) addTimes(ctx context.Context) (histogram, error) {
	h := histogram{buckets: map[float64]float64{}}
	if c.CNI != cniFairlead {
		return h, nil
	}
	for i := 1; i <= c.Nodes; i++ {
		text, err := c.metrics(ctx, nodeName(i))
		if err != nil {
			return h, err
		}
		h.read(text)
	}
	return h, nil
}

// metrics are those of a node's agent.
func (c *cluster) metrics(ctx context.Context, node string) (string, error) {
	dial, err := c.dialer(node)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9477/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("metrics of the agent on %s: %w", node, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return string(raw), err
}

// metric is the value of one without labels, 0 if there is none.
func metric(text, name string) float64 {
	var value float64
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			_, _ = fmt.Sscan(rest, &value)
		}
	}
	return value
}

func (h *histogram) read(text string) {
	for line := range strings.Lines(text) {
		if !strings.Contains(line, `code="0"`) || !strings.Contains(line, `command="ADD"`) {
			continue
		}
		name, labels, _ := strings.Cut(line, "{")
		var value float64
		if _, err := fmt.Sscan(labels[strings.LastIndexByte(labels, ' ')+1:], &value); err != nil {
			continue
		}
		switch name {
		case "fairlead_cni_request_seconds_sum":
			h.sum += value
		case "fairlead_cni_request_seconds_count":
			h.count += value
		case "fairlead_cni_request_seconds_bucket":
			_, rest, _ := strings.Cut(labels, `le="`)
			var le float64
			if _, err := fmt.Sscan(strings.SplitN(rest, `"`, 2)[0], &le); err == nil {
				h.buckets[le] += value
			}
		}
	}
}
