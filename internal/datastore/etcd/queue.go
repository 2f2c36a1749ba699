package etcd

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// item is an event, or, without one, the news that everything up to revision was
// received.
type item struct {
	event    *clientv3.Event
	revision int64
}

// queue hands items from the receiver of a watch to its deliverer.
type queue struct {
	mu    sync.Mutex
	items []item
	// err is set when nothing more will come.
	err    error
	signal chan struct{} // holds one token if there is something to look at
}

func newQueue() *queue { return &queue{signal: make(chan struct{}, 1)} }

// push adds an item; false if the queue is full. A second bookmark in a row
// replaces the first.
func (q *queue) push(it item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.items)
	switch {
	case n > 0 && it.event == nil && q.items[n-1].event == nil:
		q.items[n-1] = it
		return true
	case n >= maxQueue:
		return false
	}
	q.items = append(q.items, it)
	q.wake()
	return true
}

// close lets pop return err once the items are used up.
func (q *queue) close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
	q.wake()
}

func (q *queue) wake() {
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// pop waits for the next item.
func (q *queue) pop(ctx context.Context) (item, error) {
	for {
		if it, ok, err := q.take(); ok || err != nil {
			return it, err
		}
		select {
		case <-q.signal:
		case <-ctx.Done():
			return item{}, ctx.Err()
		}
	}
}

func (q *queue) take() (item, bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		q.items = nil // let a burst's memory go
		return item{}, false, q.err
	}
	it := q.items[0]
	q.items[0] = item{}
	q.items = q.items[1:]
	return it, true, nil
}
