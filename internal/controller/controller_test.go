package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func withDefaultSubnet(c *Config) { c.DefaultSubnet = subnet("default", "10.128.0.0/16", "fd10::/64") }

func TestNewClusterGetsDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(node(1), nodeNetwork(1), namespace("default"))
		p := c.start("a", withDefaultSubnet)
		time.Sleep(10 * time.Second)
		vpc := get[*v1alpha1.VPC](c, named("default"))
		if vpc == nil || vpc.Spec.Isolation != v1alpha1.IsolationNone || vpc.Status.VNI == 0 || vpc.Status.ObservedGeneration != 1 {
			t.Fatalf("VPC default: %+v", vpc)
		}
		sn := get[*v1alpha1.Subnet](c, named("default"))
		if sn == nil {
			t.Fatal("there is no Subnet default")
		}
		for _, conditions := range [][]metav1.Condition{vpc.Status.Conditions, sn.Status.Conditions} {
			if got := condition(conditions, "Ready"); got.Status != "True" || got.ObservedGeneration != 1 {
				t.Errorf("Ready: %+v", got)
			}
			if got := condition(conditions, "Realised"); got.Message != "realised on 1 of 1 nodes" {
				t.Errorf("Realised: %+v", got)
			}
		}
		if err := p.ctl.Ready(); err != nil {
			t.Errorf("Ready: %v", err)
		}
		// VPC, Subnet, the record, and a status each.
		if got := p.link.written(); len(got) != 5 {
			t.Errorf("%d writes: %v", len(got), got)
		}
		time.Sleep(time.Hour)
		if got := p.link.written(); len(got) != 0 {
			t.Errorf("writes in a quiet hour: %v", got)
		}
	})
}

func TestNothingIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(&v1alpha1.VPC{ObjectMeta: meta("default"), Spec: v1alpha1.VPCSpec{Isolation: v1alpha1.IsolationTenant}}, subnet("default", "10.1.0.0/16"))
		c.start("a", withDefaultSubnet)
		time.Sleep(5 * time.Second)
		if got := get[*v1alpha1.Subnet](c, named("default")).Spec.CIDRs; !cmp.Equal(got, []string{"10.1.0.0/16"}) {
			t.Errorf("cidrs %v", got)
		}
		if got := get[*v1alpha1.VPC](c, named("default")).Spec.Isolation; got != v1alpha1.IsolationTenant {
			t.Errorf("isolation %s", got)
		}
	})
}

// The datastore refuses what overlaps; here it came to be, as it can on Kubernetes.
func TestConditionsSayWhatDecideDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(subnet("pods", "10.128.0.0/16"))
		time.Sleep(time.Second)
		c.create(&v1alpha1.VPC{ObjectMeta: meta("blue")})
		over := subnet("overlap", "10.128.4.0/24")
		over.Spec.VPC = "blue"
		lost := subnet("lost", "10.3.0.0/16")
		lost.Spec.VPC = "red"
		under := subnet("under", "172.30.0.0/24")
		routed := subnet("routed", "10.4.0.0/16")
		routed.Spec.Transport = v1alpha1.TransportUnderlay
		c.create(over, lost, under, routed)
		c.create(node(1), nodeNetwork(1))
		c.start("a")
		time.Sleep(5 * time.Second)
		got := map[string]string{}
		for _, s := range all[*v1alpha1.Subnet](c) {
			r := condition(s.Status.Conditions, "Ready")
			got[s.Name] = string(r.Status) + " " + r.Reason
			if r.Message == "" || s.Status.ObservedGeneration != s.Generation {
				t.Errorf("%s: %+v", s.Name, s.Status)
			}
		}
		want := map[string]string{
			"pods": "True InUse", "overlap": "False Overlap", "lost": "False UnknownVPC",
			"under": "False OverlapsNodeNetwork", "routed": "False TransportUnavailable",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		r := condition(get[*v1alpha1.Subnet](c, named("overlap")).Status.Conditions, "Ready")
		if !strings.Contains(r.Message, "10.128.0.0/16 of Subnet pods in VPC default") {
			t.Errorf("message %q", r.Message)
		}
		c.delete(datastore.KindSubnet, named("pods"))
		time.Sleep(5 * time.Second)
		if r := condition(get[*v1alpha1.Subnet](c, named("overlap")).Status.Conditions, "Ready"); r.Status != "True" {
			t.Errorf("after the other one is gone: %+v", r)
		}
	})
}

func TestSubnetNumbersAndWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		sn := subnet("small", "10.9.0.0/28")
		sn.Spec.BlockSize = v1alpha1.BlockSize{V4: 28, V6: 122}
		c.create(sn, node(1), nodeNetwork(1))
		held := map[string]v1alpha1.AddressOwner{"10.9.0.1": tunnel("n001")}
		for i := range 10 {
			held[fmt.Sprintf("10.9.0.%d", i+2)] = v1alpha1.AddressOwner{Namespace: "default", Name: fmt.Sprintf("p%d", i), UID: "u"}
		}
		c.create(block("small", "10.9.0.0/28", "n001", held))
		c.start("a")
		time.Sleep(5 * time.Second)
		st := get[*v1alpha1.Subnet](c, named("small")).Status
		if st.Blocks != 1 || st.Capacity != 14 || st.Allocated != 11 {
			t.Errorf("blocks %d, capacity %d, allocated %d; want 1, 14, 11", st.Blocks, st.Capacity, st.Allocated)
		}
		if got := condition(st.Conditions, "NearlyFull"); got.Status != "" {
			t.Errorf("10 of 13: %+v", got)
		}
		b := all[*v1alpha1.IPBlock](c)[0]
		b.Spec.Allocations["10.9.0.12"] = v1alpha1.AddressOwner{Namespace: "default", Name: "last", UID: "u"}
		c.update(b)
		time.Sleep(5 * time.Second)
		got := condition(get[*v1alpha1.Subnet](c, named("small")).Status.Conditions, "NearlyFull")
		if got.Status != "True" || !strings.Contains(got.Message, "11 of 13 IPv4 addresses are used (84 %)") {
			t.Errorf("11 of 13: %+v", got)
		}
		events := all[*corev1.Event](c)
		if len(events) != 1 || events[0].Reason != "NearlyFull" || events[0].InvolvedObject.Kind != "Subnet" {
			t.Errorf("events: %+v", events)
		}
		sn = get[*v1alpha1.Subnet](c, named("small"))
		sn.Spec.CIDRs = append(sn.Spec.CIDRs, "10.9.1.0/28")
		c.update(sn)
		time.Sleep(5 * time.Second)
		if got := condition(get[*v1alpha1.Subnet](c, named("small")).Status.Conditions, "NearlyFull"); got.Status != "False" {
			t.Errorf("enlarged: %+v", got)
		}
	})
}

// A Subnet in the range of Services says so, until that is mended.
func TestSubnetInTheRangeOfServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		services := &networkingv1.ServiceCIDR{ObjectMeta: meta("kubernetes"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd96::/112"}}}
		c.create(services, subnet("wide", "10.96.128.0/20", "fd10::/64"), subnet("well", "10.97.0.0/16"), node(1), nodeNetwork(1))
		p := c.start("a")
		warned := func(name, status, message string) {
			t.Helper()
			time.Sleep(5 * time.Second)
			st := get[*v1alpha1.Subnet](c, named(name)).Status
			if got := condition(st.Conditions, "Warnings"); string(got.Status) != status || !strings.HasPrefix(got.Message, message) {
				t.Errorf("%s: %+v", name, got)
			}
			if got := condition(st.Conditions, "Ready"); got.Status != "True" {
				t.Errorf("%s: %+v", name, got)
			}
		}
		warned("wide", "True", "10.96.128.0/20 overlaps the range 10.96.0.0/16 of Services")
		if got := condition(get[*v1alpha1.Subnet](c, named("wide")).Status.Conditions, "Warnings"); got.Reason != "ServiceRange" {
			t.Errorf("%+v", got)
		}
		warned("well", "", "")
		c.create(&networkingv1.ServiceCIDR{ObjectMeta: meta("more"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.97.4.0/24"}}})
		warned("well", "True", "10.97.0.0/16 overlaps the range 10.97.4.0/24 of Services")
		c.delete(datastore.KindServiceCIDR, named("more"))
		warned("well", "False", "nothing is wrong")
		p.link.written()
		time.Sleep(time.Minute)
		if w := p.link.written(); len(w) > 0 {
			t.Errorf("written although nothing has changed: %v", w)
		}
	})
}

// An API server that does not have the kind, or does not show it, is asked again later, and
// one that is away soon.
func TestRangesOfServicesAreReadWhenTheyCanBe(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		after time.Duration
	}{
		"unknown": {apierrors.NewNotFound(networkingv1.Resource("servicecidrs"), ""), 11 * time.Minute},
		"refused": {apierrors.NewForbidden(networkingv1.Resource("servicecidrs"), "", errors.New("no role")), 11 * time.Minute},
		"away":    {apierrors.NewServiceUnavailable("away"), 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t)
				w.create(&networkingv1.ServiceCIDR{ObjectMeta: meta("kubernetes"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}}, subnet("wide", "10.96.0.0/12"))
				p := w.start("a", func(config *Config) {
					config.Store.(*link).bend(func(_ context.Context, verb string, kind datastore.Kind, _ datastore.Key) error {
						if kind == datastore.KindServiceCIDR {
							return c.err
						}
						return nil
					})
				})
				time.Sleep(4 * time.Minute)
				if got := condition(get[*v1alpha1.Subnet](w, named("wide")).Status.Conditions, "Warnings"); got.Status != "" {
					t.Errorf("%+v", got)
				}
				p.link.bend(nil)
				time.Sleep(c.after)
				if got := condition(get[*v1alpha1.Subnet](w, named("wide")).Status.Conditions, "Warnings"); got.Status != "True" {
					t.Errorf("after %s: %+v", c.after, got)
				}
			})
		})
	}
}

