package health

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Level says how a component is.
type Level string

// The levels, from best to worst.
const (
	OK       Level = "ok"
	Degraded Level = "degraded"
	Failed   Level = "failed"
)

func (l Level) rank() int { return slices.Index([]Level{OK, Degraded, Failed}, l) }

// State of one component.
type State struct {
	Component string `json:"component"`
	Level     Level  `json:"level"`
	// Message says why, in one line; empty when all is well.
	Message string `json:"message,omitempty"`
	// Since when the level has been what it is.
	Since time.Time `json:"since"`
}

// Registry holds the states. It is safe for concurrent use.
type Registry struct {
	now func() time.Time

	mu      sync.Mutex
	states  map[string]State
	changed chan struct{}
}

// NewRegistry returns an empty registry; now is the clock.
func NewRegistry(now func() time.Time) *Registry {
	return &Registry{now: now, states: map[string]State{}, changed: make(chan struct{})}
}

// Set reports a component's state. Reporting the same again changes nothing; a
// new message at the same level keeps the time.
func (r *Registry) Set(component string, level Level, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, had := r.states[component]
	next := State{Component: component, Level: level, Message: message, Since: r.now()}
	if had && old.Level == level {
		next.Since = old.Since
	}
	if had && old == next {
		return
	}
	r.states[component] = next
	close(r.changed)
	r.changed = make(chan struct{})
}

// Changed returns a channel that is closed at the next change.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// States returns every component's state, sorted by name.
func (r *Registry) States() []State {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]State, 0, len(r.states))
	for _, s := range r.states {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b State) int { return cmp.Compare(a.Component, b.Component) })
	return out
}

// Worst returns the worst state, of equal ones the first by name; the zero State
// if nobody has reported.
func (r *Registry) Worst() State {
	var worst State
	for _, s := range r.States() {
		if worst.Component == "" || s.Level.rank() > worst.Level.rank() {
			worst = s
		}
	}
	return worst
}
