package attachments

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// A1: an agent that is not there, or that has never seen the datastore.
func TestScenarioA1(t *testing.T) {
	l := labtest.Up(t, lab.Options{Nodes: 1})
	l.Fault(spec.NodePowerOff, "node-1")
	l.Fault(spec.DatastoreKill, "")
	state := filepath.Join(l.NodeDirectory("node-1"), "var")
	entries, err := os.ReadDir(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries { // no checkpoint
		if err := os.RemoveAll(filepath.Join(state, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	l.Fault(spec.NodePowerOn, "node-1")
	r := l.Runtime("node-1")
	s := r.Sandbox(t, "a1")

	l.Fault(spec.AgentStop, "node-1")
	_, err = s.Add(t.Context())
	tryAgain(t, "ADD without an agent", err)
	refused(t, "STATUS without an agent", r.Status(t.Context()), 50)

	l.Fault(spec.AgentStart, "node-1")
	labtest.Eventually(t, labtest.Patience, func() error { // it serves
		_, err := labtest.TryAdminGet[admin.Status](l, "node-1", "/v1/status")
		return err
	})
	_, err = s.Add(t.Context())
	tryAgain(t, "ADD with the datastore away", err)
	refused(t, "STATUS with the datastore away", r.Status(t.Context()), 50, "datastore")

	l.Fault(spec.DatastoreStart, "")
	took := labtest.Eventually(t, labtest.Patience, func() error { return r.Status(t.Context()) })
	t.Logf("STATUS succeeds %s after the datastore's start", took)
	var answer labtest.Answer
	labtest.Eventually(t, labtest.Patience, func() (err error) {
		answer, err = s.Add(t.Context())
		return err
	})
	if err := s.Check(t.Context(), answer); err != nil {
		t.Errorf("CHECK: %v", err)
	}

	// Lost later: no reason to take the node out of service.
	l.Fault(spec.DatastoreKill, "")
	late := r.Sandbox(t, "a1-late")
	for range 3 {
		add(t, late)
		if err := r.Status(t.Context()); err != nil {
			t.Errorf("STATUS with the datastore lost: %v", err)
		}
	}
	del(t, late)
	del(t, s)
}

// A2: DEL works from the node's own records.
func TestScenarioA2(t *testing.T) {
	l := labtest.Up(t, lab.Options{Nodes: 1})
	before := traces(l, "node-1")
	r := l.Runtime("node-1")
	for _, away := range []struct{ lose, regain spec.FaultKind }{
		{spec.DatastoreKill, spec.DatastoreStart},
		{spec.DatastoreFreeze, spec.DatastoreContinue},
	} {
		t.Run(string(away.lose), func(t *testing.T) {
			l := l.With(t)
			s := r.Sandbox(t, "a2-"+string(away.lose))
			answer := add(t, s)
			wantPublished(t, l, true, answer.Addresses...)
			l.Fault(away.lose, "")
			del(t, s)
			del(t, s)
			// What an agent that has just started knows is on its disk too.
			l.Fault(spec.AgentRestart, "node-1")
			labtest.Eventually(t, labtest.Patience, func() error { return s.Del(t.Context()) })
			if got := attachments(l, "node-1"); len(got) != 0 {
				t.Errorf("attachments after DEL: %v", got)
			}
			l.Fault(away.regain, "")
			back := time.Now()
			wantPublished(t, l, false, answer.Addresses...)
			took := time.Since(back)
			t.Logf("the address is free in the datastore %s after its return", took)
			if limit := labtest.Limit(t, 2*time.Second); took > limit {
				t.Errorf("the address is free in the datastore %s after its return, want at most %s", took, limit)
			}
			wantTraces(t, l, "node-1", before)
		})
	}
}

// A8: an attachment whose address nobody has written into the Pod's status yet
// belongs to it all the same.
func TestScenarioA8(t *testing.T) {
	l := shared.Get(t)
	l.Apply(podElsewhere("a8"))
	s := l.Runtime("node-1").Sandbox(t, "a8")
	s.Pod, s.UID = "default/a8", string(l.Pod("default/a8").UID)
	answer := add(t, s)
	l.Fault(spec.AgentKill, "node-1")
	l.Fault(spec.AgentStart, "node-1")
	l.Fault(spec.ControllerRestart, "")
	l.WaitReady("node-1")
	l.Fault(spec.NodeGC, "node-1") // with the sandboxes that the lab knows: not this one
	if got := l.Pod("default/a8").Status.PodIPs; len(got) != 0 {
		t.Fatalf("the status is written: %v; this test proves nothing", got)
	}
	wantPublished(t, l, true, answer.Addresses...)
	if err := s.Check(t.Context(), answer); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	// Enough others to come by every free address of the block.
	r := l.Runtime("node-1")
	var others []*labtest.Sandbox
	for i := range 70 {
		o := r.Sandbox(t, fmt.Sprintf("a8-%d", i))
		others = append(others, o)
		if got := add(t, o); got.Addresses[0] == answer.Addresses[0] {
			t.Fatalf("%s was given again", answer.Addresses[0])
		}
	}
	for _, o := range others {
		del(t, o)
	}
	if err := s.Check(t.Context(), answer); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	del(t, s)
	l.Delete("Pod", "default/a8")
	wantPublished(t, l, false, answer.Addresses...)
}

// podElsewhere is a Pod that nothing in the lab runs, so that a test can.
func podElsewhere(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {nodeName: elsewhere, containers: [{name: c, image: any}]}\n", name)
}