// Allocations come and go all the time: their numbers are written in turn.
func TestBusySubnetIsWrittenInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(subnet("pods", "10.9.0.0/16"), node(1), nodeNetwork(1), block("pods", "10.9.0.0/26", "n001", nil))
		p := c.start("a")
		time.Sleep(5 * time.Second)
		p.link.written()
		for i := range 50 {
			b := all[*v1alpha1.IPBlock](c)[0]
			if b.Spec.Allocations == nil {
				b.Spec.Allocations = map[string]v1alpha1.AddressOwner{}
			}
			b.Spec.Allocations[fmt.Sprintf("10.9.0.%d", i+1)] = v1alpha1.AddressOwner{Name: "x"}
			c.update(b)
			time.Sleep(200 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		if got := get[*v1alpha1.Subnet](c, named("pods")).Status.Allocated; got != 50 {
			t.Errorf("allocated %d, want 50", got)
		}
		if got := p.link.written(); len(got) > 8 {
			t.Errorf("%d writes for 50 allocations in 10 s", len(got))
		}
	})
}

func TestRealisedOnSevenOfEightNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(subnet("pods", "10.9.0.0/16"))
		for i := range 8 {
			c.create(node(i), nodeNetwork(i))
		}
		c.start("a")
		time.Sleep(5 * time.Second)
		bad := get[*v1alpha1.NodeNetwork](c, named("n003"))
		bad.Status.Problems = []v1alpha1.ObjectProblem{{Kind: "Subnet", Name: "pods", Reason: "NoDirectRoute", Message: "no way"}}
		bad.Status.ProblemCount = 1
		c.updateStatus(bad)
		time.Sleep(5 * time.Second)
		conditions := get[*v1alpha1.Subnet](c, named("pods")).Status.Conditions
		want := "realised on 7 of 8 nodes; n003: NoDirectRoute: no way"
		for _, kind := range []string{"Ready", "Realised"} {
			if got := condition(conditions, kind); got.Status != "False" || got.Reason != "NotRealised" || got.Message != want {
				t.Errorf("%s: %+v", kind, got)
			}
		}
		bad = get[*v1alpha1.NodeNetwork](c, named("n003"))
		bad.Status.Problems, bad.Status.ProblemCount = nil, 0
		c.updateStatus(bad)
		time.Sleep(5 * time.Second)
		if got := condition(get[*v1alpha1.Subnet](c, named("pods")).Status.Conditions, "Ready"); got.Status != "True" {
			t.Errorf("Ready: %+v", got)
		}
	})
}

func TestSecondControllerTakesOver(t *testing.T) {
	for _, how := range []string{"stopped", "cut off"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				a := c.start("a")
				time.Sleep(5 * time.Second)
				b := c.start("b")
				time.Sleep(5 * time.Second)
				a.link.written()
				if got := b.link.written(); len(got) != 0 {
					t.Fatalf("the second one writes: %v", got)
				}
				if how == "stopped" {
					a.stop()
				} else {
					a.link.bend(func(ctx context.Context, _ string, _ datastore.Kind, _ datastore.Key) error {
						<-ctx.Done()
						return ctx.Err()
					})
				}
				time.Sleep(30 * time.Second)
				c.create(&v1alpha1.VPC{ObjectMeta: meta("blue")})
				time.Sleep(5 * time.Second)
				if vni := get[*v1alpha1.VPC](c, named("blue")).Status.VNI; vni == 0 || vni == get[*v1alpha1.VPC](c, named("default")).Status.VNI {
					t.Errorf("VNI %d", vni)
				}
				if got := b.link.written(); len(got) == 0 {
					t.Error("the second one does not write")
				}
				if got := a.component(componentLeader).Message; how == "cut off" && got != "standing by" {
					t.Errorf("the first one is %q", got)
				}
				a.link.bend(nil)
			})
		})
	}
}

