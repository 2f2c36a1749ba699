package kube

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// Store implements datastore.Store and datastore.Pager. Make it with New.
type Store struct {
	config Config
	access *access
	scheme *runtime.Scheme
	// ctx ends with Close.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	// noStreaming is set once the server has refused to stream a list.
	noStreaming atomic.Bool

	// mu also orders Watch against Close.
	mu     sync.Mutex
	closed bool
	// seen is the newest resourceVersion that was received of each kind, since the
	// connection was last lost.
	seen map[datastore.Kind]uint64
	// absent are the optional kinds of which it was logged that the server lacks them.
	absent map[datastore.Kind]bool
}

// versionOne is the version of ListOptions in a query.
var versionOne = schema.GroupVersion{Version: "v1"}

// Server is the URL of the API server, for messages.
func (s *Store) Server() string { return s.access.current().server }

// call bounds one request and translates its error.
func (s *Store) call(ctx context.Context, r *datastore.Resource, what string, f func(ctx context.Context, c *rest.RESTClient) error) error {
	x := s.access.current()
	bounded, cancel := context.WithTimeout(quiet(ctx), s.config.RequestTimeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	return s.translate(ctx, x, r, what, f(bounded, x.clients[r.GroupVersion]))
}

// quiet keeps client-go from logging: what it would say is in the errors.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// to prepares a request about one object, or with an empty name about its collection.
func to(q *rest.Request, r *datastore.Resource, key datastore.Key) *rest.Request {
	q = q.MaxRetries(maxRetries).NamespaceIfScoped(key.Namespace, key.Namespace != "").Resource(r.Plural)
	if key.Name != "" {
		q = q.Name(key.Name)
	}
	return q
}

func lookup(kind datastore.Kind, key datastore.Key) (*datastore.Resource, error) {
	r, err := datastore.Lookup(kind)
	if err != nil {
		return nil, err
	}
	return r, checkKey(r, key)
}

// checkKey refuses what cannot be part of a path.
func checkKey(r *datastore.Resource, key datastore.Key) error {
	if err := r.CheckKey(key); err != nil {
		return err
	}
	for _, part := range []string{key.Namespace, key.Name} {
		if errs := rest.IsValidPathSegmentName(part); part != "" && len(errs) > 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("%s %q: not a name: %s", r.Kind, key, errs[0]))
		}
	}
	return nil
}

