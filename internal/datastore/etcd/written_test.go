package etcd_test

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/lab/etcdserver"
)

// labelled is the object with another value of a label.
func labelled(o datastore.Object, value string) datastore.Object {
	o = o.DeepCopyObject().(datastore.Object)
	o.SetLabels(map[string]string{"round": value})
	return o
}

// What others do to an object that this process writes again and again is noticed,
// although it is not read before every write.
func TestUpdatesOfWhatWasWritten(t *testing.T) {
	endpoint := startEmbedded(t, etcdserver.Config{}).Endpoint()
	ours, theirs := open(t, etcd.Config{Endpoints: []string{endpoint}}), open(t, etcd.Config{Endpoints: []string{endpoint}})
	mustUpdate := func(s datastore.Store, o datastore.Object) datastore.Object {
		t.Helper()
		stored, err := s.Update(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return stored
	}
	for _, tt := range []struct {
		name string
		// then is what others do, and next what we write after that.
		then func(o datastore.Object)
		next func(o datastore.Object) datastore.Object
		want func(error) bool
	}{
		{"nobody else", func(datastore.Object) {}, func(o datastore.Object) datastore.Object { return labelled(o, "3") }, func(err error) bool { return err == nil }},
		{"nothing new", func(datastore.Object) {}, func(o datastore.Object) datastore.Object { return o }, func(err error) bool { return err == nil }},
		{
			"changed", func(o datastore.Object) { mustUpdate(theirs, labelled(o, "theirs")) },
			func(o datastore.Object) datastore.Object { return labelled(o, "3") }, apierrors.IsConflict,
		},
		{
			"changed, nothing new", func(o datastore.Object) { mustUpdate(theirs, labelled(o, "theirs")) },
			func(o datastore.Object) datastore.Object { return o }, apierrors.IsConflict,
		},
		{
			"changed, and ours is invalid", func(o datastore.Object) { mustUpdate(theirs, labelled(o, "theirs")) },
			func(o datastore.Object) datastore.Object { return labelled(o, "not a value!") }, apierrors.IsConflict,
		},
		{"gone", func(o datastore.Object) {
			if err := theirs.Delete(t.Context(), datastore.KindNetNamespace, datastore.KeyOf(o), datastore.Preconditions{}); err != nil {
				t.Fatal(err)
			}
		}, func(o datastore.Object) datastore.Object { return labelled(o, "3") }, apierrors.IsNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, err := ours.Create(t.Context(), tenant("tenant"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				err := ours.Delete(context.WithoutCancel(t.Context()), datastore.KindNetNamespace, datastore.KeyOf(o), datastore.Preconditions{})
				if err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
			})
			o = mustUpdate(ours, labelled(o, "1"))
			o = mustUpdate(ours, labelled(o, "2"))
			tt.then(o)
			// What was handed out is the caller's to change.
			next := tt.next(o.DeepCopyObject().(datastore.Object))
			o.(*v1alpha1.NetNamespace).Spec.VNI++
			if _, err := ours.Update(t.Context(), next); !tt.want(err) {
				t.Errorf("the update ended with %v", err)
			}
		})
	}
}
