package supervisor

import (
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/fairlead-sdn/fairlead/lab/spec"
)

// reporter writes Steps for the process that waits for the lab. That process may be
// gone: what cannot be written is not missed.
type reporter struct {
	began time.Time
	mu    sync.Mutex
	out   *os.File
	last  spec.Step
}

func newReporter(out *os.File) *reporter { return &reporter{began: time.Now(), out: out} }

func (r *reporter) step(name, detail string) { r.write(spec.Step{Name: name, Detail: detail}) }

func (r *reporter) count(name, detail string, done, total int) {
	r.write(spec.Step{Name: name, Detail: detail, Done: done, Total: total})
}

func (r *reporter) ready() {
	r.write(spec.Step{Name: "ready", Ready: true})
	r.close()
}

// fail names the step that was under way.
func (r *reporter) fail(err error) {
	r.mu.Lock()
	step := r.last
	r.mu.Unlock()
	step.Err = err.Error()
	r.write(step)
	r.close()
}

func (r *reporter) write(s spec.Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out == nil || s == r.last {
		return
	}
	r.last = s
	s.Elapsed = time.Since(r.began)
	_ = json.NewEncoder(r.out).Encode(s)
}

func (r *reporter) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out != nil {
		r.out.Close()
		r.out = nil
	}
}
