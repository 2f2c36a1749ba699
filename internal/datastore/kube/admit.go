package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// admitNew makes a copy of o ready to be sent, or says what is wrong with it.
func (s *Store) admitNew(ctx context.Context, r *datastore.Resource, o datastore.Object) (datastore.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if o.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s %q: resourceVersion must not be set on an object to be created", r.Kind, datastore.KeyOf(o)))
	}
	if err := placed(r, o); err != nil {
		return nil, err
	}
	out := ready(r, o)
	if r.HasStatus {
		// Some kinds of the API would take it.
		reflect.ValueOf(out).Elem().FieldByName("Status").SetZero()
	}
	if own(r) {
		r.Default(out)
	}
	return out, s.check(ctx, r, out, nil)
}

// admitChange is admitNew for an update.
func (s *Store) admitChange(ctx context.Context, r *datastore.Resource, o datastore.Object) (datastore.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := changeable(r, o); err != nil {
		return nil, err
	}
	out := ready(r, o)
	if !own(r) {
		return out, nil
	}
	r.Default(out)
	var old datastore.Object
	if r.Kind == datastore.KindSubnet || r.Kind == datastore.KindVPC {
		// People change these, seldom: they want to know every field that may not change.
		// Of the others, which agents write all the time, the server alone tells.
		var err error
		if old, err = s.Get(ctx, r.Kind, datastore.KeyOf(o)); err != nil {
			return nil, err
		}
		if old.GetResourceVersion() != o.GetResourceVersion() {
			return out, nil // the server will say that it was changed meanwhile
		}
	}
	return out, s.check(ctx, r, out, old)
}

// check holds one of our own kinds against its rules.
func (s *Store) check(ctx context.Context, r *datastore.Resource, o, old datastore.Object) error {
	if !own(r) {
		return nil
	}
	// The server keeps finalizers; the rules are of datastores that cannot.
	plain := o.DeepCopyObject().(datastore.Object)
	plain.SetFinalizers(nil)
	return datastore.Check(plain, old, func(kind datastore.Kind) ([]datastore.Object, error) {
		list, err := s.List(ctx, kind)
		return list.Items, err
	})
}

// changeable tells whether o can be the new form of an object.
func changeable(r *datastore.Resource, o datastore.Object) error {
	if err := checkKey(r, datastore.KeyOf(o)); err != nil {
		return err
	}
	if err := whole(r, o); err != nil {
		return err
	}
	if o.GetResourceVersion() == "" {
		return apierrors.NewInvalid(r.GroupVersionKind().GroupKind(), o.GetName(), field.ErrorList{
			field.Required(field.NewPath("metadata", "resourceVersion"), "an update names the version that it changes: read the object first"),
		})
	}
	return nil
}

// placed refuses an object whose path would be that of something else.
func placed(r *datastore.Resource, o datastore.Object) error {
	path, namespace := field.NewPath("metadata", "namespace"), o.GetNamespace()
	var bad *field.Error
	switch {
	case r.Namespaced && namespace == "":
		bad = field.Required(path, "")
	case !r.Namespaced && namespace != "":
		bad = field.Forbidden(path, "not allowed on this type")
	default:
		return nil
	}
	return apierrors.NewInvalid(r.GroupVersionKind().GroupKind(), o.GetName(), field.ErrorList{bad})
}

// ready is a copy of o with what the server wants to see.
func ready(r *datastore.Resource, o datastore.Object) datastore.Object {
	out := o.DeepCopyObject().(datastore.Object)
	out.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
	out.SetManagedFields(nil) // the server goes on with those it has
	return out
}

// statusPatch is a JSON patch (RFC 6902) that replaces the status of the version of o.
func statusPatch(r *datastore.Resource, o datastore.Object) ([]byte, error) {
	if !r.HasStatus {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s %q: the kind has no status", r.Kind, datastore.KeyOf(o)))
	}
	if err := changeable(r, o); err != nil {
		return nil, err
	}
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	patch, err := json.Marshal([]operation{
		// The server compares it, as in an update.
		{"replace", "/metadata/resourceVersion", o.GetResourceVersion()},
		{"add", "/status", reflect.ValueOf(o).Elem().FieldByName("Status").Interface()},
	})
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("encode the status of %s %s: %w", r.Kind, datastore.KeyOf(o), err))
	}
	return patch, nil
}
