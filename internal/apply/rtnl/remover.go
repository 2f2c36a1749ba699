package rtnl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// remover deletes links, which takes the kernel some 18 ms each, off everybody's
// way. Links that are waiting to go are down already.
type remover struct {
	conn *conn
	log  *slog.Logger

	mu      sync.Mutex
	pending map[int]*doom
	queue   []int
	closed  bool
	wake    chan struct{} // one token: there is something to do
	ended   chan struct{}
}

type doom struct {
	name string
	done chan struct{}
}

func newRemover(c *conn, log *slog.Logger) *remover {
	r := &remover{conn: c, log: log, pending: map[int]*doom{}, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go r.run()
	return r
}

// add takes a link to be deleted.
func (r *remover) add(l link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.pending[l.index] != nil {
		return
	}
	r.pending[l.index] = &doom{name: l.name, done: make(chan struct{})}
	r.queue = append(r.queue, l.index)
	r.poke()
}

func (r *remover) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// doomed are the indices of the links that are about to go.
func (r *remover) doomed() map[int]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[int]bool, len(r.pending))
	for i := range r.pending {
		out[i] = true
	}
	return out
}

// wait returns when no link of that name is about to go.
func (r *remover) wait(ctx context.Context, name string) error {
	for {
		d := r.find(name)
		if d == nil {
			return nil
		}
		select {
		case <-d.done:
		case <-ctx.Done():
			return fmt.Errorf("wait until the former link %s is gone: %w", name, context.Cause(ctx))
		}
	}
}

func (r *remover) find(name string) *doom {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.pending {
		if d.name == name {
			return d
		}
	}
	return nil
}

func (r *remover) run() {
	defer close(r.ended)
	for range r.wake {
		for batch := r.next(); len(batch) > 0; batch = r.next() {
			if err := r.remove(batch); err != nil {
				// They show up as unexpected links with the next refresh.
				r.log.Warn("cannot delete links", "links", len(batch), "error", err)
			}
			r.finish(batch)
		}
	}
}

// batchSize bounds how many links go at once: as long as the kernel deletes them,
// it answers nobody else.
const batchSize = 64

func (r *remover) next() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	n := min(len(r.queue), batchSize)
	batch := r.queue[:n:n]
	r.queue = r.queue[n:]
	return batch
}

func (r *remover) finish(batch []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range batch {
		close(r.pending[i].done)
		delete(r.pending, i)
	}
}

// remove deletes several links in the time of one: as a group that they alone are
// members of.
func (r *remover) remove(batch []int) error {
	if len(batch) > 1 {
		for _, i := range batch {
			if err := r.conn.setGroup(i, claims.LinkGroup); err != nil {
				return fmt.Errorf("put link %d into the group of links to delete: %w", i, err)
			}
		}
		links, err := r.conn.links()
		if err != nil {
			return err
		}
		foreign := false
		for i, l := range links {
			foreign = foreign || l.group == claims.LinkGroup && !slices.Contains(batch, i)
		}
		if !foreign {
			return r.conn.removeGroup(claims.LinkGroup)
		}
	}
	var errs []error
	for _, i := range batch {
		errs = append(errs, r.conn.removeLink(i))
	}
	return errors.Join(errs...)
}

// flush waits until all are gone.
func (r *remover) flush(ctx context.Context) error {
	for {
		r.mu.Lock()
		var d *doom
		for _, d = range r.pending {
			break
		}
		r.mu.Unlock()
		if d == nil {
			return nil
		}
		select {
		case <-d.done:
		case <-ctx.Done():
			return fmt.Errorf("wait until link %s is gone: %w", d.name, context.Cause(ctx))
		}
	}
}

// close ends the deletion that is under way and gives up the rest: the next start
// finds them as links that nobody wants.
func (r *remover) close() {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.wake)
	}
	r.mu.Unlock()
	<-r.ended
	r.conn.close()
}
