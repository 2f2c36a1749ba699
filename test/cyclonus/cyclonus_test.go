package cyclonus

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// state is the cluster of one case as cyclonus keeps it: its resources change with
// the steps, and so do the policies.
type state struct {
	resources *probe.Resources
	policies  []*networkingv1.NetworkPolicy
}

// newState is cyclonus's default cluster: namespaces x, y and z with pods a, b and c,
// each with containers for TCP, UDP and SCTP on ports 80 and 81.
func newState() *state {
	s := &state{resources: &probe.Resources{Namespaces: map[string]map[string]string{}}}
	for _, ns := range []string{"x", "y", "z"} {
		s.resources.Namespaces[ns] = map[string]string{"ns": ns, "kubernetes.io/metadata.name": ns}
		for _, name := range []string{"a", "b", "c"} {
			s.resources.Pods = append(s.resources.Pods, probe.NewDefaultPod(ns, name, []int{80, 81}, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, false, ""))
		}
	}
	return s
}

// apply one action of a step. What an API server adds to a Namespace is added here.
func (s *state) apply(a *generator.Action) error {
	same := func(ns, name string) func(*networkingv1.NetworkPolicy) bool {
		return func(p *networkingv1.NetworkPolicy) bool { return p.Namespace == ns && p.Name == name }
	}
	named := func(ns string, labels map[string]string) map[string]string {
		out := map[string]string{"kubernetes.io/metadata.name": ns}
		for k, v := range labels {
			out[k] = v
		}
		return out
	}
	r := s.resources
	var err error
	switch {
	case a.CreatePolicy != nil:
		s.policies = append(s.policies, a.CreatePolicy.Policy)
	case a.UpdatePolicy != nil:
		p := a.UpdatePolicy.Policy
		i := slices.IndexFunc(s.policies, same(p.Namespace, p.Name))
		if i < 0 {
			return fmt.Errorf("update of policy %s/%s, which does not exist", p.Namespace, p.Name)
		}
		s.policies[i] = p
	case a.DeletePolicy != nil:
		s.policies = slices.DeleteFunc(s.policies, same(a.DeletePolicy.Namespace, a.DeletePolicy.Name))
	case a.CreateNamespace != nil:
		r, err = r.CreateNamespace(a.CreateNamespace.Namespace, named(a.CreateNamespace.Namespace, a.CreateNamespace.Labels))
	case a.SetNamespaceLabels != nil:
		r, err = r.UpdateNamespaceLabels(a.SetNamespaceLabels.Namespace, named(a.SetNamespaceLabels.Namespace, a.SetNamespaceLabels.Labels))
	case a.DeleteNamespace != nil:
		r, err = r.DeleteNamespace(a.DeleteNamespace.Namespace)
	case a.ReadNetworkPolicies != nil: // The policies are what they are.
	case a.CreatePod != nil:
		r, err = r.CreatePod(a.CreatePod.Namespace, a.CreatePod.Pod, a.CreatePod.Labels)
	case a.SetPodLabels != nil:
		r, err = r.SetPodLabels(a.SetPodLabels.Namespace, a.SetPodLabels.Pod, a.SetPodLabels.Labels)
	case a.DeletePod != nil:
		r, err = r.DeletePod(a.DeletePod.Namespace, a.DeletePod.Pod)
	default:
		return fmt.Errorf("an action that this test does not know: %+v", a)
	}
	s.resources = r
	return err
}

// world makes the world of a state, and gives the pods the addresses of a family.
func (s *state) world(t *testing.T, family int) *world.Snapshot {
	c := newCluster()
	for ns, labels := range s.resources.Namespaces {
		c.namespace(t, ns, labels)
	}
	for _, p := range s.resources.Pods {
		p.IP = c.pod(t, p.Namespace, p.Name, p.Labels, p.KubePod().Spec)[family].String()
	}
	for _, p := range s.policies {
		c.convert(t, world.KindNetworkPolicy, p)
	}
	return c.snapshot()
}

