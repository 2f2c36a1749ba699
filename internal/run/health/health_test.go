package health

import (
	"testing"
	"time"
)

func TestSinceIsWhenTheLevelChanged(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	start := now
	r := NewRegistry(func() time.Time { return now })
	r.Set("plane", OK, "")
	now = now.Add(time.Minute)
	changed := r.Changed()
	r.Set("plane", OK, "")
	select {
	case <-changed:
		t.Error("the same report again was a change")
	default:
	}
	r.Set("plane", Degraded, "one port failed")
	select {
	case <-changed:
	default:
		t.Error("a new level was no change")
	}
	now = now.Add(time.Minute)
	r.Set("plane", Degraded, "two ports failed")
	got := r.States()[0]
	want := State{Component: "plane", Level: Degraded, Message: "two ports failed", Since: start.Add(time.Minute)}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestWorst(t *testing.T) {
	r := NewRegistry(time.Now)
	if got := r.Worst(); got != (State{}) {
		t.Errorf("worst of nothing: %+v", got)
	}
	r.Set("c", Failed, "x")
	r.Set("a", OK, "")
	r.Set("b", Failed, "y")
	if got := r.Worst().Component; got != "b" {
		t.Errorf("worst is %q, want b: the first by name of the failed ones", got)
	}
}
