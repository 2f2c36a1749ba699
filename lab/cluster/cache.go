package cluster

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// Waits between two attempts to list or watch.
const (
	minWait = 100 * time.Millisecond
	maxWait = 2 * time.Second
)

// cache follows the objects of one kind.
type cache struct {
	store   datastore.Store
	kind    datastore.Kind
	changed func()
	problem func(key string, err error)

	mu      sync.Mutex
	objects map[datastore.Key]datastore.Object
	listed  bool
}

// run lists and watches until ctx ends.
func (c *cache) run(ctx context.Context) error {
	wait := minWait
	position := ""
	for ctx.Err() == nil {
		next, err := c.follow(ctx, position)
		if ctx.Err() != nil {
			break
		}
		if apierrors.IsResourceExpired(err) {
			next, err = "", nil // list again
		}
		if next != position {
			wait = minWait
		}
		position = next
		if err == nil {
			continue
		}
		c.problem("watch "+string(c.kind), err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		wait = min(2*wait, maxWait)
	}
	return nil
}

// follow watches from position, after a list if that is empty, and returns up to
// where it got.
func (c *cache) follow(ctx context.Context, position string) (string, error) {
	if position == "" {
		list, err := c.store.List(ctx, c.kind)
		if err != nil {
			return "", fmt.Errorf("list: %w", err)
		}
		c.replace(list.Items)
		position = list.ResourceVersion
	}
	w, err := c.store.Watch(ctx, c.kind, position)
	if err != nil {
		return position, fmt.Errorf("watch: %w", err)
	}
	defer w.Stop()
	c.problem("watch "+string(c.kind), nil)
	for e := range w.Events() {
		position = e.ResourceVersion
		switch e.Type {
		case datastore.Added, datastore.Modified:
			c.put(e.Object)
		case datastore.Deleted:
			c.remove(e.Object)
		}
	}
	return position, w.Err()
}

func (c *cache) replace(items []datastore.Object) {
	c.mu.Lock()
	c.objects = make(map[datastore.Key]datastore.Object, len(items))
	for _, o := range items {
		c.objects[datastore.KeyOf(o)] = o
	}
	c.listed = true
	c.mu.Unlock()
	c.changed()
}

// put takes in what a watch says.
func (c *cache) put(o datastore.Object) {
	c.mu.Lock()
	c.take(o)
	c.mu.Unlock()
	c.changed()
}

// wrote takes in what a write of our own has made. The watch may have said more by then:
// that the object was changed again, or deleted.
func (c *cache) wrote(o datastore.Object, created bool) {
	c.mu.Lock()
	if have := c.objects[datastore.KeyOf(o)]; created || have != nil && have.GetUID() == o.GetUID() {
		c.take(o)
	}
	c.mu.Unlock()
	c.changed()
}

// take keeps the newer one of two states of an object. The lab's datastore counts its
// changes.
func (c *cache) take(o datastore.Object) {
	k := datastore.KeyOf(o)
	if have := c.objects[k]; have != nil && have.GetUID() == o.GetUID() {
		old, errOld := strconv.ParseUint(have.GetResourceVersion(), 10, 64)
		now, errNow := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
		if errOld == nil && errNow == nil && old > now {
			return
		}
	}
	c.objects[k] = o
}

func (c *cache) remove(o datastore.Object) {
	c.mu.Lock()
	k := datastore.KeyOf(o)
	if have := c.objects[k]; have != nil && have.GetUID() == o.GetUID() {
		delete(c.objects, k)
	}
	c.mu.Unlock()
	c.changed()
}

// ready tells whether the kind has been listed.
func (c *cache) ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listed
}

// snapshot copies the objects of a cache, which nobody may change.
func snapshot[T datastore.Object](c *cache) map[datastore.Key]T {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[datastore.Key]T, len(c.objects))
	for k, o := range maps.All(c.objects) {
		if t, ok := o.(T); ok {
			out[k] = t
		}
	}
	return out
}
