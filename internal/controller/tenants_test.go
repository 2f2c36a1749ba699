package controller

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// tenants makes a cluster whose default VPC isolates tenants.
func tenants(t *testing.T) *cluster {
	c := newCluster(t)
	c.create(&v1alpha1.VPC{ObjectMeta: meta("default"), Spec: v1alpha1.VPCSpec{Isolation: v1alpha1.IsolationTenant}})
	return c
}

func tenant(c *cluster, name string) *v1alpha1.NetNamespace {
	c.t.Helper()
	return get[*v1alpha1.NetNamespace](c, named(name))
}

func TestTenantsFollowNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tenants(t)
		c.create(&v1alpha1.VPC{ObjectMeta: meta("open"), Spec: v1alpha1.VPCSpec{Namespaces: selector("open", "yes")}})
		c.create(namespace("a"), namespace("b"), namespace("o", "open=yes"))
		p := c.start("x")
		time.Sleep(5 * time.Second)
		a, b := tenant(c, "a"), tenant(c, "b")
		if a == nil || b == nil || a.Spec.VNI == b.Spec.VNI {
			t.Fatalf("tenants %+v, %+v", a, b)
		}
		if tenant(c, "o") != nil {
			t.Error("a namespace of a VPC without isolation has a tenant")
		}
		// A user joins a to b and makes b global.
		a.Spec.VNI = b.Spec.VNI
		c.update(a)
		b.Spec.Global = true
		c.update(b)
		p.link.written()
		time.Sleep(time.Minute)
		if got := p.link.written(); len(got) != 0 {
			t.Errorf("writes after a join: %v", got)
		}
		if a, b := tenant(c, "a"), tenant(c, "b"); a.Spec.VNI != b.Spec.VNI || !b.Spec.Global {
			t.Errorf("tenants %+v, %+v", a.Spec, b.Spec)
		}
		// Made again, a is a stranger.
		c.delete(datastore.KindNamespace, named("a"))
		c.create(namespace("a"))
		time.Sleep(5 * time.Second)
		if a := tenant(c, "a"); a == nil || a.Spec.VNI == b.Spec.VNI {
			t.Errorf("the new namespace has the old one's tenant: %+v", a)
		}
		c.delete(datastore.KindNamespace, named("b"))
		time.Sleep(5 * time.Second)
		if tenant(c, "b") != nil {
			t.Error("the tenant outlives its namespace")
		}
		if tenant(c, "a") == nil {
			t.Error("the living namespace has no tenant")
		}
	})
}

func TestTenantAppliedAheadOfItsNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tenants(t)
		c.start("x")
		time.Sleep(5 * time.Second)
		for _, name := range []string{"early", "never"} {
			c.create(&v1alpha1.NetNamespace{ObjectMeta: meta(name), Spec: v1alpha1.NetNamespaceSpec{VNI: 4242}})
		}
		time.Sleep(grace / 2)
		c.create(namespace("early"))
		time.Sleep(2 * grace)
		if n := tenant(c, "early"); n == nil || n.Spec.VNI != 4242 || len(n.OwnerReferences) != 1 {
			t.Errorf("tenant %+v", n)
		}
		if n := tenant(c, "never"); n != nil {
			t.Errorf("a tenant without a namespace is kept: %+v", n)
		}
	})
}

// The VNIs of users collide with those of another VPC and with a VPC's own.
func TestUsersDuplicatesAreConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tenants(t)
		time.Sleep(time.Second)
		c.create(&v1alpha1.VPC{ObjectMeta: meta("blue"), Spec: v1alpha1.VPCSpec{Namespaces: selector("vpc", "blue"), Isolation: v1alpha1.IsolationTenant}})
		c.create(namespace("a"), namespace("b", "vpc=blue"), namespace("c"))
		c.start("x")
		time.Sleep(5 * time.Second)
		b := tenant(c, "b")
		b.Spec.VNI = tenant(c, "a").Spec.VNI
		c.update(b)
		n := tenant(c, "c")
		n.Spec.VNI = get[*v1alpha1.VPC](c, named("default")).Status.VNI
		c.update(n)
		time.Sleep(5 * time.Second)
		for vpc, want := range map[string]string{"blue": "NetNamespace b: ", "default": "NetNamespace c: "} {
			got := condition(get[*v1alpha1.VPC](c, named(vpc)).Status.Conditions, "Warnings")
			if got.Status != "True" || got.Reason != "VNIConflict" || !strings.HasPrefix(got.Message, want) {
				t.Errorf("%s: %+v", vpc, got)
			}
		}
		if got := len(all[*corev1.Event](c)); got != 2 {
			t.Errorf("%d events, want 2", got)
		}
		// A deleted NetNamespace comes again with a VNI of its own.
		c.delete(datastore.KindNetNamespace, named("b"))
		time.Sleep(5 * time.Second)
		if got := condition(get[*v1alpha1.VPC](c, named("blue")).Status.Conditions, "Warnings"); got.Status != "False" {
			t.Errorf("blue: %+v", got)
		}
	})
}

func TestNamespaceOfTwoVPCs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(&v1alpha1.VPC{ObjectMeta: meta("one"), Spec: v1alpha1.VPCSpec{Namespaces: selector("x", "y")}})
		time.Sleep(time.Second)
		c.create(&v1alpha1.VPC{ObjectMeta: meta("two"), Spec: v1alpha1.VPCSpec{Namespaces: selector("x", "y")}}, namespace("ns", "x=y"))
		c.start("a")
		time.Sleep(5 * time.Second)
		conditions := get[*v1alpha1.VPC](c, named("two")).Status.Conditions
		if got := condition(conditions, "Warnings"); got.Reason != "SeveralVPCs" {
			t.Errorf("Warnings: %+v", got)
		}
		if got := condition(conditions, "Ready"); got.Status != "True" {
			t.Errorf("Ready: %+v", got)
		}
		events := all[*corev1.Event](c)
		if len(events) != 1 || events[0].Namespace != "default" || events[0].InvolvedObject.Kind != "Namespace" || events[0].InvolvedObject.UID == "" {
			t.Fatalf("events: %+v", events)
		}
		if want := "VPCs one, two select it: it is in one, the oldest"; events[0].Message != want {
			t.Errorf("message %q, want %q", events[0].Message, want)
		}
	})
}
