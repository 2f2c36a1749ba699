package labtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab"
)

// podTimeout bounds the wait for pods.
const podTimeout = 60 * time.Second

// Patience is the deadline of what has no deadline of its own.
const Patience = 30 * time.Second

// pollEvery is how often Eventually tries.
const pollEvery = 20 * time.Millisecond

// Eventually tries until try returns nil, and ends the test with the last error if
// that has not happened by the deadline. It returns how long it took.
func Eventually(t testing.TB, deadline time.Duration, try func() error) time.Duration {
	t.Helper()
	began := time.Now()
	end := time.NewTimer(deadline)
	defer end.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return time.Since(began)
		}
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within %s: %v", deadline, err)
		}
	}
}

// call is a context for one question.
func (l *Lab) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(l.t.Context(), callTimeout)
}

// Apply creates the objects of a manifest, or replaces what exists. Namespaced ones
// without a namespace are put into "default".
func (l *Lab) Apply(manifest string) {
	l.t.Helper()
	objects, err := datastore.DecodeManifest(strings.NewReader(manifest))
	if err != nil {
		l.t.Fatalf("the test's manifest: %v", err)
	}
	datastore.DefaultNamespace(objects, "default")
	ctx, cancel := l.call()
	defer cancel()
	for _, o := range objects {
		if err := l.put(ctx, o); err != nil {
			l.t.Fatalf("apply: %v", err)
		}
	}
}

func (l *Lab) put(ctx context.Context, o datastore.Object) error {
	for {
		_, err := l.Store.Create(ctx, o)
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		r, err := datastore.LookupObject(o)
		if err != nil {
			return err
		}
		old, err := l.Store.Get(ctx, r.Kind, datastore.KeyOf(o))
		if apierrors.IsNotFound(err) {
			continue // deleted just now
		}
		if err != nil {
			return err
		}
		o.SetResourceVersion(old.GetResourceVersion())
		if _, err = l.Store.Update(ctx, o); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		o.SetResourceVersion("")
	}
}

// Delete deletes an object: "NAME", or "NAMESPACE/NAME".
func (l *Lab) Delete(kind datastore.Kind, name string) {
	l.t.Helper()
	ctx, cancel := l.call()
	defer cancel()
	if err := l.Store.Delete(ctx, kind, key(name), datastore.Preconditions{}); err != nil {
		l.t.Fatalf("delete %s %s: %v", kind, name, err)
	}
}

// DeleteAll deletes every object of a kind in a namespace, or all of them if
// namespace is empty.
func (l *Lab) DeleteAll(kind datastore.Kind, namespace string) {
	l.t.Helper()
	for _, o := range List[datastore.Object](l, kind) {
		if namespace != "" && o.GetNamespace() != namespace {
			continue
		}
		ctx, cancel := l.call()
		err := l.Store.Delete(ctx, kind, datastore.KeyOf(o), datastore.Preconditions{})
		cancel()
		if err != nil && !apierrors.IsNotFound(err) {
			l.t.Fatalf("delete %s %s: %v", kind, datastore.KeyOf(o), err)
		}
	}
}

func key(name string) datastore.Key {
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		return datastore.Key{Namespace: namespace, Name: rest}
	}
	return datastore.Key{Name: name}
}

// Get reads an object: "NAME", or "NAMESPACE/NAME".
func Get[T datastore.Object](l *Lab, kind datastore.Kind, name string) T {
	l.t.Helper()
	out, err := TryGet[T](l, kind, name)
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// TryGet is Get for what may not be there.
func TryGet[T datastore.Object](l *Lab, kind datastore.Kind, name string) (out T, err error) {
	ctx, cancel := l.call()
	defer cancel()
	o, err := l.Store.Get(ctx, kind, key(name))
	if err != nil {
		return out, fmt.Errorf("get %s %s: %w", kind, name, err)
	}
	out, ok := o.(T)
	if !ok {
		return out, fmt.Errorf("get %s %s: it is a %T", kind, name, o)
	}
	return out, nil
}

// List reads all objects of a kind, sorted by key.
func List[T datastore.Object](l *Lab, kind datastore.Kind) []T {
	l.t.Helper()
	ctx, cancel := l.call()
	defer cancel()
	list, err := l.Store.List(ctx, kind)
	if err != nil {
		l.t.Fatalf("list %s: %v", kind, err)
	}
	var out []T
	for _, o := range list.Items {
		v, ok := o.(T)
		if !ok {
			l.t.Fatalf("list %s: it holds a %T", kind, o)
		}
		out = append(out, v)
	}
	return out
}

// WaitPods waits until every pod runs, and returns them all, sorted by key.
func (l *Lab) WaitPods() []*corev1.Pod {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), podTimeout)
	defer cancel()
	pods, err := lab.WaitForPods(ctx, l.Store)
	if err != nil {
		l.t.Fatal(err)
	}
	return pods
}

// Pod reads a pod, "NAMESPACE/NAME".
func (l *Lab) Pod(name string) *corev1.Pod {
	l.t.Helper()
	return Get[*corev1.Pod](l, datastore.KindPod, name)
}
