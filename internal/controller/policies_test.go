package controller

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

func clusterPolicy(name string, priority int32) *policyv1beta1.ClusterNetworkPolicy {
	p := &policyv1beta1.ClusterNetworkPolicy{}
	p.Name = name
	p.Spec.Tier, p.Spec.Priority = policyv1beta1.AdminTier, priority
	p.Spec.Subject.Namespaces = &metav1.LabelSelector{}
	return p
}

// What nodes report about a NetworkPolicy, which has no status, becomes an Event of that
// very object.
func TestEventsOfNetworkPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(node(1), nodeNetwork(1))
		policy := &networkingv1.NetworkPolicy{}
		policy.Namespace, policy.Name = "default", "names"
		c.create(policy)
		nn := get[*v1alpha1.NodeNetwork](c, named(nodeName(1)))
		nn.Status.Problems = []v1alpha1.ObjectProblem{
			{Kind: "NetworkPolicy", Namespace: "default", Name: "names", Field: "spec.ingress[0].ports[0]", Reason: "UnresolvedPort", Message: "no pod has it"},
			{Kind: "NetworkPolicy", Namespace: "default", Name: "gone", Reason: "UnresolvedPort", Message: "no pod has it"},
		}
		c.updateStatus(nn)
		c.start("a")
		time.Sleep(5 * time.Second)
		events := all[*corev1.Event](c)
		if len(events) != 1 {
			t.Fatalf("%d events, want that of the policy that exists", len(events))
		}
		stored := all[*networkingv1.NetworkPolicy](c)[0]
		e := events[0]
		if e.Namespace != "default" || e.InvolvedObject.UID != stored.UID || stored.UID == "" || e.InvolvedObject.APIVersion != "networking.k8s.io/v1" ||
			e.Message != "spec.ingress[0].ports[0]: no pod has it (on n001)" || e.Reason != "UnresolvedPort" {
			t.Errorf("event %+v", e)
		}
	})
}

// ClusterNetworkPolicies say in conditions of ours what is wrong with them; those of
// others stay.
func TestConditionsOfClusterNetworkPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(node(1), nodeNetwork(1))
		c.create(clusterPolicy("a", 10), clusterPolicy("b", 10))
		foreign := get[*policyv1beta1.ClusterNetworkPolicy](c, named("b"))
		foreign.Status.Conditions = []metav1.Condition{{Type: "example.org/Ready", Status: "True", Reason: "Theirs", LastTransitionTime: metav1.Now()}}
		c.updateStatus(foreign)
		p := c.start("a")
		time.Sleep(5 * time.Second)
		standing := func(name string) string {
			var out []string
			for _, x := range get[*policyv1beta1.ClusterNetworkPolicy](c, named(name)).Status.Conditions {
				out = append(out, fmt.Sprintf("%s=%s/%s", x.Type, x.Status, x.Reason))
			}
			return strings.Join(out, " ")
		}
		if got, want := standing("a"), "fairlead.dev/Ready=True/InUse fairlead.dev/Realised=True/Realised"; got != want {
			t.Errorf("a: %s, want %s", got, want)
		}
		if got, want := standing("b"), "example.org/Ready=True/Theirs fairlead.dev/Ready=True/InUse fairlead.dev/Realised=True/Realised fairlead.dev/Warnings=True/EqualPriority"; got != want {
			t.Errorf("b: %s, want %s", got, want)
		}
		b := get[*policyv1beta1.ClusterNetworkPolicy](c, named("b"))
		if w := condition(b.Status.Conditions, "fairlead.dev/Warnings"); !strings.Contains(w.Message, "spec.priority: a has priority 10") || w.ObservedGeneration != b.Generation {
			t.Errorf("b's warning: %+v", w)
		}
		p.link.written()
		time.Sleep(time.Hour)
		if got := p.link.written(); len(got) != 0 {
			t.Errorf("at rest it wrote %v", got)
		}
		b.Spec.Priority = 11
		c.update(b)
		time.Sleep(5 * time.Second)
		if got, want := standing("b"), "example.org/Ready=True/Theirs fairlead.dev/Ready=True/InUse fairlead.dev/Realised=True/Realised fairlead.dev/Warnings=False/None"; got != want {
			t.Errorf("b after it was mended: %s, want %s", got, want)
		}
	})
}

// The status of a policy that cannot be read cannot be written: an Event tells, and nobody
// tries for ever.
func TestUnreadableClusterNetworkPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(node(1), nodeNetwork(1))
		stands := clusterPolicy("a", 10)
		stands.Annotations = map[string]string{datastore.AnnotationUnreadable: "torn"}
		c.create(stands)
		p := c.start("a")
		time.Sleep(5 * time.Second)
		events := all[*corev1.Event](c)
		if len(events) != 1 || events[0].Reason != "Unreadable" || events[0].InvolvedObject.Name != "a" || events[0].InvolvedObject.Kind != "ClusterNetworkPolicy" || !strings.Contains(events[0].Message, "torn: ") {
			t.Errorf("events %+v", events)
		}
		if got := get[*policyv1beta1.ClusterNetworkPolicy](c, named("a")).Status.Conditions; len(got) != 0 {
			t.Errorf("conditions %+v, want none", got)
		}
		p.link.written()
		time.Sleep(time.Hour)
		if got := p.link.written(); len(got) != 0 {
			t.Errorf("at rest it wrote %v", got)
		}
	})
}
