package lab_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/process"
)

// faultFixture is a lab with pods that faults are done to.
type faultFixture struct {
	l     *lab.Lab
	store datastore.Store
	pods  []*corev1.Pod
}

func (f *faultFixture) agent(t *testing.T) process.Status {
	t.Helper()
	return status(t, f.l).Nodes[0].State.Agent
}

func (f *faultFixture) agentIs(t *testing.T, want process.State) {
	t.Helper()
	eventually(t, func() string {
		if got := f.agent(t).State; got != want {
			return fmt.Sprintf("the agent is %s, want %s", got, want)
		}
		return ""
	})
}

func (f *faultFixture) nodeReady(t *testing.T, want corev1.ConditionStatus) {
	t.Helper()
	eventually(t, func() string {
		o, err := f.store.Get(t.Context(), datastore.KindNode, datastore.Key{Name: "node-1"})
		if err != nil {
			return err.Error()
		}
		if got := o.(*corev1.Node).Status.Conditions[0].Status; got != want {
			return fmt.Sprintf("node-1 has Ready=%s, want %s", got, want)
		}
		return ""
	})
}

func TestFaults(t *testing.T) {
	f := &faultFixture{l: up(t, options(t))}
	f.store = openStore(t, f.l)
	apply(t, f.store, manifest)
	f.pods = ready(t, f.store)
	t.Run("agent", f.faultAgent)
	t.Run("link", f.faultLink)
	t.Run("datastore", f.faultDatastore)
	t.Run("reboot", f.faultReboot)
	t.Run("node deleted", f.faultNodeDeleted)
	t.Run("refused", f.faultRefused)
}

func (f *faultFixture) faultAgent(t *testing.T) {
	fault(t, f.l, "agent-freeze", "node-1")
	f.agentIs(t, process.Frozen)
	fault(t, f.l, "agent-continue", "node-1")
	f.agentIs(t, process.Running)
	fault(t, f.l, "agent-kill", "node-1")
	f.agentIs(t, process.Stopped)
	f.nodeReady(t, corev1.ConditionFalse)
	fault(t, f.l, "agent-start", "node-1")
	f.nodeReady(t, corev1.ConditionTrue)
	before := f.agent(t).Pid
	fault(t, f.l, "agent-restart", "node-1")
	f.agentIs(t, process.Running)
	if after := f.agent(t).Pid; after == before || after == 0 {
		t.Errorf("restart left pid %d as %d", before, after)
	}
	f.awaitAgent(t)
}

