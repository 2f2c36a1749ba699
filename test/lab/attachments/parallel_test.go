package attachments

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// A3: hundreds of ADDs at once, and some containers are given up meanwhile.
func TestScenarioA3(t *testing.T) {
	const containers = 300
	limit := labtest.Limit(t, 2*time.Second) // p99 inside the agent
	l := labtest.Up(t, lab.Options{Nodes: 1})
	before := traces(l, "node-1")
	r := l.Runtime("node-1")
	boxes := make([]*labtest.Sandbox, containers)
	for i := range boxes {
		boxes[i] = r.Sandbox(t, fmt.Sprintf("a3-%d", i))
	}
	givenUp := func(i int) bool { return i%5 == 0 }
	answers := make([]labtest.Answer, containers)
	began := time.Now()
	err := inParallel(t.Context(), containers, func(ctx context.Context, i int) error {
		var del chan error
		if givenUp(i) {
			del = make(chan error, 1)
			// Some before the ADD has begun, some during it, some after it.
			time.AfterFunc(rand.N(300*time.Millisecond), func() { del <- boxes[i].Del(ctx) })
		}
		answer, err := boxes[i].Add(ctx)
		if !givenUp(i) {
			answers[i] = answer
			return err
		}
		if code := labtest.CodeOf(err); err != nil && code != 11 {
			return fmt.Errorf("an ADD whose container was deleted meanwhile: %w", err)
		}
		// A runtime that has given up deletes until it is told that all is gone.
		return errors.Join(<-del, boxes[i].Del(ctx))
	})
	if err != nil {
		t.Fatal(err)
	}
	wall := time.Since(began)
	kept := distinct(t, answers)
	if got, want := len(attachments(l, "node-1")), containers-containers/5; got != want || len(kept) != want {
		t.Errorf("%d attachments and %d addresses, want %d of both", got, len(kept), want)
	}
	wantPublished(t, l, true, kept...)
	labtest.Eventually(t, labtest.Patience, func() error {
		if got, tunnels := len(allocated(t, l)), 1; got != len(kept)+tunnels {
			return fmt.Errorf("%d addresses are allocated, want %d", got, len(kept)+tunnels)
		}
		return nil
	})
	metrics := l.Metrics("node-1")
	p50, n := metrics.Quantile("fairlead_cni_request_seconds", 0.5, `command="ADD"`)
	p99, _ := metrics.Quantile("fairlead_cni_request_seconds", 0.99, `command="ADD"`)
	t.Logf("%d ADDs within %s; inside the agent p50 ≤ %s, p99 ≤ %s", n, wall, p50, p99)
	if p99 > limit || n < containers*4/5 {
		t.Errorf("p99 of %d ADDs inside the agent: %s, want at most %s", n, p99, limit)
	}
	err = inParallel(t.Context(), containers, func(ctx context.Context, i int) error { return boxes[i].Del(ctx) })
	if err != nil {
		t.Error(err)
	}
	wantPublished(t, l, false, kept...)
	wantTraces(t, l, "node-1", before)
}

// distinct are the addresses of the answers, which must not have one twice.
func distinct(t *testing.T, answers []labtest.Answer) []netip.Addr {
	t.Helper()
	owner := map[netip.Addr]int{}
	var out []netip.Addr
	for i, a := range answers {
		for _, addr := range a.Addresses {
			if other, ok := owner[addr]; ok {
				t.Errorf("containers %d and %d both have %s", other, i, addr)
			}
			owner[addr] = i
			out = append(out, addr)
		}
	}
	return out
}

// A12: pods that are deleted and made again under the same name.
func TestScenarioA12(t *testing.T) {
	const (
		names, lives = 50, 3
		limit        = 5 * time.Second // a busy machine is no excuse
	)
	l := shared.Get(t)
	before := traces(l, "node-1")
	r := l.Runtime("node-1")
	all := make([]reborn, names)
	err := inParallel(t.Context(), names, func(ctx context.Context, i int) error {
		all[i].key = datastore.Key{Namespace: "default", Name: fmt.Sprintf("a12-%d", i)}
		for range lives {
			if err := all[i].live(ctx, l, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var slowest time.Duration
	var addrs []netip.Addr
	for _, p := range all {
		slowest = max(slowest, p.slowest)
		addrs = append(addrs, p.addr)
	}
	t.Logf("the slowest of %d ADDs took %s", names*lives, slowest)
	if slowest > limit {
		t.Errorf("the slowest ADD took %s, want at most %s", slowest, limit)
	}
	wantPublished(t, l, true, addrs...)
	owners := allocated(t, l)
	for _, p := range all {
		want := v1alpha1.AddressOwner{Namespace: p.key.Namespace, Name: p.key.Name, UID: types.UID(p.box.UID)}
		if got := owners[p.addr]; got != want {
			t.Errorf("%s belongs to %+v, want %+v", p.addr, got, want)
		}
	}
	if got := attachments(l, "node-1"); len(got) != names {
		t.Errorf("%d attachments, want %d", len(got), names)
	}
	for _, p := range all {
		if err := errors.Join(p.box.Del(t.Context()), p.box.Remove()); err != nil {
			t.Error(err)
		}
		l.Delete(datastore.KindPod, p.key.String())
	}
	wantTraces(t, l, "node-1", before)
}

// reborn is a pod that is deleted and made again under the same name.
type reborn struct {
	key     datastore.Key
	box     *labtest.Sandbox
	addr    netip.Addr
	lives   int
	slowest time.Duration
}

// live makes the pod anew, attaches its container, and deletes that of its predecessor
// only then.
func (p *reborn) live(ctx context.Context, l *labtest.Lab, r *labtest.Runtime) error {
	if p.lives > 0 {
		if err := l.Store.Delete(ctx, datastore.KindPod, p.key, datastore.Preconditions{}); err != nil {
			return err
		}
	}
	pod, err := l.Store.Create(ctx, newPod(p.key))
	if err != nil {
		return err
	}
	s, err := r.NewSandbox(fmt.Sprintf("%s-%d", p.key.Name, p.lives))
	if err != nil {
		return err
	}
	s.Pod, s.UID = p.key.String(), string(pod.GetUID())
	began := time.Now()
	answer, err := s.Add(ctx)
	took := time.Since(began)
	if err != nil {
		return errors.Join(fmt.Errorf("ADD for life %d after %s: %w", p.lives, took, err), s.Remove())
	}
	if answer.Addresses[0] == p.addr {
		return fmt.Errorf("life %d has the address %s of its predecessor", p.lives, p.addr)
	}
	old := p.box
	p.box, p.addr, p.lives, p.slowest = s, answer.Addresses[0], p.lives+1, max(p.slowest, took)
	if old == nil {
		return nil
	}
	return errors.Join(old.Del(ctx), old.Remove())
}

// newPod is a Pod that nothing in the lab runs.
func newPod(key datastore.Key) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec:       corev1.PodSpec{NodeName: "elsewhere", Containers: []corev1.Container{{Name: "c", Image: "any"}}},
	}
}
