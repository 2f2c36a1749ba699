package etcd

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// maxQueue bounds the events that wait for a slow consumer. Beyond it the watch
// ends after what it holds was delivered, and the consumer resumes.
const maxQueue = 100_000

// Watch implements datastore.Store. The cluster must answer for it to begin.
func (s *Store) Watch(ctx context.Context, kind datastore.Kind, resourceVersion string) (datastore.Watcher, error) {
	r, err := datastore.Lookup(kind)
	if err != nil {
		return nil, err
	}
	from, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil || from <= 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("watch %s: resourceVersion %q is not one that a List or an event carried", r.Plural, resourceVersion))
	}
	newest, err := s.revision(ctx)
	if err != nil {
		return nil, err
	}
	if from > newest {
		// etcd would wait until it gets there, in silence.
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("watch %s: resourceVersion %d is newer than etcd's %d: it is of another datastore, or that was reset", r.Plural, from, newest))
	}
	w := &watch{store: s, resource: r, position: from, queue: newQueue()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, datastore.ErrClosed()
	}
	stream := datastore.NewStream(ctx, s.ctx.Done(), w.run)
	s.wg.Go(func() { <-stream.Done() })
	return stream, nil
}

type watch struct {
	store    *Store
	resource *datastore.Resource
	// position is the revision up to which everything was received.
	position int64
	queue    *queue
}

// run receives in one goroutine and delivers in another, so that a consumer that
// does not read keeps neither the server nor the watch over its health waiting.
func (w *watch) run(ctx context.Context, send func(datastore.Event) error) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	var receiver sync.WaitGroup
	receiver.Go(func() { w.queue.close(w.receive(ctx)) })
	err := w.deliver(ctx, send)
	cancel()
	receiver.Wait()
	return err
}

// receive fills the queue until the watch cannot go on, and says why.
func (w *watch) receive(ctx context.Context) error {
	outage := w.store.health.current()
	// A stream of its own: progress is asked and answered per stream.
	watcher := clientv3.NewWatcher(w.store.client)
	defer watcher.Close() // there is nothing to be done about it
	responses := watcher.Watch(ctx, w.store.kindPrefix(w.resource),
		clientv3.WithPrefix(), clientv3.WithRev(w.position+1), clientv3.WithPrevKV(),
		clientv3.WithProgressNotify(), clientv3.WithCreatedNotify(), clientv3.WithFragment())
	truthful, stop := w.askVersions(ctx)
	defer stop()
	askProgress := false
	ask := time.NewTicker(w.store.config.ProgressInterval)
	defer ask.Stop()
	lastAnswer := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.store.ctx.Done():
			return datastore.ErrClosed()
		case <-outage.begun:
			return outage.err
		case resp, ok := <-responses:
			if !ok {
				return apierrors.NewServiceUnavailable(fmt.Sprintf("etcd: watch %s: the stream ended", w.resource.Plural))
			}
			lastAnswer = time.Now()
			if err := w.received(ctx, resp); err != nil {
				return err
			}
		case askProgress = <-truthful:
			lastAnswer = time.Now()
		case <-ask.C:
			if !askProgress {
				continue
			}
			if silent := time.Since(lastAnswer); silent > silenceLimit+w.store.config.ProgressInterval {
				return apierrors.NewServiceUnavailable(fmt.Sprintf("etcd: watch %s: no answer for %s", w.resource.Plural, silent.Round(time.Second)))
			}
			w.requestProgress(ctx, watcher)
		}
	}
}

// askVersions finds out whether progress may be asked for, beside the watch: a member
// that is away answers late, and must not hold events up. stop ends the question.
func (w *watch) askVersions(ctx context.Context) (truthful <-chan bool, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	answer := make(chan bool, 1)
	var asking sync.WaitGroup
	asking.Go(func() { answer <- w.store.truthfulProgress(ctx) })
	return answer, func() {
		cancel()
		asking.Wait()
	}
}

// requestProgress is answered on the stream; no answer is what counts, not an
// error here.
func (w *watch) requestProgress(ctx context.Context, watcher clientv3.Watcher) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = watcher.RequestProgress(ctx)
}

func (w *watch) received(ctx context.Context, resp clientv3.WatchResponse) error {
	if resp.CompactRevision != 0 {
		return apierrors.NewResourceExpired(fmt.Sprintf("watch %s: resourceVersion %d is too old: the history begins at %d", w.resource.Plural, w.position, resp.CompactRevision))
	}
	if err := resp.Err(); err != nil {
		return w.store.translate(ctx, "watch "+w.resource.Plural, err)
	}
	if len(resp.Events) > 0 {
		w.store.health.saw(resp.Header.Revision)
	}
	for _, e := range resp.Events {
		w.position = max(w.position, e.Kv.ModRevision)
		if !w.queue.push(item{event: e, revision: e.Kv.ModRevision}) {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("watch %s: %d events wait for their reader: resume from the last one", w.resource.Plural, maxQueue))
		}
	}
	if resp.IsProgressNotify() && resp.Header.Revision > w.position {
		w.position = resp.Header.Revision
		w.queue.push(item{revision: w.position})
	}
	return nil
}

// deliver decodes and hands out what is in the queue.
func (w *watch) deliver(ctx context.Context, send func(datastore.Event) error) error {
	for {
		it, err := w.queue.pop(ctx)
		if err != nil {
			return err
		}
		e, ok := datastore.Event{Type: datastore.Bookmark, ResourceVersion: strconv.FormatInt(it.revision, 10)}, true
		if it.event != nil {
			e, ok = w.decode(it.event)
		}
		if !ok {
			continue
		}
		if err := send(e); err != nil {
			return err
		}
	}
}

// decode turns a change of a key into a change of an object. A value that cannot
// be read counts as what stands for it, or as no object, before and after: then the
// object appears to a consumer when it becomes readable and is deleted when it stops
// being so.
func (w *watch) decode(e *clientv3.Event) (datastore.Event, bool) {
	out := datastore.Event{ResourceVersion: strconv.FormatInt(e.Kv.ModRevision, 10)}
	before := w.object(e.PrevKv, e.Kv.ModRevision)
	var after datastore.Object
	if e.Type == mvccpb.PUT {
		after = w.object(e.Kv, e.Kv.ModRevision)
	}
	switch {
	case after != nil && before != nil:
		out.Type, out.Object = datastore.Modified, after
	case after != nil:
		out.Type, out.Object = datastore.Added, after
	case before != nil:
		out.Type, out.Object = datastore.Deleted, before
	case e.PrevKv == nil && !e.IsCreate():
		// The last state was compacted before the server could send it, and there is
		// none now, or none that can be read.
		key, err := w.store.keyOf(w.resource, e.Kv.Key)
		if err != nil {
			return datastore.Event{}, false
		}
		out.Type, out.Object = datastore.Deleted, tombstone(w.resource, key, out.ResourceVersion)
	default:
		return datastore.Event{}, false
	}
	return out, true
}

// tombstone is all that is known of an object whose last state is gone.
func tombstone(r *datastore.Resource, key datastore.Key, resourceVersion string) datastore.Object {
	o := r.New()
	o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	o.SetResourceVersion(resourceVersion)
	return o
}

func (w *watch) object(kv *mvccpb.KeyValue, revision int64) datastore.Object {
	if kv == nil {
		return nil
	}
	return w.store.read(w.resource, kv, revision)
}
