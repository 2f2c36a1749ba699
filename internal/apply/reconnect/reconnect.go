package reconnect

import (
	"context"
	"math/rand/v2"
	"time"
)

// Loop says how connections follow one another. C is what callers hand to the owner of the
// connection.
type Loop[C any] struct {
	// Min and Max bound the time between two tries, which doubles and bears jitter of a
	// quarter. A connection that lasted longer than Max was a good one: it begins with Min.
	Min, Max time.Duration
	// Calls are taken while there is no connection, and given to Refuse with the reason.
	Calls  <-chan C
	Refuse func(call C, why error)
}

// Run calls connection with 1, 2, … until ctx ends. connection dials, serves until the
// connection is lost, and says why.
func (l Loop[C]) Run(ctx context.Context, connection func(n uint64) error) {
	wait := l.Min
	for n := uint64(1); ; n++ {
		began := time.Now()
		err := connection(n)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > l.Max {
			wait = l.Min
		}
		if !l.pause(ctx, wait-wait/8+rand.N(wait/4+1), err) {
			return
		}
		wait = min(2*wait, l.Max)
	}
}

// pause waits and refuses calls meanwhile. It reports whether ctx goes on.
func (l Loop[C]) pause(ctx context.Context, d time.Duration, why error) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		case call := <-l.Calls:
			l.Refuse(call, why)
		}
	}
}
