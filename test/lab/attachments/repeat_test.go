package attachments

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// A5: the answers of the CNI specification to repeated, early and late calls.
func TestScenarioA5(t *testing.T) {
	l := shared.Get(t)
	before := traces(l, "node-1")
	r := l.Runtime("node-1")
	s := r.Sandbox(t, "a5")

	del(t, s) // without ADD
	first := add(t, s)
	once := traces(l, "node-1")
	again := add(t, s) // the first answer was lost
	if diff := cmp.Diff(first.Addresses, again.Addresses, byAddr); diff != "" {
		t.Errorf("the second ADD gives another address:\n%s", diff)
	}
	if diff := cmp.Diff(once, traces(l, "node-1")); diff != "" {
		t.Errorf("the second ADD changes the node:\n%s", diff)
	}
	if err := s.Check(t.Context(), again); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	del(t, s)
	del(t, s)
	if err := s.Check(t.Context(), again); labtest.CodeOf(err) == 0 {
		t.Errorf("CHECK after DEL: %v, want a CNI error", err)
	}
	wantPublished(t, l, false, first.Addresses...)

	gone := r.Sandbox(t, "a5-gone") // the namespace dies first
	answer := add(t, gone)
	if err := gone.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := gone.DelWithoutNetns(t.Context()); err != nil {
		t.Errorf("DEL without a namespace: %v", err)
	}
	if _, ok := attachments(l, "node-1")["a5-gone/eth0"]; ok {
		t.Error("an attachment is left after DEL without a namespace")
	}
	wantPublished(t, l, false, answer.Addresses...)
	wantTraces(t, l, "node-1", before)
}

// A5 and A7: GC with an empty list removes what is dead, and keeps and reports what
// lives.
func TestScenarioA5EmptyGC(t *testing.T) {
	l := shared.Get(t)
	before := traces(l, "node-1")
	r := l.Runtime("node-1")
	living, dead := r.Sandbox(t, "a5-living"), r.Sandbox(t, "a5-dead")
	keep, lost := add(t, living), add(t, dead)
	if err := dead.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := r.GC(t.Context()); err != nil {
		t.Fatalf("GC: %v", err)
	}
	got := attachments(l, "node-1")
	if _, ok := got["a5-dead/eth0"]; ok {
		t.Error("GC left an attachment whose namespace is dead")
	}
	if err := living.Check(t.Context(), keep); err != nil {
		t.Errorf("CHECK of a living container that GC did not name: %v", err)
	}
	if got := problems(l, "node-1", "a5-living/eth0"); !slices.Contains(got, "NotCollected") {
		t.Errorf("the attachment that GC kept is reported as %v, want NotCollected", got)
	}
	wantPublished(t, l, true, keep.Addresses...)
	wantPublished(t, l, false, lost.Addresses...)
	if err := r.GC(t.Context(), living); err != nil {
		t.Fatalf("GC: %v", err)
	}
	if got := problems(l, "node-1", "a5-living/eth0"); len(got) > 0 {
		t.Errorf("an attachment that GC names is still reported as %v", got)
	}
	del(t, living)
	wantTraces(t, l, "node-1", before)
}
