package controller

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/controller/plan"
)

// say makes a node report problems with pods.
func (c *cluster) say(i int, message string, pods ...string) {
	c.t.Helper()
	nn := get[*v1alpha1.NodeNetwork](c, named(nodeName(i)))
	nn.Status.Problems = nil
	for _, p := range pods {
		nn.Status.Problems = append(nn.Status.Problems, v1alpha1.ObjectProblem{Kind: "Pod", Namespace: "default", Name: p, Reason: "NoTenant", Message: message})
	}
	nn.Status.ProblemCount = int32(len(pods))
	c.updateStatus(nn)
}

func TestEventsOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(node(1), nodeNetwork(1))
		stored := c.createPod(pod("p", "n001", netip.Addr{}))
		p := c.start("a")
		time.Sleep(5 * time.Second)
		step := func(what string, count int32, first, last time.Duration, message string) {
			t.Helper()
			e := all[*corev1.Event](c)
			if len(e) != 1 {
				t.Fatalf("%s: %d events", what, len(e))
			}
			got := e[0]
			if got.Count != count || time.Since(got.FirstTimestamp.Time).Round(10*time.Second) != first || time.Since(got.LastTimestamp.Time).Round(10*time.Second) != last || got.Message != message {
				t.Errorf("%s: count %d, first %s ago, last %s ago, %q", what, got.Count, time.Since(got.FirstTimestamp.Time), time.Since(got.LastTimestamp.Time), got.Message)
			}
		}
		c.say(1, "no", "p", "never-heard-of")
		time.Sleep(time.Second)
		step("it appears", 1, 0, 0, "no (on n001)")
		e := all[*corev1.Event](c)[0]
		if e.Namespace != "default" || e.InvolvedObject.UID != stored.UID || e.Type != "Warning" || e.Reason != "NoTenant" || e.InvolvedObject.APIVersion != "v1" {
			t.Errorf("event %+v", e)
		}
		time.Sleep(5 * time.Minute)
		step("it lasts", 1, 5*time.Minute, 5*time.Minute, "no (on n001)")
		c.say(1, "no")
		time.Sleep(time.Second)
		c.say(1, "no", "p")
		time.Sleep(time.Second)
		step("it comes back", 2, 5*time.Minute, 0, "no (on n001)")
		for range 10 { // It flaps.
			c.say(1, "no")
			time.Sleep(time.Second)
			c.say(1, "no", "p")
			time.Sleep(time.Second)
		}
		step("it flaps", 2, 5*time.Minute+20*time.Second, 20*time.Second, "no (on n001)")
		time.Sleep(time.Minute)
		step("after the flapping", 3, 6*time.Minute+20*time.Second, 20*time.Second, "no (on n001)")
		c.say(1, "never", "p")
		time.Sleep(time.Minute)
		step("it says something else", 4, 7*time.Minute+20*time.Second, 20*time.Second, "never (on n001)")

		c.say(1, "never")
		time.Sleep(time.Second)
		step("it is over", 4, 7*time.Minute+20*time.Second, 20*time.Second, "never (on n001)")
		time.Sleep(time.Minute)
		step("it has been over for a while", 4, 8*time.Minute+20*time.Second, 80*time.Second, "over: never (on n001)")
		if got := all[*corev1.Event](c)[0].Type; got != "Normal" {
			t.Errorf("an event whose problem is over is a %s", got)
		}
		c.say(1, "never", "p")
		time.Sleep(time.Second)
		step("it is there again", 5, 8*time.Minute+30*time.Second, 0, "never (on n001)")
		if got := all[*corev1.Event](c)[0].Type; got != "Warning" {
			t.Errorf("an event whose problem is there again is a %s", got)
		}

		// Another leader finds it as it is, and writes nothing.
		p.stop()
		p = c.start("b")
		p.link.written()
		time.Sleep(time.Hour)
		if got := p.link.written(); len(got) != 0 {
			t.Errorf("the next leader wrote %v", got)
		}
		c.say(1, "never")
		time.Sleep(time.Second)
		if got := len(all[*corev1.Event](c)); got != 0 {
			t.Errorf("%d events after the problem is over and the last news an hour old", got)
		}
	})
}

func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		for i := range 30 {
			c.create(node(i), nodeNetwork(i))
			var names []string
			for j := range 50 {
				name := fmt.Sprintf("p%d-%d", i, j)
				c.createPod(pod(name, nodeName(i), netip.Addr{}))
				names = append(names, name)
			}
			c.say(i, "no", names...)
		}
		p := c.start("a")
		time.Sleep(2 * time.Minute)
		if got := len(all[*corev1.Event](c)); got != plan.MaxEvents {
			t.Errorf("%d events, want %d", got, plan.MaxEvents)
		}
		p.link.written()
		time.Sleep(30 * time.Minute)
		if got := p.link.written(); len(got) != 0 {
			t.Errorf("%d writes, the first: %v", len(got), got[0])
		}
	})
}

// Problems that everybody sees are told once; foreign Events are left alone.
func TestEventsOfOthersAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		e := &corev1.Event{Reason: "Started", Source: corev1.EventSource{Component: "kubelet"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"}}
		e.Namespace, e.Name = "default", "p.1"
		c.create(e)
		c.start("a")
		time.Sleep(3 * time.Hour)
		if got := len(all[*corev1.Event](c)); got != 1 {
			t.Errorf("%d events, want the foreign one", got)
		}
	})
}
