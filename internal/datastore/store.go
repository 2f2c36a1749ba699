package datastore

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Object is a typed Kubernetes object, as in client-go: a pointer to a struct
// of k8s.io/api or of our own API group. Objects handed out by a Store belong to
// the caller and may be changed.
type Object interface {
	metav1.Object
	runtime.Object
}

// Kind names a resource of the registry: "Pod", "Subnet". Kinds are unique
// across the groups that Fairlead reads.
type Kind string

// Key is an object's identity inside its kind. Namespace is empty for
// cluster-scoped kinds.
type Key struct {
	Namespace string
	Name      string
}

// String is "namespace/name", or "name".
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// KeyOf is the key of an object.
func KeyOf(o Object) Key { return Key{Namespace: o.GetNamespace(), Name: o.GetName()} }

// List is a consistent read of all objects of one kind, sorted by key.
type List struct {
	// ResourceVersion that a Watch continues from without a gap.
	ResourceVersion string
	Items           []Object
}

// EventType says what happened to an object.
type EventType string

// The types of events.
const (
	// Added and Modified carry the object as it is after the event. A consumer
	// treats both alike: "the object is now this".
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	// Deleted carries the object's last state, at least its metadata.
	Deleted EventType = "DELETED"
	// Bookmark carries no object: everything up to ResourceVersion was sent.
	Bookmark EventType = "BOOKMARK"
)

// Event is one change, in the order of the datastore.
type Event struct {
	Type   EventType
	Object Object
	// ResourceVersion after the event: a Watch may be resumed from here.
	ResourceVersion string
}

// Watcher delivers events in order until its context ends or it fails.
type Watcher interface {
	// Events is closed when the watch ends.
	Events() <-chan Event
	// Err tells why, once Events is closed: nil if the context or Stop ended it;
	// IsResourceExpired when the history is gone and a new List is needed;
	// another error when the connection was lost (resume from the last
	// ResourceVersion). A server that has frozen or lost its quorum ends the
	// watch with an error within ten seconds; it never stays silently open.
	Err() error
	// Stop ends the watch and waits until its goroutine is gone.
	Stop()
}

// Preconditions restrict a Delete. Empty fields restrict nothing.
type Preconditions struct {
	UID             types.UID
	ResourceVersion string
}

// Store is the datastore. Every call ends when its context does; an unreachable
// server is an error that apierrors.IsServiceUnavailable or IsTimeout reports.
// Implementations are safe for concurrent use.
type Store interface {
	// Get reads one object. IsNotFound if there is none.
	Get(ctx context.Context, kind Kind, key Key) (Object, error)
	// List reads all objects of a kind, in all namespaces.
	List(ctx context.Context, kind Kind) (List, error)
	// Watch delivers every event after resourceVersion, none twice, none lost. A
	// resourceVersion that is older than the history: IsResourceExpired, at once
	// or from the Watcher.
	Watch(ctx context.Context, kind Kind, resourceVersion string) (Watcher, error)
	// Create stores a new object and returns it as stored. IsAlreadyExists,
	// IsInvalid (with the path of every bad field). A status that the caller set
	// is dropped for kinds with a status subresource.
	Create(ctx context.Context, o Object) (Object, error)
	// Update replaces an object if its resourceVersion is the current one:
	// IsConflict if not, IsInvalid for an empty one. The status stays as it was for
	// kinds that have one. An update that changes nothing writes nothing.
	Update(ctx context.Context, o Object) (Object, error)
	// UpdateStatus replaces the status alone, under the same condition.
	UpdateStatus(ctx context.Context, o Object) (Object, error)
	// Delete removes an object: IsNotFound, or IsConflict if a precondition fails.
	Delete(ctx context.Context, kind Kind, key Key, p Preconditions) error
	// Close ends every watch and releases the connection.
	Close() error
}

// Pager is a Store that can list a kind without holding all its objects at once: a
// decoded Pod is ten times what most readers keep of it.
type Pager interface {
	// Pages calls page with every object of a kind, some at a time and in any order, as
	// they were at the resourceVersion that it returns. first says that the reading has
	// begun, or has begun anew: what was given before does not count.
	Pages(ctx context.Context, kind Kind, page func(first bool, objects []Object)) (resourceVersion string, err error)
}

// Selective is a Store that can list the few objects of a kind of which one field has a
// value, without reading the others. Fields are those of the API's field selectors, such
// as "source" of Events.
type Selective interface {
	ListWhere(ctx context.Context, kind Kind, field, value string) (List, error)
}

// Check compares the preconditions with the stored object: IsConflict if they fail.
func (p Preconditions) Check(r *Resource, stored Object) error {
	if p.UID != "" && p.UID != stored.GetUID() {
		return conflict(r, stored, fmt.Errorf("precondition failed: uid is %s, not %s", stored.GetUID(), p.UID))
	}
	if p.ResourceVersion != "" && p.ResourceVersion != stored.GetResourceVersion() {
		return conflict(r, stored, fmt.Errorf("precondition failed: resourceVersion is %s, not %s", stored.GetResourceVersion(), p.ResourceVersion))
	}
	return nil
}
