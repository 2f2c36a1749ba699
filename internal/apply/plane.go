package apply

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// Plane makes a node's network equal to an intent.
//
// Apply takes the complete desired state, is idempotent, and may be called with
// any intent after any other. It diffs against its shadow of what is ours in the
// kernel, submits additions before what refers to them and removals last, and
// leaves foreign objects alone. A failure of one object does not stop the others:
// it is named in the Report and tried again with the next Apply. The error is for
// failures that name no object (a closed plane, a dead daemon); the Report is
// valid even then. Calls are serialised by the caller.
type Plane interface {
	Apply(ctx context.Context, desired intent.Node, o Options) (Report, error)
	// Audit reads the kernel anew and says how it differs from the intent. It
	// changes nothing.
	Audit(ctx context.Context, desired intent.Node) ([]Difference, error)
	// Watch reports changes that somebody else made to what is ours, until ctx
	// ends. The next Apply reads the touched part back and repairs it.
	Watch(ctx context.Context, changed func(Foreign)) error
	// Close releases handles. The kernel keeps everything: traffic goes on.
	Close() error
}

// Ahead is what a Plane may be beside.
type Ahead interface {
	// Ahead brings in the rules of a newer intent while an Apply is under way, if that one has
	// brought in its own and they need not wait for what it does still; else it does nothing.
	// The newer intent must come from a complete world. It returns the changes, for people. The
	// Apply that follows does what is left, and once more what failed. Calls follow one another.
	Ahead(ctx context.Context, newer intent.Node) ([]string, error)
}

// Options of one Apply.
type Options struct {
	// AddOnly adds what is missing and neither changes nor removes what exists: the
	// world is not known to be complete, and may be older than the kernel.
	AddOnly bool
	// Refresh reads the whole shadow back from the kernel first.
	Refresh bool
}

// Report says what an Apply did.
type Report struct {
	// Failed objects, sorted by Ref.
	Failed []ObjectError
	// Changes that were made, in order, for people: "add route 10.0.1.0/26 dev fl.vxlan".
	Changes []string
	// Duration of the call.
	Duration time.Duration
	// Again is how long after the call the plane has to be asked once more, although
	// nothing changes, since something that it did is for a time. Zero: it need not be.
	Again time.Duration
}

// Err returns why the object failed, nil if it did not.
func (r Report) Err(ref intent.Ref) error {
	i := slices.IndexFunc(r.Failed, func(e ObjectError) bool { return e.Ref == ref })
	if i < 0 {
		return nil
	}
	return r.Failed[i].Err
}

// ObjectError is the failure of one object of the intent.
type ObjectError struct {
	Ref intent.Ref
	Err error
}

// Error implements error.
func (e ObjectError) Error() string { return e.Ref.String() + ": " + e.Err.Error() }

// Unwrap implements the contract of errors.Is and errors.As.
func (e ObjectError) Unwrap() error { return e.Err }

// Difference is one thing in the kernel that is not as the intent says.
type Difference struct {
	// Subsystem is "link", "route", "neighbour", "address", "rule", "sysctl",
	// "nftables", "bpf" or "ovs".
	Subsystem string `json:"subsystem"`
	// Object names the thing in its subsystem's words, "10.0.1.0/26 dev fl.vxlan".
	Object string `json:"object"`
	// Problem is "missing", "unexpected" or "differs"; "shadowing" for a foreign thing
	// that takes packets from what Want names, which is there.
	Problem string `json:"problem"`
	Want    string `json:"want,omitempty"`
	Got     string `json:"got,omitempty"`
}

// Text is the difference for people, in one line.
func (d Difference) Text() string {
	if d.Problem == "shadowing" {
		what := d.Object
		if d.Subsystem != "ovs" { // There the object says it.
			what = d.Subsystem + " " + what
		}
		return fmt.Sprintf("%s, which is not Fairlead's, takes packets from %s: remove it, or keep Fairlead's addresses out of it", what, d.Want)
	}
	problem := d.Problem
	if problem == "differs" {
		problem = "not as it should be"
	}
	line := fmt.Sprintf("%s %s is %s", d.Subsystem, d.Object, problem)
	if d.Want != "" || d.Got != "" {
		line += fmt.Sprintf(" (want %q, got %q)", d.Want, d.Got)
	}
	return line
}

// Foreign is a change to something of ours that we did not make.
type Foreign struct {
	Time      time.Time `json:"time"`
	Subsystem string    `json:"subsystem"`
	// What was changed, for people: "route 10.0.1.0/26 dev fl.vxlan deleted".
	What string `json:"what"`
	// Process is the name and pid of who did it, where the kernel tells.
	Process string `json:"process,omitempty"`
	// Found: the plane found it so, as after a restart of a daemon. Nobody is known to have
	// changed anything.
	Found bool `json:"found,omitempty"`
	// Port is the name of the end of a pod's link that is gone, if that is all: it goes with the
	// pod's namespace, which the runtime removes as soon as DEL has answered.
	Port string `json:"-"`
}

// Text says who did what, as far as that is known.
func (f Foreign) Text() string {
	if f.Found {
		return "found: " + f.What
	}
	return cmp.Or(f.Process, "somebody") + " changed from outside: " + f.What
}

// Compare orders differences by subsystem, object and problem.
func (d Difference) Compare(o Difference) int {
	return cmp.Or(cmp.Compare(d.Subsystem, o.Subsystem), cmp.Compare(d.Object, o.Object), cmp.Compare(d.Problem, o.Problem))
}