// TestEveryCase holds the oracle, and the tables that are rendered, against cyclonus's own
// evaluator: all generated cases, after each step every pod to every port of every pod.
//
// One deviation: cyclonus judges what a pod sends to itself as if it passed a network.
// It does not leave the pod, no plane sees it, and cyclonus itself has a switch to
// ignore it (IgnoreLoopback); the oracle always allows it, which is checked instead.
func TestEveryCase(t *testing.T) {
	for _, tt := range []struct {
		name   string
		family int
		target string // an address of the pods, for the cases about ipBlocks
	}{
		{"IPv4", 0, "10.128.0.19"},
		{"IPv6", 1, "fd10::13"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, dns := range []bool{true, false} {
				cases := generator.NewTestCaseGenerator(dns, tt.target, []string{"x", "y", "z"}, nil, nil).GenerateAllTestCases()
				if len(cases) < 200 {
					t.Fatalf("%d cases are not all", len(cases))
				}
				steps, judged, denied := 0, 0, 0
				for i, tc := range cases {
					s := newState()
					for j, step := range tc.Steps {
						for _, a := range step.Actions {
							if err := s.apply(a); err != nil {
								t.Fatalf("case %d (%s), step %d: %v", i, tc.Description, j, err)
							}
						}
						n, d := compare(t, fmt.Sprintf("case %d (%s), step %d", i, tc.Description, j), s, tt.family)
						steps, judged, denied = steps+1, judged+n, denied+d
					}
				}
				t.Logf("DNS allowed %v: %d cases, %d steps, %d packets, %d of them denied", dns, len(cases), steps, judged, denied)
				if denied == 0 || denied == judged {
					t.Error("no difference was made")
				}
			}
		})
	}
}

// compare the verdicts on every pod to every port of every pod.
func compare(t *testing.T, where string, s *state, family int) (judged, denied int) {
	t.Helper()
	snap := s.world(t, family)
	m, rendered := oracle.Read(snap), render(t, snap)
	theirs := matcher.BuildNetworkPolicies(true, s.policies)
	for _, job := range (&probe.JobBuilder{}).GetJobsAllAvailableServers(s.resources, generator.ProbeModePodIP).Valid {
		protocol, err := packet.ParseProtocol(string(job.Protocol))
		if err != nil {
			t.Fatal(err)
		}
		from, to := world.Key{Namespace: job.FromNamespace, Name: job.FromPod}, keyOf(job.ToKey)
		v := m.JudgeProbe(from, to, protocol, uint16(job.ResolvedPort), []oracle.Family{oracle.IPv4, oracle.IPv6}[family])
		if from == to {
			if !v.Allowed {
				t.Errorf("%s: %s to itself:%s", where, from, say(v))
			}
			continue
		}
		want := theirs.IsTrafficAllowed(job.Traffic())
		if got, way := rendered.reaches(t, from, to, protocol, uint16(job.ResolvedPort), family); got != want.IsAllowed() {
			t.Errorf("%s: %s to %s:%d/%s: cyclonus says %v; by what is rendered: %s", where, from, to, job.ResolvedPort, protocol, want.IsAllowed(), way)
		}
		judged++
		if !want.IsAllowed() {
			denied++
		}
		egress, ingress := passes(v, "egress"), passes(v, "ingress")
		if v.Allowed != want.IsAllowed() || egress != want.Egress.IsAllowed() || egress && ingress != want.Ingress.IsAllowed() {
			t.Errorf("%s: %s to %s:%d/%s: cyclonus says egress %v, ingress %v; the oracle:%s", where, from, to, job.ResolvedPort, protocol, want.Egress.IsAllowed(), want.Ingress.IsAllowed(), say(v))
		}
	}
	return judged, denied
}

func passes(v oracle.Verdict, stage string) bool {
	return !slices.ContainsFunc(v.Stages, func(s oracle.Stage) bool { return s.Name == stage && !s.Pass })
}

// keyOf reads cyclonus's "namespace/pod".
func keyOf(s string) world.Key {
	p := probe.PodString(s)
	return world.Key{Namespace: p.Namespace(), Name: p.PodName()}
}
