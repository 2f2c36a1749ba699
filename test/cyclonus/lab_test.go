package cyclonus

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	labprobe "github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// enforced is how long a step may take to be in force.
const enforced = 5 * time.Second

// answerTime is how long a probe waits for its answer.
const answerTime = 400 * time.Millisecond

// TestPackets sends real packets, of some of the cases that cyclonus runs by default.
func TestPackets(t *testing.T) { packets(t, 9) }

// TestPacketsLong does so for all of them.
func TestPacketsLong(t *testing.T) {
	labtest.Long(t)
	packets(t, 1)
}

// packets plays every nth case in a lab of two nodes: after each step every pod sends to
// every port of every other, and what is answered is what cyclonus's own matcher says.
func packets(t *testing.T, nth int) {
	a := newArena(labtest.Up(t, lab.Options{Nodes: 2}))
	g := &game{arena: a, t: t, sctp: labprobe.HasSCTP()}
	g.become(newState())
	target := g.ns["z/c"].String() // for the cases about ipBlocks
	cases := generator.NewTestCaseGenerator(true, target, []string{"x", "y", "z"}, nil, []string{
		generator.TagMultiPeer, generator.TagUpstreamE2E, generator.TagExample, generator.TagEndPort, generator.TagNamespacesByDefaultLabel,
	}).GenerateTestCases()
	if len(cases) != 112 {
		t.Errorf("cyclonus runs %d cases by default, want 112", len(cases))
	}
	played, steps := 0, 0
	for i, tc := range cases {
		if i%nth != 0 {
			continue
		}
		played++
		s := newState()
		for j, step := range tc.Steps {
			for _, a := range step.Actions {
				if err := s.apply(a); err != nil {
					t.Fatalf("case %d (%s), step %d: %v", i, tc.Description, j, err)
				}
			}
			g.become(s)
			g.compare(fmt.Sprintf("case %d (%s), step %d", i, tc.Description, j), s)
			steps++
		}
	}
	t.Logf("%d of %d cases, %d steps, %d probes, %d of them denied", played, len(cases), steps, g.asked, g.denied)
	if g.denied == 0 || g.denied == g.asked {
		t.Error("no difference was made")
	}
	if g.unasked > 0 {
		t.Run("SCTP", func(t *testing.T) {
			t.Skipf("%d further probes of the same %d cases were not made: %v", g.unasked, played, g.sctp)
		})
	}
}

// game is a lab that has the pods and policies of a state of cyclonus.
type game struct {
	*arena
	t *testing.T
	// ns holds the address of each pod that runs, by NAMESPACE/NAME.
	ns map[string]netip.Addr
	// sctp says why the kernel cannot send SCTP; nil if it can.
	sctp                   error
	asked, denied, unasked int
}

// become makes the lab have what a state has: namespaces, pods, policies.
func (g *game) become(s *state) {
	g.t.Helper()
	var want []datastore.Object
	for name, labels := range s.resources.Namespaces {
		want = append(want, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	for i, p := range s.resources.Pods {
		want = append(want, labPod(p, i))
	}
	for _, p := range s.policies {
		want = append(want, p)
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), labtest.Patience)
	defer cancel()
	pods, err := g.arena.become(ctx, want)
	if err != nil {
		g.t.Fatal(err)
	}
	g.ns = map[string]netip.Addr{}
	for _, p := range pods {
		g.ns[p.Namespace+"/"+p.Name] = netip.MustParseAddr(p.Status.PodIP)
	}
	for _, p := range s.resources.Pods {
		p.IP = g.ns[p.Namespace+"/"+p.Name].String()
	}
}

// labPod is a pod of cyclonus with the lab's server, on the nodes in turn.
func labPod(p *probe.Pod, i int) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels}}
	out.Spec = p.KubePod().Spec
	out.Spec.NodeName = fmt.Sprintf("node-%d", 1+i%2)
	var ports []corev1.ContainerPort
	for _, c := range out.Spec.Containers {
		ports = append(ports, c.Ports...)
	}
	out.Spec.Containers = []corev1.Container{{Name: "c", Image: "any", Ports: ports}}
	return out
}

// compare asks until everything that is answered is what the matcher says.
func (g *game) compare(where string, s *state) {
	g.t.Helper()
	theirs := matcher.BuildNetworkPolicies(true, s.policies)
	questions := map[string][]labprobe.Question{}
	want := map[string][]bool{}
	for _, job := range (&probe.JobBuilder{}).GetJobsAllAvailableServers(s.resources, generator.ProbeModePodIP).Valid {
		from := job.FromNamespace + "/" + job.FromPod
		if from == job.ToKey {
			continue
		}
		if job.Protocol == corev1.ProtocolSCTP && g.sctp != nil {
			g.unasked++
			continue
		}
		allowed := theirs.IsTrafficAllowed(job.Traffic()).IsAllowed()
		questions[from] = append(questions[from], labprobe.Question{
			Protocol: string(job.Protocol), To: netip.AddrPortFrom(g.ns[job.ToKey], uint16(job.ResolvedPort)), Timeout: answerTime,
		})
		want[from] = append(want[from], allowed)
		g.asked++
		if !allowed {
			g.denied++
		}
	}
	spaces, err := g.spaces(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	labtest.Eventually(g.t, enforced, func() error {
		var wrong []string
		slots := labprobe.NewSlots(labprobe.AtOnce)
		answers := map[string][]labprobe.Answer{}
		type result struct {
			from    string
			answers []labprobe.Answer
		}
		results := make(chan result)
		for from, list := range questions {
			go func() {
				results <- result{from, g.ask(spaces[from], list, slots)}
			}()
		}
		for range questions {
			r := <-results
			answers[r.from] = r.answers
		}
		for from, list := range answers {
			for i, x := range list {
				if x.Connected != want[from][i] {
					wrong = append(wrong, fmt.Sprintf("%s to %s/%s: answered is %t, want %t", from, questions[from][i].To, questions[from][i].Protocol, x.Connected, want[from][i]))
				}
			}
		}
		if len(wrong) > 0 {
			return fmt.Errorf("%s: %d wrong: %s", where, len(wrong), strings.Join(wrong[:min(4, len(wrong))], "; "))
		}
		return nil
	})
}

func (g *game) ask(path string, list []labprobe.Question, slots *labprobe.Slots) []labprobe.Answer {
	ns, err := netspace.Open(path)
	if err != nil {
		return make([]labprobe.Answer, len(list)) // nothing is answered
	}
	defer ns.Close()
	return labprobe.Ask(g.t.Context(), ns, list, slots)
}
