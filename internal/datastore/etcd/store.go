package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// Store implements datastore.Store. Make it with New.
type Store struct {
	config Config
	client *clientv3.Client
	// ctx ends with Close.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	health *health
	// refusal is the reason that TLS connections fail, if they do.
	refusal *refusal
	// progress is set once every server is known to answer progress requests
	// truthfully.
	progress atomic.Bool
	written  written
	// mu orders Watch against Close.
	mu     sync.Mutex
	closed bool
}

// Ping reads from the cluster as any call does: nil if it answers.
func (s *Store) Ping(ctx context.Context) error {
	_, err := s.revision(ctx)
	return err
}

// revision is the cluster's newest revision.
func (s *Store) revision(ctx context.Context) (int64, error) {
	known := s.health.known()
	var resp *clientv3.GetResponse
	err := s.call(ctx, "read the revision", func(ctx context.Context) (err error) {
		resp, err = s.client.Get(ctx, s.config.Prefix+"/", clientv3.WithKeysOnly())
		return err
	})
	if err != nil {
		return 0, err
	}
	s.health.answered(resp.Header.Revision, known)
	return resp.Header.Revision, nil
}

// call bounds one request and translates its error.
func (s *Store) call(ctx context.Context, what string, f func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, s.config.RequestTimeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	return s.translate(ctx, what, f(bounded))
}

func (s *Store) kindPrefix(r *datastore.Resource) string {
	return s.config.Prefix + "/" + r.Plural + "/"
}

func (s *Store) path(r *datastore.Resource, key datastore.Key) string {
	return s.kindPrefix(r) + key.String()
}

func (s *Store) lookup(kind datastore.Kind, key datastore.Key) (*datastore.Resource, string, error) {
	r, err := datastore.Lookup(kind)
	if err != nil {
		return nil, "", err
	}
	return r, s.path(r, key), r.CheckKey(key)
}

// keyOf is the object's key in a path of etcd.
func (s *Store) keyOf(r *datastore.Resource, path []byte) (datastore.Key, error) {
	rest := strings.TrimPrefix(string(path), s.kindPrefix(r))
	key := datastore.Key{Name: rest}
	if r.Namespaced {
		key.Namespace, key.Name, _ = strings.Cut(rest, "/")
	}
	return key, r.CheckKey(key)
}

// decode reads a stored value and holds it against its key.
func (s *Store) decode(r *datastore.Resource, kv *mvccpb.KeyValue, revision int64) (datastore.Object, error) {
	key, err := s.keyOf(r, kv.Key)
	if err != nil {
		return nil, err
	}
	return datastore.Decode(r.Kind, key, kv.Value, strconv.FormatInt(revision, 10))
}

// read is decode for those who follow the kind: what cannot be read is told, and what
// stands for it is returned, or nil.
func (s *Store) read(r *datastore.Resource, kv *mvccpb.KeyValue, revision int64) datastore.Object {
	o, err := s.decode(r, kv, revision)
	if err == nil {
		return o
	}
	s.config.OnCorrupt(string(kv.Key), err)
	key, bad := s.keyOf(r, kv.Key)
	if bad != nil {
		return nil
	}
	return datastore.StandIn(r.Kind, key, kv.Value, strconv.FormatInt(revision, 10), err)
}

func (s *Store) errCorrupt(path string, err error) error {
	s.config.OnCorrupt(path, err)
	return apierrors.NewInternalError(fmt.Errorf("the value at %s in etcd cannot be read (%w): delete the object and create it anew", path, err))
}

// Get implements datastore.Store.
func (s *Store) Get(ctx context.Context, kind datastore.Kind, key datastore.Key) (datastore.Object, error) {
	r, path, err := s.lookup(kind, key)
	if err != nil {
		return nil, err
	}
	kv, err := s.get(ctx, r, key, path)
	if err != nil {
		return nil, err
	}
	o, err := s.decode(r, kv, kv.ModRevision)
	if err != nil {
		return nil, s.errCorrupt(path, err)
	}
	return o, nil
}

