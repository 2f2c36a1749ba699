package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// Pages implements datastore.Pager. The server streams the objects one by one if it can,
// which costs it and us the least memory; else they come in pages.
func (s *Store) Pages(ctx context.Context, kind datastore.Kind, page func(first bool, objects []datastore.Object)) (string, error) {
	r, err := datastore.Lookup(kind)
	if err != nil {
		return "", err
	}
	if !s.noStreaming.Load() {
		rv, err := s.streamPages(ctx, r, page)
		switch {
		case err == nil:
			return rv, nil
		case errors.Is(err, errAbsent):
			s.lacks(r)
			page(true, nil)
			return beforeAll, nil
		case !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err):
			return "", err
		}
		// Servers refuse what they cannot.
		s.noStreaming.Store(true)
	}
	return s.listPages(ctx, r, "", page)
}

// streamPages reads the objects as the first events of a watch, up to the bookmark that
// says that those were all. That is as consistent as a list.
func (s *Store) streamPages(ctx context.Context, r *datastore.Resource, page func(first bool, objects []datastore.Object)) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", s.translate(ctx, nil, r, "list "+r.Plural, err)
	}
	yes := true
	c, err := s.stream(ctx, r, &metav1.ListOptions{
		Watch: true, AllowWatchBookmarks: true, SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return "", err
	}
	defer c.close()
	silence := time.NewTimer(s.config.RequestTimeout)
	defer silence.Stop()
	first := true
	var objects []datastore.Object
	for {
		var e apiwatch.Event
		var ok bool
		select {
		case <-ctx.Done():
			return "", s.translate(ctx, c.session, r, "list "+r.Plural, ctx.Err())
		case <-s.ctx.Done():
			return "", datastore.ErrClosed()
		case <-silence.C:
			// An old server may not know the request and take it for an ordinary watch.
			s.noStreaming.Store(true)
			return "", apierrors.NewTimeoutError(fmt.Sprintf("kube: list %s at %s: nothing came for %s", r.Plural, c.session.server, s.config.RequestTimeout), 1)
		case e, ok = <-c.ResultChan():
		}
		if !ok {
			return "", s.translate(ctx, c.session, r, "list "+r.Plural, errors.New("the server ended the answer in the middle"))
		}
		silence.Reset(s.config.RequestTimeout)
		o, rv, err := s.initial(ctx, c, r, e)
		if err != nil {
			return "", err
		}
		if o != nil {
			objects = append(objects, o)
		}
		if rv != "" || len(objects) == pageSize {
			page(first, objects)
			first, objects = false, make([]datastore.Object, 0, pageSize)
		}
		if rv != "" {
			s.received(r.Kind, rv)
			return rv, nil
		}
	}
}

// initial reads one event of a streamed list: an object, or the resourceVersion at its end.
func (s *Store) initial(ctx context.Context, c *connection, r *datastore.Resource, e apiwatch.Event) (o datastore.Object, rv string, err error) {
	if e.Type == apiwatch.Error {
		return nil, "", s.translate(ctx, c.session, r, "list "+r.Plural, apierrors.FromObject(e.Object))
	}
	o, ok := e.Object.(datastore.Object)
	switch {
	case !ok:
		return nil, "", apierrors.NewInternalError(fmt.Errorf("kube: list %s: an event carries a %T", r.Plural, e.Object))
	case e.Type == apiwatch.Bookmark && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
		return nil, o.GetResourceVersion(), nil
	case e.Type == apiwatch.Bookmark:
		return nil, "", nil
	case e.Type == apiwatch.Added:
		return s.kept(r, o), "", nil
	}
	return nil, "", apierrors.NewInternalError(fmt.Errorf("kube: list %s: an event of type %q before the end of the list", r.Plural, e.Type))
}
