package reconcile

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// A failure that lasts is tried with every pass, and would fill the log.
func TestAFailureIsLoggedOnce(t *testing.T) {
	var text strings.Builder
	l := New(Config{Logger: slog.New(slog.NewTextHandler(&text, nil))})
	port := func(id, why string) apply.ObjectError {
		return apply.ObjectError{Ref: intent.PortRef(id), Err: errors.New(why)}
	}
	outcome := func(err error, failed ...apply.ObjectError) Outcome {
		return Outcome{Snapshot: &world.Snapshot{}, Err: err, Report: apply.Report{Failed: failed}}
	}
	broken := errors.New("broken")
	before := Outcome{}
	for _, tc := range []struct {
		name  string
		now   Outcome
		lines int
	}{
		{"first", outcome(broken, port("a", "no namespace")), 2},
		{"the same", outcome(errors.New("broken"), port("a", "no namespace")), 0},
		{"another object", outcome(nil, port("a", "no namespace"), port("b", "no namespace")), 1},
		{"another reason", outcome(broken, port("a", "no memory"), port("b", "no namespace")), 2},
		{"healed", outcome(nil), 0},
		{"again", outcome(nil, port("a", "no memory")), 1},
	} {
		text.Reset()
		l.log(tc.now, before)
		if got := strings.Count(text.String(), "\n"); got != tc.lines {
			t.Errorf("%s: %d lines, want %d:\n%s", tc.name, got, tc.lines, text.String())
		}
		before = tc.now
	}
}