func (s *Store) get(ctx context.Context, r *datastore.Resource, key datastore.Key, path string) (*mvccpb.KeyValue, error) {
	var resp *clientv3.GetResponse
	err := s.call(ctx, fmt.Sprintf("get %s %s", r.Kind, key), func(ctx context.Context) (err error) {
		resp, err = s.client.Get(ctx, path)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(resp.Kvs) == 0 {
		return nil, apierrors.NewNotFound(r.GroupResource(), key.Name)
	}
	return resp.Kvs[0], nil
}

// List implements datastore.Store.
func (s *Store) List(ctx context.Context, kind datastore.Kind) (list datastore.List, err error) {
	list.ResourceVersion, err = s.Pages(ctx, kind, func(first bool, objects []datastore.Object) {
		if first {
			list.Items = nil
		}
		list.Items = append(list.Items, objects...)
	})
	if err != nil {
		return datastore.List{}, err
	}
	// etcd sorts by the whole path, where "a-b/" comes before "a/".
	slices.SortFunc(list.Items, func(a, b datastore.Object) int {
		return datastore.CompareKeys(datastore.KeyOf(a), datastore.KeyOf(b))
	})
	return list, nil
}

// Pages implements datastore.Pager. It reads at one revision; if that is compacted
// meanwhile it begins anew, a few times.
func (s *Store) Pages(ctx context.Context, kind datastore.Kind, page func(first bool, objects []datastore.Object)) (string, error) {
	r, err := datastore.Lookup(kind)
	if err != nil {
		return "", err
	}
	for range 3 {
		var revision int64
		if revision, err = s.pages(ctx, r, page); err == nil {
			return strconv.FormatInt(revision, 10), nil
		}
		if !apierrors.IsResourceExpired(err) {
			break
		}
	}
	return "", err
}

func (s *Store) pages(ctx context.Context, r *datastore.Resource, page func(first bool, objects []datastore.Object)) (revision int64, err error) {
	prefix := s.kindPrefix(r)
	end := clientv3.GetPrefixRangeEnd(prefix)
	for from, more := prefix, true; more; {
		var resp *clientv3.GetResponse
		err := s.call(ctx, fmt.Sprintf("list %s", r.Plural), func(ctx context.Context) (err error) {
			resp, err = s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
			return err
		})
		if err != nil {
			return 0, err
		}
		first := revision == 0
		if first {
			revision = resp.Header.Revision
			s.health.saw(revision)
		}
		objects := make([]datastore.Object, 0, len(resp.Kvs))
		for _, kv := range resp.Kvs {
			if o := s.read(r, kv, kv.ModRevision); o != nil {
				objects = append(objects, o)
			}
		}
		page(first, objects)
		more = resp.More && len(resp.Kvs) > 0
		if more {
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
	return revision, nil
}

// Create implements datastore.Store.
func (s *Store) Create(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	admitted, err := s.config.Admission.Create(o, s.lister(ctx))
	if err != nil {
		return nil, err
	}
	stored, ok, err := s.put(ctx, "create", admitted, 0)
	if err != nil || ok {
		return stored, err
	}
	r, err := datastore.LookupObject(admitted)
	if err != nil {
		return nil, err
	}
	if home, needed := datastore.Home(admitted); needed {
		n, path, err := s.lookup(datastore.KindNamespace, home)
		if err == nil {
			_, err = s.get(ctx, n, home, path)
		}
		if err != nil { // Above all that it is not found.
			return nil, err
		}
	}
	return nil, apierrors.NewAlreadyExists(r.GroupResource(), admitted.GetName())
}

func (s *Store) lister(ctx context.Context) datastore.Lister {
	return func(kind datastore.Kind) ([]datastore.Object, error) {
		list, err := s.List(ctx, kind)
		return list.Items, err
	}
}

// home is the path of the Namespace that must exist for an object to be created; empty if
// none must.
func (s *Store) home(o datastore.Object) (string, error) {
	key, needed := datastore.Home(o)
	if !needed {
		return "", nil
	}
	_, path, err := s.lookup(datastore.KindNamespace, key)
	return path, err
}

// put writes an object if its key's last change is of the given revision, 0 for a
// key that does not exist, and its namespace does. ok is false if it is not.
func (s *Store) put(ctx context.Context, verb string, o datastore.Object, revision int64) (stored datastore.Object, ok bool, err error) {
	r, err := datastore.LookupObject(o)
	if err != nil {
		return nil, false, err
	}
	key := datastore.KeyOf(o)
	raw, err := datastore.Encode(o)
	if err != nil {
		return nil, false, err
	}
	path := s.path(r, key)
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(path), "=", revision)}
	if revision == 0 {
		home, err := s.home(o)
		if err != nil {
			return nil, false, err
		}
		if home != "" {
			conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(home), ">", 0))
		}
	}
	var resp *clientv3.TxnResponse
	err = s.call(ctx, fmt.Sprintf("%s %s %s", verb, r.Kind, key), func(ctx context.Context) (err error) {
		resp, err = s.client.Txn(ctx).
			If(conditions...).
			Then(clientv3.OpPut(path, string(raw))).
			Commit()
		return err
	})
	if err != nil || !resp.Succeeded {
		return nil, false, err
	}
	s.health.saw(resp.Header.Revision)
	stored, err = datastore.Decode(r.Kind, key, raw, strconv.FormatInt(resp.Header.Revision, 10))
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	return stored, true, nil
}

