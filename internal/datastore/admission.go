package datastore

import (
	"crypto/rand"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
)

// Admission does for implementations of Store that are no API server what an API
// server does with a write before it stores it. The zero value works.
//
// It differs from an API server on purpose: finalizers are refused and objects
// are deleted at once, without deletionTimestamp and without collecting what
// they own; managed fields are dropped. That the namespace of a new object exists is the
// Store's to see to, where it does not merely serve tests: see Home.
type Admission struct {
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// NewUID makes identities; nil means random UUIDs (RFC 9562, version 4).
	NewUID func() types.UID
}

// Lister lists the objects of a kind as they are stored at the moment. Admission
// asks it only for what the object at hand could collide with.
type Lister func(kind Kind) ([]Object, error)

// Create makes o ready to be stored for the first time: it returns a copy with
// defaults, uid, generation and creationTimestamp, or IsInvalid.
func (a *Admission) Create(o Object, list Lister) (Object, error) {
	r, err := LookupObject(o)
	if err != nil {
		return nil, err
	}
	out := o.DeepCopyObject().(Object)
	if out.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s %q: resourceVersion must not be set on an object to be created", r.Kind, KeyOf(o)))
	}
	a.stamp(r, out)
	if r.HasStatus {
		clearStatus(out)
	}
	r.Default(out)
	return out, admit(r, out, nil, list)
}

// Home is the Namespace that must exist for an object to be created, if one must. An API
// server makes some by itself, and so every cluster has them.
func Home(o Object) (namespace Key, needed bool) {
	switch name := o.GetNamespace(); name {
	case "", metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease:
		return Key{}, false
	default:
		return Key{Name: name}, true
	}
}

// ErrNoHome is what the creation of an object fails with if its Namespace does not exist.
func ErrNoHome(namespace Key) error {
	return apierrors.NewNotFound(corev1.Resource("namespaces"), namespace.Name)
}

func (a *Admission) stamp(r *Resource, o Object) {
	now := time.Now
	if a.Now != nil {
		now = a.Now
	}
	newUID := randomUID
	if a.NewUID != nil {
		newUID = a.NewUID
	}
	o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
	o.SetUID(newUID())
	if prefix := o.GetGenerateName(); o.GetName() == "" && prefix != "" {
		uid := string(newUID())
		o.SetName(prefix + uid[max(0, len(uid)-5):])
	}
	o.SetGeneration(1)
	// The API keeps whole seconds, in UTC.
	o.SetCreationTimestamp(metav1.NewTime(now().UTC().Truncate(time.Second)))
	clearForeign(o)
}

// clearForeign drops the metadata that only an API server keeps.
func clearForeign(o Object) {
	o.SetDeletionTimestamp(nil)
	o.SetDeletionGracePeriodSeconds(nil)
	o.SetManagedFields(nil)
	o.SetSelfLink("")
}

// Update makes o ready to replace old, the stored object: the status and what the
// datastore owns of the metadata come from old, and the generation is bumped if
// anything but metadata changed. changed is false if nothing would change; the
// result is then equal to old. Errors: IsInvalid, IsConflict.
func (a *Admission) Update(o, old Object, list Lister) (out Object, changed bool, err error) {
	r, err := a.checkUpdate(o, old)
	if err != nil {
		return nil, false, err
	}
	out = o.DeepCopyObject().(Object)
	out.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
	keepIdentity(out, old)
	if r.HasStatus {
		copyStatus(out, old)
	}
	r.Default(out)
	if !sameBody(out, old) {
		out.SetGeneration(old.GetGeneration() + 1)
	}
	if err := admit(r, out, old, list); err != nil {
		return nil, false, err
	}
	return out, !equality.Semantic.DeepEqual(out, old), nil
}

// UpdateStatus makes old with the status of o ready to be stored. Only kinds with
// a status subresource have one: others are a BadRequest.
func (a *Admission) UpdateStatus(o, old Object) (out Object, changed bool, err error) {
	r, err := a.checkUpdate(o, old)
	if err != nil {
		return nil, false, err
	}
	if !r.HasStatus {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("%s %q: the kind has no status", r.Kind, KeyOf(o)))
	}
	out = old.DeepCopyObject().(Object)
	copyStatus(out, o.DeepCopyObject().(Object))
	r.Default(out)
	// What is wrong with the rest was so before: the status is where to say it.
	errs := slices.DeleteFunc(r.Validate(out, old), func(e *field.Error) bool {
		return e.Field != "status" && !strings.HasPrefix(e.Field, "status.")
	})
	if len(errs) > 0 {
		return nil, false, invalid(r, out, errs)
	}
	return out, !equality.Semantic.DeepEqual(out, old), nil
}

