package attach

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// What the agent's part of ADD and DEL costs with real files and fsync, and a plane
// and an allocator that cost nothing: rounds of so many calls at once.
func BenchmarkAddDel(b *testing.B) {
	for _, parallel := range []int{1, 10, 50, 300} {
		b.Run(fmt.Sprintf("parallel=%d", parallel), func(b *testing.B) {
			n := start(b, options{norun: true})
			var adds, dels []time.Duration
			for b.Loop() {
				adds = append(adds, n.round(parallel, n.mustAdd)...)
				dels = append(dels, n.round(parallel, func(r Request) Result { n.mustDel(r); return Result{} })...)
				n.pool.rested()
			}
			for what, list := range map[string][]time.Duration{"add": adds, "del": dels} {
				slices.Sort(list)
				b.ReportMetric(float64(list[len(list)/2].Microseconds())/1000, what+"-p50-ms")
				b.ReportMetric(float64(list[len(list)*99/100].Microseconds())/1000, what+"-p99-ms")
			}
		})
	}
}

// round makes so many calls at once and returns how long each took.
func (n *node) round(parallel int, call func(Request) Result) []time.Duration {
	took := make([]time.Duration, parallel)
	var wg sync.WaitGroup
	for i := range parallel {
		wg.Go(func() {
			r := requestFor(i)
			r.Pod, r.Standalone = world.Owner{}, true
			began := time.Now()
			call(r)
			took[i] = time.Since(began)
		})
	}
	wg.Wait()
	return took
}

// rested makes everything free at once.
func (p *pool) rested() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a := range p.resting {
		delete(p.resting, a)
		p.free["default"] = append(p.free["default"], a)
	}
}
