package kube_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/controller"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/kube"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
)

// manage runs Kubernetes' own keeper of the taints of nodes, if it is there.
func (s *server) manage(t *testing.T) bool {
	t.Helper()
	program := filepath.Join(s.bin, "kube-controller-manager")
	if _, err := os.Stat(program); err != nil {
		t.Logf("taints are not looked at: %v", err)
		return false
	}
	p, err := spawn(s.file("controller-manager.log"), program, "--kubeconfig="+s.file("kubeconfig"), "--controllers=node-lifecycle-controller",
		"--leader-elect=false", "--secure-port=0", "--node-monitor-period=500ms")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s", tail(s.file("controller-manager.log")))
		}
	})
	return true
}

// lead runs a controller, with what c says of its tasks, until end is called.
func lead(t *testing.T, store *kube.Store, c controller.Config) (end func()) {
	t.Helper()
	c.Store, c.Identity, c.Grace = store, "c1", time.Minute
	c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = 15*time.Second, 10*time.Second, 2*time.Second
	c.Logger, c.Health, c.Metrics = discard(), health.NewRegistry(time.Now), controller.NewMetrics(prometheus.NewRegistry())
	ctl, err := controller.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ctl.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the controller ended: %v", err)
		}
	}
}

// A node whose data plane is not ready gets no pods: the controller sets the condition, and
// Kubernetes the taint, and both go when it is ready.
func TestNetworkUnavailableReal(t *testing.T) {
	s := realServer(t)
	s.defineOurs(t)
	s.empty(t)
	defer s.empty(t)
	c := s.config()
	c.Lean = true
	store := open(t, c)
	nn, err := store.Create(t.Context(), &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1alpha1.NodeNetworkSpec{Addresses: []string{"172.30.0.11/24"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	node, err := store.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	if err != nil {
		t.Fatal(err)
	}
	n := node.(*corev1.Node)
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}, SizeBytes: 1}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now()}}
	if _, err := store.UpdateStatus(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	taints := s.manage(t)
	defer lead(t, store, controller.Config{NodeConditions: true})()
	for _, ready := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionTrue} {
		own := nn.(*v1alpha1.NodeNetwork)
		own.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: ready, Reason: "R", Message: "m", LastTransitionTime: metav1.Now()}}
		if nn, err = store.UpdateStatus(t.Context(), own); err != nil {
			t.Fatal(err)
		}
		want := corev1.ConditionFalse
		if ready == metav1.ConditionFalse {
			want = corev1.ConditionTrue
		}
		eventually(t, func() error { return networkIs(t.Context(), store, want, taints) })
	}
}

// networkIs tells whether a Node says that, its taint follows, and the kubelet's part is as
// it was.
func networkIs(ctx context.Context, store *kube.Store, want corev1.ConditionStatus, taints bool) error {
	o, err := store.Get(ctx, datastore.KindNode, datastore.Key{Name: "n1"})
	if err != nil {
		return err
	}
	n := o.(*corev1.Node)
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeNetworkUnavailable })
	if i < 0 || n.Status.Conditions[i].Status != want || len(n.Status.Images) != 1 {
		return fmt.Errorf("NetworkUnavailable is not %s: %+v", want, n.Status)
	}
	tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNetworkUnavailable })
	if taints && tainted != (want == corev1.ConditionTrue) {
		return fmt.Errorf("NetworkUnavailable is %s, and the taints are %+v", want, n.Spec.Taints)
	}
	return nil
}
