package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

const (
	// buffered events wait for a slow consumer; beyond them the connection waits, and if
	// the server has no patience with that it ends the watch, which is then resumed.
	buffered = 1024
	// shortest is the life of a watch that may be resumed at once though it brought nothing.
	shortest = time.Second
)

// Watch implements datastore.Store. The server must answer for it to begin.
func (s *Store) Watch(ctx context.Context, kind datastore.Kind, resourceVersion string) (datastore.Watcher, error) {
	r, err := datastore.Lookup(kind)
	if err != nil {
		return nil, err
	}
	from, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil || from == 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("watch %s: resourceVersion %q is not one that a List or an event carried", r.Plural, resourceVersion))
	}
	w := &watch{store: s, resource: r, position: from}
	run := w.run
	if w.first, err = w.open(ctx); errors.Is(err, errAbsent) {
		run = func(ctx context.Context, _ func(datastore.Event) error) error { return s.awaitKind(ctx, r) }
	} else if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		w.first.close()
		return nil, datastore.ErrClosed()
	}
	stream := datastore.NewStream(ctx, s.ctx.Done(), run)
	s.wg.Go(func() { <-stream.Done() })
	return stream, nil
}

// watch follows one kind. One goroutine receives, another delivers.
type watch struct {
	store    *Store
	resource *datastore.Resource
	// position is the resourceVersion up to which everything was received.
	position uint64
	// first is the connection that the watch begins with.
	first *connection
}

// run delivers what receive gets until either ends.
func (w *watch) run(ctx context.Context, send func(datastore.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	events := make(chan datastore.Event, buffered)
	var ending error
	var receiver sync.WaitGroup
	receiver.Go(func() {
		defer close(events)
		ending = w.receive(ctx, w.first, events)
	})
	defer receiver.Wait()
	defer cancel()
	for e := range events {
		if err := send(e); err != nil {
			return err
		}
	}
	return ending
}

// connection is one watch request.
type connection struct {
	apiwatch.Interface
	session *session
	// until is when the server ends the watch in order.
	opened, until time.Time
	ctx           context.Context
	cancel        func()
	// ahead gets an error if the server's data is older than the position.
	ahead chan error
	done  sync.WaitGroup
}

// close ends the request. A nil connection is closed.
func (c *connection) close() {
	if c == nil {
		return
	}
	c.cancel()
	c.Stop()
	c.done.Wait()
}

// open asks the server for what comes after the position.
func (w *watch) open(ctx context.Context) (*connection, error) {
	s, r := w.store, w.resource
	if err := ctx.Err(); err != nil {
		return nil, s.translate(ctx, nil, r, "watch "+r.Plural, err)
	}
	timeout := int64(s.config.WatchTimeout.Seconds() * (1 + rand.Float64()))
	c, err := s.stream(ctx, r, &metav1.ListOptions{
		Watch: true, AllowWatchBookmarks: true, ResourceVersion: strconv.FormatUint(w.position, 10), TimeoutSeconds: &timeout,
	})
	if err != nil {
		if !apierrors.IsResourceExpired(err) && !errors.Is(err, errAbsent) {
			s.forgetSeen(r.Kind)
		}
		return nil, err
	}
	c.until = c.opened.Add(time.Duration(timeout) * time.Second)
	if !s.hasSeen(r.Kind, w.position) {
		at := w.position
		c.done.Go(func() { c.ahead <- w.checkAhead(c.ctx, at) })
	}
	return c, nil
}

// stream begins a watch request for a kind: errAbsent if it is optional and not there.
func (s *Store) stream(ctx context.Context, r *datastore.Resource, options *metav1.ListOptions) (*connection, error) {
	return s.streamTo(ctx, r, "watch "+r.Plural, func(x *session) *rest.Request {
		return to(x.clients[r.GroupVersion].Get(), r, datastore.Key{}).
			SpecificallyVersionedParams(options, metav1.ParameterCodec, versionOne)
	})
}

// streamTo begins a watch request. Its context ends with the connection.
func (s *Store) streamTo(ctx context.Context, r *datastore.Resource, what string, request func(*session) *rest.Request) (*connection, error) {
	x := s.access.current()
	inner, cancel := context.WithCancel(quiet(ctx))
	stop := context.AfterFunc(s.ctx, cancel)
	c := &connection{session: x, opened: time.Now(), ctx: inner, ahead: make(chan error, 1), cancel: func() {
		stop()
		cancel()
	}}
	// Only the answer's beginning is bounded.
	limit := time.AfterFunc(s.config.RequestTimeout, cancel)
	var err error
	// A server that is starting asks to come back after five seconds. Who watches has a
	// back-off that is shorter and has jitter.
	c.Interface, err = request(x).MaxRetries(0).Watch(inner)
	limit.Stop()
	if err == nil {
		return c, nil
	}
	c.cancel()
	if r != nil && optional(r) && unknownResource(err) {
		return nil, errAbsent
	}
	return nil, s.translate(ctx, x, r, what, err)
}

// hasSeen tells whether the server is known to have come to a resourceVersion.
func (s *Store) hasSeen(kind datastore.Kind, rv uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return rv <= s.seen[kind]
}

func (s *Store) forgetSeen(kind datastore.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, kind)
}