// A leader whose loop hangs in something that no context ends must not keep the Lease.
func TestStuckLeaderEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.start("a")
		time.Sleep(5 * time.Second)
		hang := make(chan struct{})
		a.link.bend(func(_ context.Context, verb string, kind datastore.Kind, _ datastore.Key) error {
			if verb == "status" && kind == datastore.KindVPC {
				<-hang
				return errors.New("hung")
			}
			return nil
		})
		c.create(&v1alpha1.VPC{ObjectMeta: meta("blue")})
		err := <-a.done
		if !errors.Is(err, errStuck) {
			t.Errorf("Run: %v, want %v", err, errStuck)
		}
		if got := a.component(componentLeader).Level; got != health.Failed {
			t.Errorf("health %s", got)
		}
		close(a.done)
		close(hang)
	})
}

func TestDatastoreAwayAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.start("a", func(cfg *Config) {
			cfg.Store.(*link).before = func(context.Context, string, datastore.Kind, datastore.Key) error {
				return apierrors.NewServiceUnavailable("away")
			}
		})
		time.Sleep(10 * time.Minute)
		if err := a.ctl.Ready(); err == nil || !strings.Contains(err.Error(), "first list of Node") {
			t.Errorf("Ready: %v", err)
		}
		if got := a.component(componentDatastore); got.Level != health.Degraded || !strings.Contains(got.Message, "away") {
			t.Errorf("health: %+v", got)
		}
		a.link.bend(nil)
		time.Sleep(10 * time.Second)
		if get[*v1alpha1.VPC](c, named("default")) == nil || a.ctl.Ready() != nil {
			t.Error("it does not work after the datastore came back")
		}
	})
}

// A default Subnet that the datastore refuses stops nothing else.
func TestRefusedDefaultSubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(node(1), nodeNetwork(1))
		a := c.start("a", func(cfg *Config) { cfg.DefaultSubnet = subnet("default", "172.30.0.0/20") })
		time.Sleep(time.Minute)
		if got := a.component(componentWrites); got.Level != health.Degraded || !strings.Contains(got.Message, "overlaps the network 172.30.0.0/16 of node n001") {
			t.Errorf("health: %+v", got)
		}
		if vpc := get[*v1alpha1.VPC](c, named("default")); vpc == nil || vpc.Status.VNI == 0 {
			t.Errorf("VPC: %+v", vpc)
		}
		a.link.written()
		for i := range 1000 { // Other things go on meanwhile.
			n := get[*corev1.Node](c, named("n001"))
			n.Labels = map[string]string{"x": fmt.Sprint(i)}
			c.update(n)
			time.Sleep(600 * time.Millisecond)
		}
		if got := len(a.link.written()); got < 15 || got > 25 {
			t.Errorf("%d attempts in 10 minutes, want one every 30 s", got)
		}
	})
}

// Somebody else writes the same object at the same time.
func TestConflictIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.start("a")
		time.Sleep(5 * time.Second)
		meddled := 0
		a.link.bend(func(ctx context.Context, verb string, kind datastore.Kind, key datastore.Key) error {
			if verb == "status" && kind == datastore.KindVPC && meddled < 3 {
				meddled++
				v := get[*v1alpha1.VPC](c, key)
				v.Labels = map[string]string{"meddled": fmt.Sprint(meddled)}
				c.update(v)
			}
			return nil
		})
		c.create(&v1alpha1.VPC{ObjectMeta: meta("blue")})
		time.Sleep(10 * time.Second)
		v := get[*v1alpha1.VPC](c, named("blue"))
		if v.Status.VNI == 0 || meddled != 3 || v.Labels["meddled"] != "3" {
			t.Errorf("after %d conflicts: %+v", meddled, v)
		}
	})
}

// A hundred thousand writes at once would hurt everybody.
func TestWritesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(&v1alpha1.VPC{ObjectMeta: meta("default"), Spec: v1alpha1.VPCSpec{Isolation: v1alpha1.IsolationTenant}})
		for i := range 1000 {
			c.create(namespace(fmt.Sprintf("ns%04d", i)))
		}
		a := c.start("a")
		time.Sleep(5 * time.Second)
		if got := len(a.link.written()); got < 200 || got > writeBurst+5*writesPerSecond+10 {
			t.Errorf("%d writes in 5 s", got)
		}
		time.Sleep(20 * time.Second)
		seen := map[int32]bool{}
		for _, n := range all[*v1alpha1.NetNamespace](c) {
			seen[n.Spec.VNI] = true
		}
		if len(seen) != 1000 {
			t.Errorf("%d VNIs for 1000 namespaces", len(seen))
		}
	})
}
