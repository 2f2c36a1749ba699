package cyclonus

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
// The lab's pods serve TCP and UDP; about SCTP nothing is asked.
func packets(t *testing.T, nth int) {
	l := labtest.Up(t, lab.Options{Nodes: 2})
	base := &arena{t: t, lab: l, ns: map[string]netip.Addr{}, keep: map[string]bool{}}
	for _, o := range labtest.List[datastore.Object](l, datastore.KindNamespace) {
		base.keep[string(datastore.KindNamespace)+" "+o.GetName()] = true
	}
	base.become(newState())
	target := base.ns["z/c"].String() // for the cases about ipBlocks
	cases := generator.NewTestCaseGenerator(true, target, []string{"x", "y", "z"}, nil, []string{
		generator.TagMultiPeer, generator.TagUpstreamE2E, generator.TagExample, generator.TagEndPort, generator.TagNamespacesByDefaultLabel,
	}).GenerateTestCases()
	if len(cases) != 112 {
		t.Errorf("cyclonus runs %d cases by default, want 112", len(cases))
	}
	played, steps, asked, denied := 0, 0, 0, 0
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
			base.become(s)
			n, d := base.compare(fmt.Sprintf("case %d (%s), step %d", i, tc.Description, j), s)
			steps, asked, denied = steps+1, asked+n, denied+d
		}
	}
	t.Logf("%d of %d cases, %d steps, %d probes, %d of them denied", played, len(cases), steps, asked, denied)
	if denied == 0 || denied == asked {
		t.Error("no difference was made")
	}
}

// arena is a lab that has the pods and policies of a state.
type arena struct {
	t   *testing.T
	lab *labtest.Lab
	// ns holds the address of each pod that runs, by NAMESPACE/NAME.
	ns map[string]netip.Addr
	// keep are the objects that the lab came with.
	keep map[string]bool
}

// become makes the lab have what a state has: namespaces, pods, policies.
func (a *arena) become(s *state) {
	a.t.Helper()
	want := map[string]datastore.Object{}
	add := func(kind datastore.Kind, o datastore.Object) { want[string(kind)+" "+datastore.KeyOf(o).String()] = o }
	for name, labels := range s.resources.Namespaces {
		add(datastore.KindNamespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	for i, p := range s.resources.Pods {
		add(datastore.KindPod, labPod(p, i))
	}
	for _, p := range s.policies {
		c := p.DeepCopy()
		c.ResourceVersion = ""
		add(datastore.KindNetworkPolicy, c)
	}
	for _, kind := range []datastore.Kind{datastore.KindNetworkPolicy, datastore.KindPod, datastore.KindNamespace} {
		for _, o := range labtest.List[datastore.Object](a.lab, kind) {
			key := string(kind) + " " + datastore.KeyOf(o).String()
			if w := want[key]; w == nil && a.keep[key] {
				continue
			} else if w == nil {
				a.lab.Delete(kind, datastore.KeyOf(o).String())
			} else if same(o, w) {
				delete(want, key)
			}
		}
	}
	ctx, cancel := context.WithTimeout(a.t.Context(), labtest.Patience)
	defer cancel()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if err := put(ctx, a.lab.Store, want[key]); err != nil {
			a.t.Fatalf("%s: %v", key, err)
		}
	}
	clear(a.ns)
	for _, p := range a.lab.WaitPods() {
		a.ns[p.Namespace+"/"+p.Name] = netip.MustParseAddr(p.Status.PodIP)
	}
	for _, p := range s.resources.Pods {
		p.IP = a.ns[p.Namespace+"/"+p.Name].String()
	}
}

// labPod is a pod of cyclonus with the lab's server, on the nodes in turn.
func labPod(p *probe.Pod, i int) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels}}
	out.Spec = p.KubePod().Spec
	out.Spec.NodeName = fmt.Sprintf("node-%d", 1+i%2)
	var ports []corev1.ContainerPort
	for _, c := range out.Spec.Containers {
		for _, port := range c.Ports {
			if port.Protocol != corev1.ProtocolSCTP {
				ports = append(ports, port)
			}
		}
	}
	out.Spec.Containers = []corev1.Container{{Name: "c", Image: "any", Ports: ports}}
	return out
}

// same reports whether an object that exists need not be written.
func same(have, want datastore.Object) bool {
	if _, policy := want.(*networkingv1.NetworkPolicy); policy {
		return false
	}
	return maps.Equal(have.GetLabels(), want.GetLabels())
}

// put creates an object, or writes the labels of one that exists, and a policy whole.
func put(ctx context.Context, store datastore.Store, o datastore.Object) error {
	_, err := store.Create(ctx, o)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	r, err := datastore.LookupObject(o)
	if err != nil {
		return err
	}
	for {
		old, err := store.Get(ctx, r.Kind, datastore.KeyOf(o))
		if err != nil {
			return err
		}
		if p, ok := o.(*networkingv1.NetworkPolicy); ok {
			old.(*networkingv1.NetworkPolicy).Spec = p.Spec
		}
		old.SetLabels(o.GetLabels())
		if _, err = store.Update(ctx, old); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// compare asks until everything that is answered is what the matcher says.
func (a *arena) compare(where string, s *state) (asked, denied int) {
	a.t.Helper()
	theirs := matcher.BuildNetworkPolicies(true, s.policies)
	questions := map[string][]labprobe.Question{}
	want := map[string][]bool{}
	for _, job := range (&probe.JobBuilder{}).GetJobsAllAvailableServers(s.resources, generator.ProbeModePodIP).Valid {
		from := job.FromNamespace + "/" + job.FromPod
		if job.Protocol == corev1.ProtocolSCTP || from == job.ToKey {
			continue
		}
		allowed := theirs.IsTrafficAllowed(job.Traffic()).IsAllowed()
		questions[from] = append(questions[from], labprobe.Question{
			Protocol: string(job.Protocol), To: netip.AddrPortFrom(a.ns[job.ToKey], uint16(job.ResolvedPort)), Timeout: answerTime,
		})
		want[from] = append(want[from], allowed)
		asked++
		if !allowed {
			denied++
		}
	}
	spaces := a.spaces()
	labtest.Eventually(a.t, enforced, func() error {
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
				results <- result{from, a.ask(spaces[from], list, slots)}
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
			return fmt.Errorf("%s: %d of %d: %s", where, len(wrong), asked, strings.Join(wrong[:min(4, len(wrong))], "; "))
		}
		return nil
	})
	return asked, denied
}

func (a *arena) ask(path string, list []labprobe.Question, slots *labprobe.Slots) []labprobe.Answer {
	ns, err := netspace.Open(path)
	if err != nil {
		return make([]labprobe.Answer, len(list)) // nothing is answered
	}
	defer ns.Close()
	return labprobe.Ask(a.t.Context(), ns, list, slots)
}

// spaces are the network namespaces of the pods, by NAMESPACE/NAME.
func (a *arena) spaces() map[string]string {
	out := map[string]string{}
	for _, n := range a.lab.Status().Nodes {
		for _, p := range n.State.Pods {
			out[p.Namespace+"/"+p.Name] = filepath.Join("/proc", fmt.Sprint(n.Pid), "root/run/netns", p.Netns)
		}
	}
	return out
}