// Update implements datastore.Store.
func (s *Store) Update(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	return s.update(ctx, o, func(o, old datastore.Object) (datastore.Object, bool, error) {
		return s.config.Admission.Update(o, old, s.lister(ctx))
	})
}

// UpdateStatus implements datastore.Store.
func (s *Store) UpdateStatus(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	return s.update(ctx, o, s.config.Admission.UpdateStatus)
}

type admit func(o, old datastore.Object) (out datastore.Object, changed bool, err error)

func (s *Store) update(ctx context.Context, o datastore.Object, admit admit) (datastore.Object, error) {
	r, err := datastore.LookupObject(o)
	if err != nil {
		return nil, err
	}
	key := datastore.KeyOf(o)
	path := s.path(r, key)
	// What is refused, or changes nothing, may be so because what we remember is old.
	if old := s.written.take(path, o.GetResourceVersion()); old != nil {
		if admitted, changed, err := admit(o, old); err == nil && changed {
			if stored, ok, err := s.replace(ctx, path, admitted, old); err != nil || ok {
				return stored, err
			}
		}
	}
	old, err := s.Get(ctx, r.Kind, key)
	if err != nil {
		return nil, err
	}
	admitted, changed, err := admit(o, old)
	if err != nil {
		return nil, err
	}
	if !changed {
		return old, nil
	}
	stored, ok, err := s.replace(ctx, path, admitted, old)
	if err != nil || ok {
		return stored, err
	}
	return nil, apierrors.NewConflict(r.GroupResource(), key.Name, errors.New("it was changed or deleted at the same moment: read it again and repeat the change"))
}

// replace writes an object if the old one is still there; ok is false if it is not.
func (s *Store) replace(ctx context.Context, path string, o, old datastore.Object) (stored datastore.Object, ok bool, err error) {
	revision, err := strconv.ParseInt(old.GetResourceVersion(), 10, 64)
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	stored, ok, err = s.put(ctx, "update", o, revision)
	if err == nil && ok {
		s.written.keep(path, stored)
	}
	return stored, ok, err
}

// Delete implements datastore.Store. An object that cannot be read can be
// deleted, but not with preconditions on what it says.
func (s *Store) Delete(ctx context.Context, kind datastore.Kind, key datastore.Key, p datastore.Preconditions) error {
	r, path, err := s.lookup(kind, key)
	if err != nil {
		return err
	}
	for {
		kv, err := s.get(ctx, r, key, path)
		if err != nil {
			return err
		}
		if p != (datastore.Preconditions{}) {
			o, err := s.decode(r, kv, kv.ModRevision)
			if err != nil {
				return s.errCorrupt(path, err)
			}
			if err := p.Check(r, o); err != nil {
				return err
			}
		}
		var resp *clientv3.TxnResponse
		err = s.call(ctx, fmt.Sprintf("delete %s %s", kind, key), func(ctx context.Context) (err error) {
			resp, err = s.client.Txn(ctx).
				If(clientv3.Compare(clientv3.ModRevision(path), "=", kv.ModRevision)).
				Then(clientv3.OpDelete(path)).
				Commit()
			return err
		})
		if err != nil || resp.Succeeded {
			return err
		}
		// Changed in between: judge the preconditions on what is there now. Every
		// round means that somebody else made progress, and ctx bounds them.
	}
}

// Close implements datastore.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd: close: %w", err)
	}
	return nil
}
