package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
)

// isReady makes a node say whether its network is ready.
func (c *cluster) isReady(i int, status metav1.ConditionStatus, message string) {
	c.t.Helper()
	nn := get[*v1alpha1.NodeNetwork](c, named(nodeName(i)))
	nn.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: "R", Message: message, LastTransitionTime: metav1.Now()}}
	c.updateStatus(nn)
}

// network is what a Node says of its network: "", or status, reason and message.
func (c *cluster) network(i int) (said string, since time.Time) {
	c.t.Helper()
	for _, x := range get[*corev1.Node](c, named(nodeName(i))).Status.Conditions {
		if x.Type == corev1.NodeNetworkUnavailable {
			said, since = fmt.Sprintf("%s %s %s", x.Status, x.Reason, x.Message), x.LastTransitionTime.Time
		}
	}
	return said, since
}

func TestNetworkUnavailable(t *testing.T) {
	const available, broken = "False FairleadReady the node's data plane is ready", "True FairleadNotReady plane: no nftables"
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(node(1), node(2), node(3), nodeNetwork(1), nodeNetwork(2))
		n := get[*corev1.Node](c, named(nodeName(1)))
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"},
			{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated"},
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse},
		}
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
		c.updateStatus(n)
		p := c.start("a", func(o *Config) { o.NodeConditions = true })
		time.Sleep(5 * time.Second)
		// Nobody has said anything, so nothing is changed.
		for i, want := range []string{"True NoRouteCreated ", "", ""} {
			if got, _ := c.network(i + 1); got != want {
				t.Errorf("node %d, which has said nothing: %q, want %q", i+1, got, want)
			}
		}
		c.isReady(1, metav1.ConditionTrue, "all is well")
		c.isReady(2, metav1.ConditionFalse, "plane: no nftables")
		time.Sleep(5 * time.Second)
		first, since := c.network(1)
		if first != available || time.Since(since) > 10*time.Second {
			t.Errorf("a node that is ready: %q since %s", first, since)
		}
		if got, _ := c.network(2); got != broken {
			t.Errorf("a node that is not: %q", got)
		}
		n = get[*corev1.Node](c, named(nodeName(1)))
		if len(n.Status.Conditions) != 3 || n.Status.Conditions[0].Reason != "KubeletReady" || len(n.Status.Images) != 1 {
			t.Errorf("the kubelet's status was changed: %+v", n.Status)
		}

		// What does not change costs nothing, whatever the kubelet says.
		_ = p.link.written()
		n.Status.Conditions[2].Status = corev1.ConditionTrue
		c.updateStatus(n)
		c.isReady(1, metav1.ConditionTrue, "all is well indeed")
		time.Sleep(time.Minute)
		for _, w := range p.link.written() {
			if w == "status Node "+nodeName(1) {
				t.Errorf("written again although nothing has changed: %v", w)
			}
		}
		if _, now := c.network(1); !now.Equal(since) {
			t.Errorf("since %s, before %s", now, since)
		}

		// It follows, through conflicts with the kubelet.
		conflicts := 3
		p.link.bend(func(_ context.Context, verb string, kind datastore.Kind, key datastore.Key) error {
			if verb == "status" && kind == datastore.KindNode && conflicts > 0 {
				conflicts--
				return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, key.Name, fmt.Errorf("the kubelet was faster"))
			}
			return nil
		})
		c.isReady(1, metav1.ConditionFalse, "plane: no nftables")
		c.isReady(2, metav1.ConditionTrue, "")
		time.Sleep(20 * time.Second)
		if got, _ := c.network(1); got != broken || conflicts != 0 {
			t.Errorf("a node that fails: %q, %d conflicts are left", got, conflicts)
		}
		if got, _ := c.network(2); got != available {
			t.Errorf("a node that is mended: %q", got)
		}
		// One that takes it away by hand gets it again.
		n = get[*corev1.Node](c, named(nodeName(2)))
		n.Status.Conditions = nil
		c.updateStatus(n)
		time.Sleep(5 * time.Second)
		if got, _ := c.network(2); got != available {
			t.Errorf("after somebody removed it: %q", got)
		}
	})
}

// Without kubelets, Nodes are not the controller's.
func TestNodesWithoutKubelets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(node(1), nodeNetwork(1))
		c.isReady(1, metav1.ConditionTrue, "")
		c.start("a")
		time.Sleep(5 * time.Second)
		if got, _ := c.network(1); got != "" {
			t.Errorf("%q", got)
		}
	})
}

// selective is a store that can tell Events apart.
type selective struct {
	*memory.Store
	asked chan string
}

func (s selective) List(ctx context.Context, kind datastore.Kind) (datastore.List, error) {
	s.asked <- "list " + string(kind)
	return s.Store.List(ctx, kind)
}

func (s selective) ListWhere(ctx context.Context, kind datastore.Kind, field, value string) (datastore.List, error) {
	s.asked <- fmt.Sprintf("list %s where %s is %s", kind, field, value)
	return s.Store.List(ctx, kind)
}

// The Events of others, of which there may be very many, are not read.
func TestOwnEventsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		calls := make(chan string, 1000)
		p := c.start("a", func(o *Config) { o.Store = selective{c.store, calls} })
		time.Sleep(5 * time.Second)
		p.stop()
		close(calls)
		var asked []string
		for call := range calls {
			asked = append(asked, call)
		}
		if !slices.Contains(asked, "list Event where source is fairlead-controller") || slices.Contains(asked, "list Event") {
			t.Errorf("the store was asked for %q", asked)
		}
	})
}
