package datastore

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Stream is the part of a Watcher that all implementations share: one goroutine,
// its end, and the reason for it.
type Stream struct {
	events chan Event
	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	err error
}

// NewStream runs produce in a goroutine until it returns; produce hands events to
// send, which fails when ctx ends or closed is closed. The Stream's Err is what
// produce returned: IsServiceUnavailable if closed was the reason, nil if the
// context was ended or Stop was called.
func NewStream(ctx context.Context, closed <-chan struct{}, produce func(ctx context.Context, send func(Event) error) error) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &Stream{events: make(chan Event), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer cancel()
		err := produce(ctx, func(e Event) error {
			select {
			case s.events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			case <-closed:
				return ErrClosed()
			}
		})
		if ctx.Err() != nil {
			err = nil
		}
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		close(s.events)
	}()
	return s
}

// ErrClosed is what a Store answers once it is closed.
func ErrClosed() error { return apierrors.NewServiceUnavailable("the datastore is closed") }

// Events implements Watcher.
func (s *Stream) Events() <-chan Event { return s.events }

// Err implements Watcher.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Stop implements Watcher.
func (s *Stream) Stop() {
	s.cancel()
	<-s.done
}

// Done is closed when the goroutine is gone.
func (s *Stream) Done() <-chan struct{} { return s.done }
