package reconnect

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLoop holds that tries become rarer up to the bound, begin anew after a connection
// that lasted, and that whoever calls meanwhile is refused at once.
func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		calls, refused, lost := make(chan int), make(chan error, 1), errors.New("lost")
		l := Loop[int]{
			Min: 10 * time.Millisecond, Max: 80 * time.Millisecond, Calls: calls,
			Refuse: func(_ int, why error) { refused <- why },
		}
		var tries []time.Duration
		last := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.Run(ctx, func(n uint64) error {
				if n != uint64(len(tries)+1) {
					t.Errorf("connection %d is called %d", len(tries)+1, n)
				}
				tries = append(tries, time.Since(last))
				if n == 6 {
					time.Sleep(time.Second) // it is good for a while
				}
				if n == 8 {
					stop()
				}
				last = time.Now()
				return lost
			})
		}()
		synctest.Wait()
		calls <- 1
		if err := <-refused; !errors.Is(err, lost) {
			t.Errorf("refused because of %v", err)
		}
		<-done
		want := []time.Duration{0, 10, 20, 40, 80, 80, 10, 20}
		if len(tries) != len(want) {
			t.Fatalf("%d tries, want %d", len(tries), len(want))
		}
		for i, w := range want {
			w *= time.Millisecond
			if tries[i] < w-w/8 || tries[i] > w+w/8 {
				t.Errorf("try %d came after %s, want %s", i+1, tries[i], w)
			}
		}
	})
}
