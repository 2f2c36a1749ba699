package attach

import (
	"context"
	"errors"
	"sync"
)

// errDeleted ends an ADD whose container is being deleted.
var errDeleted = errors.New("a DEL for the same container came during ADD")

// locks serialises calls for one container. An ADD gives way: a DEL that waits
// cancels the ADD that holds the lock and turns away those that wait for it.
type locks struct {
	mu sync.Mutex
	of map[string]*lock
}

type lock struct {
	turn     chan struct{} // holds one token while somebody has the lock
	users    int           // who hold it or wait for it
	deleters int           // who among them delete
	cancel   context.CancelCauseFunc
}

// forAdd takes the container's lock. The context that it returns is cancelled with
// errDeleted when a DEL waits.
func (l *locks) forAdd(ctx context.Context, container string) (context.Context, func(), error) {
	k := l.enter(container, 0)
	if err := k.take(ctx); err != nil {
		l.leave(container, k, 0)
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	if k.deleters > 0 {
		cancel(errDeleted)
	}
	k.cancel = cancel
	return ctx, func() {
		l.mu.Lock()
		k.cancel = nil
		l.mu.Unlock()
		cancel(nil)
		<-k.turn
		l.leave(container, k, 0)
	}, nil
}

// forDelete takes the container's lock ahead of any ADD.
func (l *locks) forDelete(ctx context.Context, container string) (func(), error) {
	return l.plain(ctx, container, 1)
}

// forCollect takes the container's lock and waits for an ADD to end by itself.
func (l *locks) forCollect(ctx context.Context, container string) (func(), error) {
	return l.plain(ctx, container, 0)
}

func (l *locks) plain(ctx context.Context, container string, deleters int) (func(), error) {
	k := l.enter(container, deleters)
	if err := k.take(ctx); err != nil {
		l.leave(container, k, deleters)
		return nil, err
	}
	return func() {
		<-k.turn
		l.leave(container, k, deleters)
	}, nil
}

func (l *locks) enter(container string, deleters int) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.of[container]
	if k == nil {
		k = &lock{turn: make(chan struct{}, 1)}
		if l.of == nil {
			l.of = map[string]*lock{}
		}
		l.of[container] = k
	}
	k.users++
	k.deleters += deleters
	if deleters > 0 && k.cancel != nil {
		k.cancel(errDeleted)
	}
	return k
}

func (l *locks) leave(container string, k *lock, deleters int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.deleters -= deleters
	if k.users--; k.users == 0 {
		delete(l.of, container)
	}
}

func (k *lock) take(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
