package cyclonus

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/config"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	labprobe "github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// silence is how long an answer is waited for that should not come. Answers take less
// than a millisecond; those that should come have longer, for the machine's sake.
const silence = 150 * time.Millisecond

// TestConformancePackets runs some of the conformance tests of ClusterNetworkPolicy, as
// they are published, with real packets.
func TestConformancePackets(t *testing.T) { conformancePackets(t, 5, "IPv4") }

// TestConformancePacketsLong does so for all of them.
func TestConformancePacketsLong(t *testing.T) {
	labtest.Long(t)
	conformancePackets(t, 1, "IPv4", "IPv6")
}

// conformancePackets runs every nth test in one dual-stack lab.
func conformancePackets(t *testing.T, nth int, families ...string) {
	l := labtest.Up(t, lab.Options{Nodes: 2, Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd00:128::/48")}})
	a := newArena(l)
	for family, name := range families {
		t.Run(name, func(t *testing.T) {
			w := &wire{arena: a, turned: family == 1, sctp: labprobe.HasSCTP(), unsent: map[string]int{}}
			p := &published{t: t, family: family, network: w}
			s := p.suite(t, config.TimeoutConfig{PokeInterval: pollEvery, PokeTimeout: enforced, RequestTimeout: answerTime})
			ran := 0
			for i, test := range tests.ConformanceTests {
				if i%nth != 1%nth { // of the first five this has most in it: nodes as peers
					continue
				}
				t.Run(test.ShortName, func(t *testing.T) {
					if w.sctp != nil && strings.Contains(test.ShortName, "SCTP") {
						t.Skipf("it sends nothing but SCTP: %v", w.sctp)
					}
					before := w.begin(test.ShortName)
					test.Run(t, s)
					if w.begin("") == before {
						t.Error("not one packet was sent")
					}
					ran++
				})
			}
			p.summary(t, ran)
			w.summary(t)
		})
	}
}

// wire is a network of real nodes: the lab.
type wire struct {
	*arena
	// turned says which way round the pods are on the nodes.
	turned bool
	// sctp says why the kernel cannot send SCTP; nil if it can.
	sctp error
	// test that runs.
	test string

	// mu: a connection that is tried for the last time may be under way still when the
	// next change is made. It guards all that follows, and test.
	mu     sync.Mutex
	spaces map[string]string
	// sent counts packets, late those of them that the nodes did not treat as the oracle
	// says although they had the policy, unsent what would have needed SCTP, by test.
	sent, late int
	unsent     map[string]int
}

// begin names the test that what follows belongs to, and returns how many packets have
// been sent before.
func (w *wire) begin(test string) (sent int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.test = test
	return w.sent
}

func (w *wire) become(ctx context.Context, objects []datastore.Object) (*world.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for i, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			objects[i] = standIn(pod, w.node(n))
			n++
		}
	}
	if _, err := w.arena.become(ctx, objects); err != nil {
		return nil, err
	}
	var err error
	if w.spaces, err = w.arena.spaces(ctx); err != nil {
		return nil, err
	}
	return w.lab.TryWorld(ctx)
}

// node of the ith pod. The pods come in pairs, of which each node has one; turned, with
// every other pair the other way round, so that who was asked on its own node is now
// asked from another.
func (w *wire) node(i int) string {
	if w.turned {
		i += i / 2
	}
	return fmt.Sprintf("node-%d", 1+i%2)
}

// standIn is a pod of the suite with the lab's server.
func standIn(p *corev1.Pod, node string) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels}}
	out.Spec.NodeName = node
	out.Spec.HostNetwork = p.Spec.HostNetwork
	var ports []corev1.ContainerPort
	for _, c := range p.Spec.Containers {
		ports = append(ports, served(c)...)
	}
	out.Spec.Containers = []corev1.Container{{Name: "c", Image: "any", Ports: ports}}
	return out
}

// How agnhost, which is what the suite's pods run, is told what to serve.
var (
	serveHostname = regexp.MustCompile(`serve-hostname --(tcp|udp) --http=false --port ([0-9]+)`)
	netexec       = regexp.MustCompile(`netexec --http-port [0-9]+ --(udp)-port ([0-9]+)`)
	porter        = regexp.MustCompile(`SERVE_(SCTP)_PORT_([0-9]+)`)
)

// served are the ports of a container: those that it names, and those that agnhost is
// told to serve beside.
func served(c corev1.Container) []corev1.ContainerPort {
	ports := slices.Clone(c.Ports)
	told := strings.Join(c.Command, " ")
	for _, e := range c.Env {
		told += " " + e.Name
	}
	for _, form := range []*regexp.Regexp{serveHostname, netexec, porter} {
		for _, m := range form.FindAllStringSubmatch(told, -1) {
			number, err := strconv.ParseUint(m[2], 10, 16)
			port := corev1.ContainerPort{ContainerPort: int32(number), Protocol: corev1.Protocol(strings.ToUpper(m[1]))}
			known := slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool {
				return p.ContainerPort == port.ContainerPort && p.Protocol == port.Protocol
			})
			if err == nil && !known {
				ports = append(ports, port)
			}
		}
	}
	return ports
}

// connect tries with a real packet. Where that would be SCTP and the kernel has none, the
// answer is the oracle's, so that the test goes on, and is counted as one that says nothing.
func (w *wire) connect(ctx context.Context, p oracle.Probe, v oracle.Verdict, timeout time.Duration) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	timedOut := fmt.Sprintf("TIMEOUT: %s to %s:%d/%s", p.From, p.Packet.Dst, p.Packet.DstPort, p.Packet.Protocol)
	if p.Packet.Protocol == packet.SCTP && w.sctp != nil {
		w.unsent[w.test]++
		if v.Allowed {
			return "", nil
		}
		return timedOut, nil
	}
	ns, err := netspace.Open(w.spaces[p.From.Pod.String()])
	if err != nil {
		return "", err
	}
	defer ns.Close()
	if !v.Allowed {
		timeout = min(timeout, silence)
	}
	q := labprobe.Question{Protocol: p.Packet.Protocol.String(), To: netip.AddrPortFrom(p.Packet.Dst, p.Packet.DstPort), Timeout: timeout}
	a := labprobe.Ask(ctx, ns, []labprobe.Question{q}, labprobe.NewSlots(1))[0]
	w.sent++
	if a.Connected != v.Allowed {
		w.late++
	}
	switch {
	case a.Connected:
		return "", nil
	case strings.HasPrefix(a.Err, "no answer"):
		return timedOut, nil
	}
	return a.Err, nil
}

// summary says what was sent, and what was not.
func (w *wire) summary(t *testing.T) {
	t.Logf("%d connections tried with packets, %d of them had to be tried again", w.sent, w.late)
	if len(w.unsent) == 0 {
		return
	}
	t.Run("SCTP", func(t *testing.T) {
		total, list := 0, []string{}
		for _, test := range slices.Sorted(maps.Keys(w.unsent)) {
			total += w.unsent[test]
			list = append(list, fmt.Sprintf("%d of %s", w.unsent[test], test))
		}
		t.Skipf("%d further connections were not tried (%s): %v", total, strings.Join(list, ", "), w.sctp)
	})
}