// One that is waited for can attach pods afterwards, or it is told how it ended.
func (f *faultFixture) awaitAgent(t *testing.T) {
	for _, env := range [][]string{{"STAND_IN_FAILS=1"}, nil} {
		fault(t, f.l, "agent-stop", "node-1")
		kind := lab.Fault{Kind: "agent-start", Node: "node-1", Env: env}
		if err := f.l.Fault(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
		note, err := f.l.AwaitStart(t.Context(), kind)
		if env == nil && err != nil || env != nil && (err == nil ||
			err.Error() != "the agent of node-1 has ended again (exit status 1); it says: the stand-in was told to fail") {
			t.Errorf("with %v: %v", env, err)
		}
		if note != "" {
			t.Errorf("with %v: note %q", env, note)
		}
		if st := status(t, f.l).Nodes[0].State; err == nil && !st.Ready {
			t.Errorf("waited for, and not ready: %s", st.Reason)
		}
	}
	for _, kind := range []lab.Fault{{Kind: "link-restore", Node: "node-1"}, {Kind: "datastore-start"}, {Kind: "controller-restart"}} {
		if err := f.l.Fault(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
		if note, err := f.l.AwaitStart(t.Context(), kind); note != "" || err != nil {
			t.Errorf("%s: note %q, error %v", kind.Kind, note, err)
		}
	}
}

func (f *faultFixture) faultLink(t *testing.T) {
	fault(t, f.l, "link-cut", "node-1")
	r, err := f.l.Check(t.Context(), f.pods, func(p lab.Probe) (bool, string, bool) {
		return sameNode(f.pods, p), "the link is cut", p.To != "outside"
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() {
		t.Errorf("with a cut link: %+v", r.Disagree)
	}
	fault(t, f.l, "link-restore", "node-1")
	if r, err = f.l.Check(t.Context(), f.pods, allReachAll, false); err != nil || !r.OK() {
		t.Errorf("with the link restored: %+v, error %v", r, err)
	}
}

func (f *faultFixture) faultDatastore(t *testing.T) {
	fault(t, f.l, "datastore-freeze", "")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := f.store.List(ctx, datastore.KindPod); err == nil {
		t.Error("a frozen datastore answers")
	}
	fault(t, f.l, "datastore-continue", "")
	fault(t, f.l, "datastore-compact", "")
	fault(t, f.l, "datastore-kill", "")
	fault(t, f.l, "datastore-start", "")
	apply(t, f.store, "apiVersion: v1\nkind: Pod\nmetadata: {name: late}\nspec: {containers: [{name: c, image: any}]}")
	if got := len(ready(t, f.store)); got != len(f.pods)+1 {
		t.Errorf("%d f.pods after the datastore came back, want %d", got, len(f.pods)+1)
	}
}

func (f *faultFixture) faultReboot(t *testing.T) {
	for _, dir := range []string{"/run/fairlead", "/var/lib/fairlead"} {
		if out, exit := execOutput(t, f.l, lab.ExecRequest{Node: "node-1", Command: []string{"sh", "-c", "touch " + dir + "/mark"}}); exit != 0 {
			t.Fatal(out)
		}
	}
	before := podIP(t, f.pods, "demo/"+webPod(f.pods))
	fault(t, f.l, "node-reboot", "node-1")
	f.nodeReady(t, corev1.ConditionTrue)
	if got, _ := execOutput(t, f.l, lab.ExecRequest{Node: "node-1", Command: []string{"sh", "-c", "cd /; ls run/fairlead/mark var/lib/fairlead/mark 2>/dev/null"}}); got != "var/lib/fairlead/mark\n" {
		t.Errorf("marks after a reboot: %q, want that in /var alone", got)
	}
	eventually(t, func() string {
		for _, p := range ready(t, f.store) {
			if p.Name == webPod(f.pods) && p.Status.PodIP == before && p.Spec.NodeName == "node-1" {
				return "the pod has the address of its old sandbox"
			}
		}
		return ""
	})
	if r, err := f.l.Check(t.Context(), ready(t, f.store), allReachAll, false); err != nil || !r.OK() {
		t.Errorf("after a reboot: %+v, error %v", r, err)
	}
}

func (f *faultFixture) faultNodeDeleted(t *testing.T) {
	if err := f.store.Delete(t.Context(), datastore.KindNode, datastore.Key{Name: "node-2"}, datastore.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		n := status(t, f.l).Nodes[1]
		_, err := f.store.Get(t.Context(), datastore.KindPod, datastore.Key{Namespace: "demo", Name: "shell"})
		if n.Power != "off" || !apierrors.IsNotFound(err) {
			return fmt.Sprintf("power %s, its pod: %v", n.Power, err)
		}
		return ""
	})
	fault(t, f.l, "node-power-on", "node-2")
	eventually(t, func() string {
		_, err := f.store.Get(t.Context(), datastore.KindNode, datastore.Key{Name: "node-2"})
		return errText(err)
	})
}

func (f *faultFixture) faultRefused(t *testing.T) {
	for _, bad := range []lab.Fault{{Kind: "nonsense"}, {Kind: "agent-kill", Node: "node-9"}, {Kind: "node-power-on", Node: "node-1"}} {
		if err := f.l.Fault(t.Context(), bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// sameNode tells whether a probe stays on one node.
func sameNode(pods []*corev1.Pod, p lab.Probe) bool {
	node := map[string]string{}
	for _, o := range pods {
		node[o.Namespace+"/"+o.Name] = o.Spec.NodeName
		node["node/"+o.Spec.NodeName] = o.Spec.NodeName
	}
	return node[p.From] == node[p.To]
}