func (a *Admission) checkUpdate(o, old Object) (*Resource, error) {
	r, err := LookupObject(o)
	if err != nil {
		return nil, err
	}
	switch rv := o.GetResourceVersion(); {
	case rv == "":
		return nil, apierrors.NewInvalid(r.GroupVersionKind().GroupKind(), o.GetName(), field.ErrorList{
			field.Required(field.NewPath("metadata", "resourceVersion"), "an update names the version that it changes: read the object first"),
		})
	case rv != old.GetResourceVersion():
		return nil, conflict(r, o, fmt.Errorf("it was changed since resourceVersion %s, to %s: read it again and repeat the change", rv, old.GetResourceVersion()))
	case o.GetUID() != "" && o.GetUID() != old.GetUID():
		return nil, conflict(r, o, fmt.Errorf("the object of uid %s is gone, another one (%s) has its name", o.GetUID(), old.GetUID()))
	}
	return r, nil
}

func conflict(r *Resource, o Object, err error) error {
	return apierrors.NewConflict(r.GroupResource(), o.GetName(), err)
}

// Check validates o, defaults filled in, alone and against the other objects that list
// gives; old is nil on create. It is for implementations whose server does all the rest of
// an Admission's work. The error is IsInvalid.
func Check(o, old Object, list Lister) error {
	r, err := LookupObject(o)
	if err != nil {
		return err
	}
	return admit(r, o, old, list)
}

// admit validates, alone and against other objects.
func admit(r *Resource, o, old Object, list Lister) error {
	errs := r.Validate(o, old)
	if len(errs) == 0 && list != nil {
		var err error
		if errs, err = validateAgainst(o, old, list); err != nil {
			return err
		}
	}
	if len(errs) > 0 {
		return invalid(r, o, errs)
	}
	return nil
}

func invalid(r *Resource, o Object, errs field.ErrorList) error {
	return apierrors.NewInvalid(r.GroupVersionKind().GroupKind(), brief(o.GetName(), maxQuoted), shorten(errs))
}

// What an error repeats of a value, says about it, in bytes, and how many it lists:
// people read it, and a write may hold a megabyte.
const (
	maxQuoted = 256
	maxDetail = 1024
	maxErrors = 32
)

func shorten(errs field.ErrorList) field.ErrorList {
	if more := len(errs) - maxErrors; more > 0 {
		errs = slices.Clone(errs[:maxErrors])
		errs[maxErrors-1].Detail += fmt.Sprintf(" (and %d further mistakes)", more)
	}
	for _, e := range errs {
		e.Field, e.Detail = brief(e.Field, maxQuoted), brief(e.Detail, maxDetail)
		switch v := e.BadValue.(type) {
		case nil, bool, int, int32, int64:
		case string:
			e.BadValue = brief(v, maxQuoted)
		default:
			if text := fmt.Sprint(v); len(text) > maxQuoted {
				e.BadValue = brief(text, maxQuoted)
			}
		}
	}
	return errs
}

func brief(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// validateAgainst finds collisions with other objects, where the kind has any.
func validateAgainst(o, old Object, list Lister) (field.ErrorList, error) {
	s, ok := o.(*v1alpha1.Subnet)
	if !ok {
		return nil, nil
	}
	var before *v1alpha1.Subnet
	if old != nil {
		before = old.(*v1alpha1.Subnet)
		if equality.Semantic.DeepEqual(s.Spec.CIDRs, before.Spec.CIDRs) {
			return nil, nil
		}
	}
	subnets, err := listOfType[*v1alpha1.Subnet](list, KindSubnet)
	if err != nil {
		return nil, err
	}
	nodes, err := listOfType[*v1alpha1.NodeNetwork](list, KindNodeNetwork)
	if err != nil {
		return nil, err
	}
	return v1alpha1.ValidateSubnetAgainst(s, before, subnets, nodes), nil
}

func listOfType[P Object](list Lister, kind Kind) ([]P, error) {
	objects, err := list(kind)
	if err != nil {
		return nil, err
	}
	out := make([]P, 0, len(objects))
	for _, o := range objects {
		if p, ok := o.(P); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

func keepIdentity(o, old Object) {
	o.SetUID(old.GetUID())
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetGeneration(old.GetGeneration())
	o.SetGenerateName(old.GetGenerateName())
	clearForeign(o)
}

// sameBody compares everything but apiVersion, kind and metadata. The status is
// equal already where it is a subresource.
func sameBody(a, b Object) bool {
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range x.NumField() {
		switch x.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta":
			continue
		}
		if !equality.Semantic.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			return false
		}
	}
	return true
}

// clearStatus and copyStatus are called for kinds with a status subresource only,
// whose structs all have a field Status.
func clearStatus(o Object) {
	reflect.ValueOf(o).Elem().FieldByName("Status").SetZero()
}

func copyStatus(to, from Object) {
	reflect.ValueOf(to).Elem().FieldByName("Status").Set(reflect.ValueOf(from).Elem().FieldByName("Status"))
}

func randomUID() types.UID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: the process would have ended
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16]))
}
