package ovs

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/ovshost"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// cluster is a lab, and the command line on it.
type cluster struct {
	*labtest.Lab
	t testing.TB
}

// up starts a lab with both families, whose nodes take the planes in turns.
func up(t testing.TB, planes string) *cluster {
	t.Helper()
	if err := ovshost.Installed(); err != nil {
		t.Skip(err)
	}
	return &cluster{labtest.Up(t, lab.Options{
		Nodes: 3, Plane: planes, Subnets: []netip.Prefix{pods4, pods6}, Underlay: []netip.Prefix{nodes4, nodes6},
	}), t}
}

// The ranges of pods and of nodes.
var (
	pods4, pods6   = netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd00:128::/48")
	nodes4, nodes6 = netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd00:30::/32")
)

// with is the same cluster for a subtest.
func (c *cluster) with(t testing.TB) *cluster { return &cluster{c.Lab.With(t), t} }

// file is the text of a file of the repository.
func file(t testing.TB, path ...string) string {
	t.Helper()
	root, err := labtest.Repository()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// check probes every pair of pods and compares with the oracle.
func (c *cluster) check() error {
	bin, err := labtest.Bin()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(bin, "fairlead"), "lab", "check", "-o", "json", "--lab", c.Name(), "--lab-root", filepath.Dir(c.Directory()))
	out, err := cmd.Output()
	var r lab.CheckResult
	if jsonErr := json.Unmarshal(out, &r); jsonErr != nil {
		return fmt.Errorf("lab check: %w, %w: %s", err, jsonErr, out)
	}
	if !r.OK() || r.Probes == 0 {
		return fmt.Errorf("%d of %d probes agree; disagree %v, not ready %v", r.Agree, r.Probes, r.Disagree[:min(3, len(r.Disagree))], r.Unready)
	}
	return nil
}

// agrees checks until oracle and cluster agree: agents take up a change soon, not at once.
func (c *cluster) agrees() {
	c.t.Helper()
	labtest.Eventually(c.t, 20*time.Second, c.check)
}

// pod is the manifest of a pod with the built-in server.
func pod(name, node string) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, labels: {app: %s}}
spec:
  nodeName: %s
  containers: [{name: c, image: any, ports: [{containerPort: 80}, {containerPort: 80, protocol: UDP}]}]
`, name, name, node)
}

// place is where a pod is.
type place struct {
	ns   *os.File
	addr netip.Addr
}

func (c *cluster) place(name string) place {
	c.t.Helper()
	addr := netip.MustParseAddr(labtest.Get[*corev1.Pod](c.Lab, datastore.KindPod, "default/"+name).Status.PodIP)
	for _, n := range c.Status().Nodes {
		for _, p := range n.State.Pods {
			if p.Namespace == "default" && p.Name == name {
				ns, err := netspace.Open(filepath.Join("/proc", fmt.Sprint(n.Pid), "root/run/netns", p.Netns))
				if err != nil {
					c.t.Fatal(err)
				}
				c.t.Cleanup(func() { ns.Close() })
				return place{ns, addr}
			}
		}
	}
	c.t.Fatalf("pod %s runs nowhere", name)
	return place{}
}

// traffic sends a datagram every millisecond and listens to the answers.
type traffic struct {
	t              testing.TB
	conn           net.Conn
	stop           chan struct{}
	sent, received atomic.Int64

	mu sync.Mutex
	// last is when the last answer came, gap the longest time without one.
	last time.Time
	gap  time.Duration
}

func (c *cluster) traffic(from, to place) *traffic {
	c.t.Helper()
	tr := &traffic{t: c.t, stop: make(chan struct{}), last: time.Now()}
	err := netspace.Do(from.ns, func() (err error) {
		tr.conn, err = net.Dial("udp", netip.AddrPortFrom(to.addr, 80).String())
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(tr.send)
	running.Go(tr.receive)
	c.t.Cleanup(func() {
		tr.pause()
		tr.conn.Close()
		running.Wait()
	})
	return tr
}

func (tr *traffic) send() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if _, err := tr.conn.Write([]byte("?\n")); err == nil {
				tr.sent.Add(1)
			}
		case <-tr.stop:
			return
		}
	}
}

func (tr *traffic) receive() {
	b := make([]byte, 256)
	for {
		if _, err := tr.conn.Read(b); err != nil {
			if strings.Contains(err.Error(), "closed") {
				return
			}
			continue // an ICMP error: the other end may be away
		}
		tr.received.Add(1)
		tr.mu.Lock()
		now := time.Now()
		tr.gap, tr.last = max(tr.gap, now.Sub(tr.last)), now
		tr.mu.Unlock()
	}
}

// pause ends the sending.
func (tr *traffic) pause() {
	select {
	case <-tr.stop:
	default:
		close(tr.stop)
	}
}

// more waits until so many more answers have come.
func (tr *traffic) more(n int64) {
	tr.t.Helper()
	from := tr.received.Load()
	labtest.Eventually(tr.t, 15*time.Second, func() error {
		if got := tr.received.Load() - from; got < n {
			return fmt.Errorf("%d answers of %d", got, n)
		}
		return nil
	})
}

// longest returns the longest time without an answer, and begins anew.
func (tr *traffic) longest() time.Duration {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	gap := max(tr.gap, time.Since(tr.last))
	tr.gap = 0
	return gap
}

// lost ends the sending, and counts what was not answered.
func (tr *traffic) lost() int64 {
	tr.t.Helper()
	tr.pause()
	quiet := func() error {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if since := time.Since(tr.last); since < 300*time.Millisecond && tr.received.Load() < tr.sent.Load() {
			return fmt.Errorf("answers still come")
		}
		return nil
	}
	labtest.Eventually(tr.t, 5*time.Second, quiet)
	return tr.sent.Load() - tr.received.Load()
}