// Get implements datastore.Store.
func (s *Store) Get(ctx context.Context, kind datastore.Kind, key datastore.Key) (datastore.Object, error) {
	r, err := lookup(kind, key)
	if err != nil {
		return nil, err
	}
	out := r.New()
	err = s.call(ctx, r, fmt.Sprintf("get %s %s", kind, key), func(ctx context.Context, c *rest.RESTClient) error {
		err := to(c.Get(), r, key).Do(ctx).Into(out)
		if optional(r) && unknownResource(err) {
			return apierrors.NewNotFound(r.GroupResource(), key.Name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return normalise(r, out), nil
}

// List implements datastore.Store.
func (s *Store) List(ctx context.Context, kind datastore.Kind) (datastore.List, error) {
	return s.list(ctx, kind, "")
}

// ListWhere implements datastore.Selective.
func (s *Store) ListWhere(ctx context.Context, kind datastore.Kind, field, value string) (datastore.List, error) {
	return s.list(ctx, kind, fields.OneTermEqualSelector(field, value).String())
}

// list reads the objects that a field selector wants.
func (s *Store) list(ctx context.Context, kind datastore.Kind, selector string) (list datastore.List, err error) {
	r, err := datastore.Lookup(kind)
	if err != nil {
		return datastore.List{}, err
	}
	list.ResourceVersion, err = s.listPages(ctx, r, selector, func(first bool, objects []datastore.Object) {
		if first {
			list.Items = nil
		}
		list.Items = append(list.Items, objects...)
	})
	if err != nil {
		return datastore.List{}, err
	}
	// The server sorts by the path in its own store, where "a-b/" comes before "a/".
	slices.SortFunc(list.Items, func(a, b datastore.Object) int {
		return datastore.CompareKeys(datastore.KeyOf(a), datastore.KeyOf(b))
	})
	return list, nil
}

// listPages reads at one resourceVersion; if the server forgets that meanwhile it begins
// anew, a few times.
func (s *Store) listPages(ctx context.Context, r *datastore.Resource, selector string, page func(first bool, objects []datastore.Object)) (rv string, err error) {
	for range 3 {
		rv, err = s.listOnce(ctx, r, selector, page)
		if !apierrors.IsResourceExpired(err) {
			break
		}
	}
	return rv, err
}

func (s *Store) listOnce(ctx context.Context, r *datastore.Resource, selector string, page func(first bool, objects []datastore.Object)) (string, error) {
	for next, first := "", true; ; first = false {
		out, err := s.scheme.New(listKind(r))
		if err != nil {
			return "", apierrors.NewInternalError(err)
		}
		missing := false
		err = s.call(ctx, r, "list "+r.Plural, func(ctx context.Context, c *rest.RESTClient) error {
			err := to(c.Get(), r, datastore.Key{}).
				SpecificallyVersionedParams(&metav1.ListOptions{Limit: pageSize, Continue: next, FieldSelector: selector}, metav1.ParameterCodec, versionOne).
				Do(ctx).Into(out)
			if missing = optional(r) && unknownResource(err); missing {
				return nil
			}
			return err
		})
		if err != nil {
			return "", err
		}
		if missing {
			s.lacks(r)
			page(true, nil)
			return beforeAll, nil
		}
		objects, err := s.items(r, out)
		if err != nil {
			return "", err
		}
		list, err := meta.ListAccessor(out)
		if err != nil {
			return "", apierrors.NewInternalError(err)
		}
		page(first, objects)
		if next = list.GetContinue(); next == "" {
			s.received(r.Kind, list.GetResourceVersion())
			return list.GetResourceVersion(), nil
		}
	}
}

// items takes the objects out of a list. Each gets memory of its own: one that is kept
// must not keep the page.
func (s *Store) items(r *datastore.Resource, list runtime.Object) ([]datastore.Object, error) {
	objects := make([]datastore.Object, 0, meta.LenList(list))
	err := meta.EachListItemWithAlloc(list, func(item runtime.Object) error {
		o, ok := item.(datastore.Object)
		if !ok {
			return fmt.Errorf("the list of %s holds a %T", r.Plural, item)
		}
		objects = append(objects, s.kept(r, o))
		return nil
	})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return objects, nil
}

// received notes a resourceVersion that the server has given.
func (s *Store) received(kind datastore.Kind, rv string) {
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[kind] = max(s.seen[kind], n)
}

// Delete implements datastore.Store.
func (s *Store) Delete(ctx context.Context, kind datastore.Kind, key datastore.Key, p datastore.Preconditions) error {
	r, err := lookup(kind, key)
	if err != nil {
		return err
	}
	options := &metav1.DeleteOptions{}
	if p != (datastore.Preconditions{}) {
		options.Preconditions = &metav1.Preconditions{}
		if p.UID != "" {
			options.Preconditions.UID = &p.UID
		}
		if p.ResourceVersion != "" {
			options.Preconditions.ResourceVersion = &p.ResourceVersion
		}
	}
	return s.call(ctx, r, fmt.Sprintf("delete %s %s", kind, key), func(ctx context.Context, c *rest.RESTClient) error {
		return to(c.Delete(), r, key).Body(options).Do(ctx).Error()
	})
}

// write sends an object, or a patch of it, and returns what the server made of it.
func (s *Store) write(ctx context.Context, r *datastore.Resource, what string, request func(*rest.RESTClient) *rest.Request) (datastore.Object, error) {
	out := r.New()
	err := s.call(ctx, r, what, func(ctx context.Context, c *rest.RESTClient) error {
		return request(c).Do(ctx).Into(out)
	})
	if err != nil {
		return nil, err
	}
	return normalise(r, out), nil
}

// Create implements datastore.Store.
func (s *Store) Create(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	r, err := datastore.LookupObject(o)
	if err != nil {
		return nil, err
	}
	out, err := s.admitNew(ctx, r, o)
	if err != nil {
		return nil, err
	}
	return s.write(ctx, r, fmt.Sprintf("create %s %s", r.Kind, datastore.KeyOf(o)), func(c *rest.RESTClient) *rest.Request {
		return to(c.Post(), r, datastore.Key{Namespace: out.GetNamespace()}).Body(out)
	})
}

// Update implements datastore.Store.
func (s *Store) Update(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	r, err := datastore.LookupObject(o)
	if err != nil {
		return nil, err
	}
	out, err := s.admitChange(ctx, r, o)
	if err != nil {
		return nil, err
	}
	key := datastore.KeyOf(o)
	return s.write(ctx, r, fmt.Sprintf("update %s %s", r.Kind, key), func(c *rest.RESTClient) *rest.Request {
		return to(c.Put(), r, key).Body(out)
	})
}

// UpdateStatus implements datastore.Store.
func (s *Store) UpdateStatus(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	r, err := datastore.LookupObject(o)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	patch, err := statusPatch(r, o)
	if err != nil {
		return nil, err
	}
	key := datastore.KeyOf(o)
	return s.write(ctx, r, fmt.Sprintf("update the status of %s %s", r.Kind, key), func(c *rest.RESTClient) *rest.Request {
		return to(c.Patch(types.JSONPatchType), r, key).SubResource("status").Body(patch)
	})
}

// Close implements datastore.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
	s.access.close()
	return nil
}
