package cyclonus

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// pollEvery is how often a node is asked whether it has followed.
const pollEvery = 5 * time.Millisecond

// kinds of what cases are made of, those first that stand on others.
var kinds = []datastore.Kind{datastore.KindClusterNetworkPolicy, datastore.KindNetworkPolicy, datastore.KindPod, datastore.KindNamespace}

// arena is a lab that has the objects of a case. Its methods may be called from any
// goroutine, one at a time.
type arena struct {
	lab *labtest.Lab
	// keep are the objects that the lab came with.
	keep map[string]bool
}

func newArena(l *labtest.Lab) *arena {
	a := &arena{lab: l, keep: map[string]bool{}}
	for _, kind := range kinds {
		for _, o := range labtest.List[datastore.Object](l, kind) {
			a.keep[id(kind, o)] = true
		}
	}
	return a
}

func id(kind datastore.Kind, o datastore.Object) string {
	return string(kind) + " " + datastore.KeyOf(o).String()
}

// become makes the lab have these objects, and of their kinds no others than it came
// with. It returns the pods when all of them run and every node has applied what was
// written here.
func (a *arena) become(ctx context.Context, objects []datastore.Object) ([]*corev1.Pod, error) {
	want := map[string]datastore.Object{}
	for _, o := range objects {
		r, err := datastore.LookupObject(o)
		if err != nil {
			return nil, err
		}
		r.Default(o)
		want[id(r.Kind, o)] = o
	}
	// seen is what the nodes must have seen of each kind.
	seen := map[datastore.Kind]string{}
	for _, kind := range kinds {
		list, err := a.lab.Store.List(ctx, kind)
		if err != nil {
			return nil, err
		}
		for _, o := range list.Items {
			key := id(kind, o)
			switch w := want[key]; {
			case w != nil && same(o, w):
				delete(want, key)
			case w == nil && !a.keep[key]:
				if seen[kind], err = a.remove(ctx, kind, list.ResourceVersion, o); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		o, err := put(ctx, a.lab.Store, want[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		kind, err := datastore.KindOf(o)
		if err != nil {
			return nil, err
		}
		seen[kind] = o.GetResourceVersion()
	}
	pods, err := lab.WaitForPods(ctx, a.lab.Store)
	if err != nil {
		return nil, err
	}
	return pods, a.follow(ctx, seen)
}

// remove deletes an object, and returns the version of its kind that has it no more.
func (a *arena) remove(ctx context.Context, kind datastore.Kind, since string, o datastore.Object) (string, error) {
	w, err := a.lab.Store.Watch(ctx, kind, since)
	if err != nil {
		return "", err
	}
	defer w.Stop()
	if err := a.lab.Store.Delete(ctx, kind, datastore.KeyOf(o), datastore.Preconditions{}); err != nil {
		return "", err
	}
	for e := range w.Events() {
		if e.Type == datastore.Deleted && datastore.KeyOf(e.Object) == datastore.KeyOf(o) {
			return e.ResourceVersion, nil
		}
	}
	return "", fmt.Errorf("%s: its deletion was not seen: %w", id(kind, o), w.Err())
}

// follow waits until every node has applied a world that has seen as much of each kind.
func (a *arena) follow(ctx context.Context, seen map[datastore.Kind]string) error {
	status, err := a.lab.Lab.Status(ctx)
	if err != nil {
		return err
	}
	for _, n := range status.Nodes {
		var last admin.Status
		err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(context.Context) (bool, error) {
			last, err = labtest.TryAdminGet[admin.Status](a.lab, n.Name, "/v1/status")
			if err != nil || last.AppliedRevision < last.Revision {
				return false, err
			}
			for kind, version := range seen {
				if at, err := strconv.ParseUint(last.Position[world.Kind(kind)], 10, 64); err != nil {
					return false, err
				} else if want, err := strconv.ParseUint(version, 10, 64); at < want || err != nil {
					return false, err
				}
			}
			return true, nil
		})
		if err != nil {
			return fmt.Errorf("%s has applied revision %d of %d, up to %v, want %v: %w", n.Name, last.AppliedRevision, last.Revision, last.Position, seen, err)
		}
	}
	return nil
}

// same reports whether an object that exists need not be written.
func same(have, want datastore.Object) bool {
	switch want.(type) {
	case *networkingv1.NetworkPolicy, *policyv1beta1.ClusterNetworkPolicy:
		return false // the datastore compares: an update that changes nothing writes nothing
	}
	return maps.Equal(have.GetLabels(), want.GetLabels())
}

// put creates an object, or writes the labels of one that exists, and a policy whole.
func put(ctx context.Context, store datastore.Store, o datastore.Object) (datastore.Object, error) {
	o = o.DeepCopyObject().(datastore.Object)
	o.SetResourceVersion("")
	created, err := store.Create(ctx, o)
	if !apierrors.IsAlreadyExists(err) {
		return created, err
	}
	r, err := datastore.LookupObject(o)
	if err != nil {
		return nil, err
	}
	for {
		old, err := store.Get(ctx, r.Kind, datastore.KeyOf(o))
		if err != nil {
			return nil, err
		}
		switch p := o.(type) {
		case *networkingv1.NetworkPolicy:
			old.(*networkingv1.NetworkPolicy).Spec = p.Spec
		case *policyv1beta1.ClusterNetworkPolicy:
			old.(*policyv1beta1.ClusterNetworkPolicy).Spec = p.Spec
		}
		old.SetLabels(o.GetLabels())
		updated, err := store.Update(ctx, old)
		if !apierrors.IsConflict(err) {
			return updated, err
		}
	}
}

// spaces are the network namespaces of the pods, by NAMESPACE/NAME.
func (a *arena) spaces(ctx context.Context) (map[string]string, error) {
	status, err := a.lab.Lab.Status(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, n := range status.Nodes {
		for _, p := range n.State.Pods {
			out[p.Namespace+"/"+p.Name] = filepath.Join("/proc", fmt.Sprint(n.Pid), "root/run/netns", p.Netns)
		}
	}
	return out, nil
}
