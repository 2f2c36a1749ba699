package etcd

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
)

func TestFixedVersion(t *testing.T) {
	for version, want := range map[string]bool{
		"3.4.23": false, "3.4.24": false, "3.4.25": true, "3.4.30": true, "3.5.0": false, "3.5.7": false, "3.5.8": true, "3.5.15-rc.1": true,
		"3.6.0": true, "3.7.3": true, "4.0.0": true, "3.3.27": false, "2.3.8": false, "": false, "3.5": false, "a.b.c": false,
	} {
		if got := fixedVersion(version); got != want {
			t.Errorf("fixedVersion(%q) = %v, want %v", version, got, want)
		}
	}
}

func TestHealth(t *testing.T) {
	h := newHealth()
	h.answered(10, 0)
	first := h.current()
	h.saw(12)
	// An answer that was on its way while a write was done is no step back.
	h.answered(11, 10)
	if first.err != nil || h.known() != 12 {
		t.Fatalf("outage %v, newest %d; want none, 12", first.err, h.known())
	}
	h.answered(5, 12)
	if !apierrors.IsResourceExpired(first.err) || h.known() != 5 {
		t.Errorf("after a reset: outage %v, newest %d", first.err, h.known())
	}
	<-first.begun
	second := h.current()
	away := apierrors.NewServiceUnavailable("away")
	h.fail(away)
	h.fail(errors.New("later"))
	<-second.begun
	if !errors.Is(second.err, away) || h.current() != second {
		t.Errorf("outage %v, want the first reason, until the cluster answers", second.err)
	}
	h.answered(6, 5)
	if h.current() == second || h.current().err != nil {
		t.Error("the outage did not end with an answer")
	}
}

func TestQueue(t *testing.T) {
	q := newQueue()
	q.push(item{revision: 1})
	q.push(item{revision: 2}) // bookmarks in a row are one
	q.push(item{event: &clientv3.Event{}, revision: 3})
	for len(q.items) < maxQueue {
		if !q.push(item{event: &clientv3.Event{}}) {
			t.Fatal("refused before it was full")
		}
	}
	if q.push(item{event: &clientv3.Event{}}) {
		t.Error("grew beyond its bound")
	}
	end := errors.New("end")
	q.close(end)
	if it, err := q.pop(t.Context()); err != nil || it.revision != 2 {
		t.Errorf("first item %+v, %v", it, err)
	}
	n := 1
	for {
		if _, err := q.pop(t.Context()); err != nil {
			if !errors.Is(err, end) {
				t.Errorf("the end is %v", err)
			}
			break
		}
		n++
	}
	if n != maxQueue {
		t.Errorf("%d items came out, want %d", n, maxQueue)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newQueue().pop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("pop under an ended context: %v", err)
	}
}

// S10: endpoints are repeated in errors and logs, so that none may hold a secret.
func TestEndpointWithPasswordIsRefused(t *testing.T) {
	for _, e := range []string{"https://user:canary@192.0.2.1:2379", "https://canary@192.0.2.1", "https://user:canary@%zz", "canary@192.0.2.1"} {
		_, err := New(Config{Endpoints: []string{e}})
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v: want a refusal that does not repeat the endpoint", err)
		}
	}
}

func TestWritten(t *testing.T) {
	var w written
	o := &v1alpha1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "7"}, Spec: v1alpha1.NetNamespaceSpec{VNI: 5}}
	w.keep("a", o)
	o.Spec.VNI = 6
	got, ok := w.take("a", "7").(*v1alpha1.NetNamespace)
	if !ok || got.Spec.VNI != 5 {
		t.Errorf("took %+v, want the object as it was written", got)
	}
	if again := w.take("a", "7"); again != nil {
		t.Errorf("took %+v twice", again)
	}
	w.keep("a", o)
	if old := w.take("a", "6"); old != nil {
		t.Errorf("took %+v as another version", old)
	}
	for i := range 3 * maxWritten {
		w.keep(strconv.Itoa(i), o)
	}
	if len(w.objects) != maxWritten || w.take(strconv.Itoa(3*maxWritten-1), "7") == nil {
		t.Errorf("%d objects are kept, want %d with the newest", len(w.objects), maxWritten)
	}
}