// checkAhead asks whether the server has come to a resourceVersion. A watch from one to
// come is silent until the server gets there: after a restore from a backup, for long.
func (w *watch) checkAhead(ctx context.Context, at uint64) error {
	s, r := w.store, w.resource
	rv := strconv.FormatUint(at, 10)
	list, err := s.scheme.New(listKind(r))
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	ahead := false
	err = s.call(ctx, r, "list "+r.Plural, func(ctx context.Context, c *rest.RESTClient) error {
		// The server waits for a few seconds before it says no, and asks to try again.
		err := to(c.Get(), r, datastore.Key{}).MaxRetries(0).
			SpecificallyVersionedParams(&metav1.ListOptions{Limit: 1, ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}, metav1.ParameterCodec, versionOne).
			Do(ctx).Into(list)
		ahead = tooLarge(err)
		return err
	})
	switch {
	case ahead:
		return apierrors.NewResourceExpired(fmt.Sprintf("kube: watch %s: resourceVersion %s is newer than the API server's data: it is of another cluster, or that was restored", r.Plural, rv))
	case err == nil:
		s.received(r.Kind, rv)
	}
	return nil // what else is wrong the watch finds by itself
}

// receive passes events on until the watch cannot go on, and says why.
func (w *watch) receive(ctx context.Context, c *connection, events chan<- datastore.Event) error {
	for {
		before := w.position
		err := w.read(ctx, c, events)
		c.close()
		if err != nil {
			return err
		}
		if time.Now().Before(c.until) {
			// The server went away, whatever the reason: what comes back may be another.
			w.store.forgetSeen(w.resource.Kind)
		}
		if w.position == before && time.Since(c.opened) < shortest {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("kube: watch %s at %s: the server ended it at once", w.resource.Plural, c.session.server))
		}
		// The server ends watches in order, and every now and then: go on where it was.
		if c, err = w.open(ctx); errors.Is(err, errAbsent) {
			return w.store.awaitKind(ctx, w.resource)
		} else if err != nil {
			return err
		}
	}
}

// read passes on the events of one connection; nil if the server ended it in order.
func (w *watch) read(ctx context.Context, c *connection, events chan<- datastore.Event) error {
	s, r := w.store, w.resource
	for {
		var e apiwatch.Event
		var ok bool
		select {
		case <-ctx.Done():
			return s.translate(ctx, c.session, r, "watch "+r.Plural, ctx.Err())
		case <-s.ctx.Done():
			return datastore.ErrClosed()
		case err := <-c.ahead:
			if err != nil {
				return err
			}
			continue
		case e, ok = <-c.ResultChan():
		}
		if !ok {
			return nil
		}
		if e.Type == apiwatch.Error {
			err := apierrors.FromObject(e.Object)
			if lost(err) {
				s.forgetSeen(r.Kind)
			}
			return s.translate(ctx, c.session, r, "watch "+r.Plural, err)
		}
		out, err := w.event(e)
		if err != nil {
			return err
		}
		select {
		case events <- out:
		case <-ctx.Done():
			return s.translate(ctx, c.session, r, "watch "+r.Plural, ctx.Err())
		}
	}
}

// event translates an event and moves the position.
func (w *watch) event(e apiwatch.Event) (datastore.Event, error) {
	s, r := w.store, w.resource
	o, ok := e.Object.(datastore.Object)
	if !ok {
		return datastore.Event{}, apierrors.NewInternalError(fmt.Errorf("kube: watch %s: an event carries a %T", r.Plural, e.Object))
	}
	rv, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return datastore.Event{}, apierrors.NewInternalError(fmt.Errorf("kube: watch %s: resourceVersion %q of an event is no number", r.Plural, o.GetResourceVersion()))
	}
	if rv < w.position {
		return datastore.Event{}, apierrors.NewResourceExpired(fmt.Sprintf("kube: watch %s: the server went back from resourceVersion %d to %d: its data was replaced", r.Plural, w.position, rv))
	}
	w.position = rv
	s.received(r.Kind, o.GetResourceVersion())
	out := datastore.Event{ResourceVersion: o.GetResourceVersion()}
	switch e.Type {
	case apiwatch.Bookmark:
		out.Type = datastore.Bookmark
		return out, nil
	case apiwatch.Added:
		out.Type = datastore.Added
	case apiwatch.Modified:
		out.Type = datastore.Modified
	case apiwatch.Deleted:
		out.Type = datastore.Deleted
	default:
		return datastore.Event{}, apierrors.NewInternalError(fmt.Errorf("kube: watch %s: unknown type of event %q", r.Plural, e.Type))
	}
	out.Object = s.kept(r, o)
	return out, nil
}
