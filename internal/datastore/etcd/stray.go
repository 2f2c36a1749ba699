package etcd

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// objectOf is the object whose key in etcd this is; false if it is none's.
func (s *Store) objectOf(path string) (datastore.Kind, datastore.Key, bool) {
	for _, kind := range datastore.Kinds() {
		r, err := datastore.Lookup(kind)
		if err != nil || !strings.HasPrefix(path, s.kindPrefix(r)) {
			continue
		}
		key, err := s.keyOf(r, []byte(path))
		return kind, key, err == nil
	}
	return "", datastore.Key{}, false
}

// Strays lists the keys below the prefix that are no object's of a kind that this version knows,
// sorted. Nothing reads them, and no object's deletion deletes them.
func (s *Store) Strays(ctx context.Context) ([]string, error) {
	prefix := s.config.Prefix + "/"
	end := clientv3.GetPrefixRangeEnd(prefix)
	var out []string
	for from, more := prefix, true; more; {
		var resp *clientv3.GetResponse
		err := s.call(ctx, "list the keys below "+prefix, func(ctx context.Context) (err error) {
			resp, err = s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(10*pageSize))
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, kv := range resp.Kvs {
			if _, _, is := s.objectOf(string(kv.Key)); !is {
				out = append(out, string(kv.Key))
			}
		}
		if more = resp.More && len(resp.Kvs) > 0; more {
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
	return out, nil
}

// DeleteStray deletes a key below the prefix that is no object's: IsNotFound if it is not there,
// IsBadRequest if it is an object's, or elsewhere.
func (s *Store) DeleteStray(ctx context.Context, path string) error {
	if !strings.HasPrefix(path, s.config.Prefix+"/") {
		return apierrors.NewBadRequest(fmt.Sprintf("the key %q is not below %s/: it is not ours to delete", path, s.config.Prefix))
	}
	if kind, key, is := s.objectOf(path); is {
		return apierrors.NewBadRequest(fmt.Sprintf("the key %q is that of %s %s: delete the object", path, kind, key))
	}
	var resp *clientv3.DeleteResponse
	err := s.call(ctx, fmt.Sprintf("delete the key %q", path), func(ctx context.Context) (err error) {
		resp, err = s.client.Delete(ctx, path)
		return err
	})
	if err == nil && resp.Deleted == 0 {
		err = apierrors.NewNotFound(schema.GroupResource{Resource: "key"}, path)
	}
	return err
}
