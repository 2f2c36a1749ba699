package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

const (
	// beforeAll is the resourceVersion of the list of a kind that is not installed.
	beforeAll = "1"
	// settling is how often and how many times the server is asked for a kind after a
	// change of its definition: it serves the kind a little later.
	settling      = time.Second
	settlingTimes = 10
	// unwatched is how often it is asked if we may not watch definitions.
	unwatched = time.Minute
)

// lacks logs once that the server lacks an optional kind.
func (s *Store) lacks(r *datastore.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.absent[r.Kind] {
		return
	}
	s.absent[r.Kind] = true
	s.config.Logger.Warn("the cluster does not have this kind: none exist, until its CustomResourceDefinition is installed",
		"kind", string(r.Kind), "definition", r.GroupResource().String(), "version", r.GroupVersion.Version)
}

// appeared is the end of a watch that waited for its kind.
func (s *Store) appeared(r *datastore.Resource) error {
	s.mu.Lock()
	delete(s.absent, r.Kind)
	s.mu.Unlock()
	s.config.Logger.Info("the cluster has this kind now", "kind", string(r.Kind))
	return apierrors.NewResourceExpired(fmt.Sprintf("kube: watch %s: the kind was installed meanwhile: list again", r.Plural))
}

// awaitKind waits until the server serves the kind, and returns IsResourceExpired then. It
// follows the kind's definition; where that is not allowed it asks once a minute.
func (s *Store) awaitKind(ctx context.Context, r *datastore.Resource) error {
	s.lacks(r)
	for {
		served, err := s.served(ctx, r)
		if err != nil {
			return err
		}
		if served {
			return s.appeared(r)
		}
		err = s.followDefinition(ctx, r)
		if apierrors.IsForbidden(err) {
			err = s.pause(ctx, unwatched/2+rand.N(unwatched))
		}
		if err != nil {
			return err
		}
	}
}

// served asks for the kind.
func (s *Store) served(ctx context.Context, r *datastore.Resource) (bool, error) {
	one := int64(1)
	c, err := s.stream(ctx, r, &metav1.ListOptions{Watch: true, ResourceVersion: "0", TimeoutSeconds: &one})
	switch {
	case errors.Is(err, errAbsent):
		return false, nil
	case err != nil:
		return false, err
	}
	c.close()
	return true, nil
}

// followDefinition returns nil when it may be worth while to ask for the kind again.
func (s *Store) followDefinition(ctx context.Context, r *datastore.Resource) error {
	name := r.GroupResource().String()
	timeout := int64(s.config.WatchTimeout.Seconds() * (1 + rand.Float64()))
	c, err := s.streamDefinitions(ctx, &metav1.ListOptions{
		Watch: true, AllowWatchBookmarks: true, FieldSelector: "metadata.name=" + name, ResourceVersion: "0", TimeoutSeconds: &timeout,
	})
	if err != nil {
		return err
	}
	defer c.close()
	// Never fires until there was a change.
	settle := time.NewTimer(time.Hour)
	settle.Stop()
	defer settle.Stop()
	for times := 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return datastore.ErrClosed()
		case e, ok := <-c.ResultChan():
			switch {
			case !ok:
				return s.pause(ctx, settling)
			case e.Type == apiwatch.Error:
				return s.translate(ctx, c.session, nil, "watch the definition "+name, apierrors.FromObject(e.Object))
			case e.Type != apiwatch.Added && e.Type != apiwatch.Modified:
				continue
			}
			times = settlingTimes
			settle.Reset(0)
		case <-settle.C:
			served, err := s.served(ctx, r)
			if served || err != nil && !apierrors.IsServiceUnavailable(err) {
				return err
			}
			// Not yet, or its storage is being made.
			if times--; times > 0 {
				settle.Reset(settling)
			}
		}
	}
}

// streamDefinitions watches CustomResourceDefinitions, of which it gets the metadata alone.
func (s *Store) streamDefinitions(ctx context.Context, options *metav1.ListOptions) (*connection, error) {
	return s.streamTo(ctx, nil, "watch definitions", func(x *session) *rest.Request {
		return x.clients[definitions].Get().Resource("customresourcedefinitions").SetHeader("Accept", onlyMetadata).
			SpecificallyVersionedParams(options, metav1.ParameterCodec, versionOne)
	})
}

// pause waits. It fails if ctx ends or the Store is closed.
func (s *Store) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return datastore.ErrClosed()
	}
}
