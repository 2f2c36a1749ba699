package datastore

import (
	"encoding/json"
	"fmt"

	kjson "sigs.k8s.io/json"
)

// Encode is an object as it is stored: JSON with apiVersion and kind, without
// its resourceVersion, which the store knows.
func Encode(o Object) ([]byte, error) {
	r, err := LookupObject(o)
	if err != nil {
		return nil, err
	}
	gvk, rv := o.GetObjectKind().GroupVersionKind(), o.GetResourceVersion()
	o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
	o.SetResourceVersion("")
	raw, err := json.Marshal(o)
	o.GetObjectKind().SetGroupVersionKind(gvk)
	o.SetResourceVersion(rv)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", r.Kind, KeyOf(o), err)
	}
	return raw, nil
}

// Decode reads what Encode wrote and sets the resourceVersion. Fields that this
// version does not know are passed over: a newer one may have written them.
func Decode(kind Kind, key Key, raw []byte, resourceVersion string) (Object, error) {
	r, err := Lookup(kind)
	if err != nil {
		return nil, err
	}
	o := r.New()
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, o); err != nil {
		return nil, fmt.Errorf("decode %s %s: %w", kind, key, err)
	}
	if got := o.GetObjectKind().GroupVersionKind(); got != r.GroupVersionKind() {
		return nil, fmt.Errorf("decode %s %s: apiVersion %q, kind %q is stored there", kind, key, got.GroupVersion(), got.Kind)
	}
	if got := KeyOf(o); got != key {
		return nil, fmt.Errorf("decode %s %s: an object named %q is stored there", kind, key, got)
	}
	o.SetResourceVersion(resourceVersion)
	return o, nil
}
