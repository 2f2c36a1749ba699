package attachments

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// pods is a Deployment of the given size on one node.
func pods(name, node string, replicas int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {nodeName: %[3]s, containers: [{name: c, image: any, ports: [{containerPort: 80}]}]}
`, name, replicas, node)
}

// living are the attachments of the pods that run on a node, and their addresses, as
// its runtime knows them.
func living(l *labtest.Lab, node string) map[string]netip.Addr {
	out := map[string]netip.Addr{}
	for _, p := range l.Node(node).State.Pods {
		if len(p.IPs) > 0 {
			out[p.Sandbox+"/eth0"] = p.IPs[0]
		}
	}
	return out
}

// A7: after a power loss nobody has called DEL, and all namespaces are gone.
func TestScenarioA7(t *testing.T) {
	l := labtest.Up(t, lab.Options{Nodes: 2})
	l.Apply(pods("web", "node-1", 8) + "---\n" + pods("peer", "node-2", 2))
	old := map[string]bool{}
	for _, p := range l.WaitPods() {
		old[p.Status.PodIP] = true
	}
	r := l.Runtime("node-1")
	lone := r.Sandbox(t, "a7")
	lost := add(t, lone)
	if got := len(attachments(l, "node-1")); got != 9 {
		t.Fatalf("%d attachments, want 9", got)
	}

	l.Fault(spec.NodePowerOff, "node-1")
	l.Fault(spec.NodePowerOn, "node-1")
	l.WaitReady("node-1")
	labtest.Eventually(t, labtest.Patience, func() error {
		recorded := map[string]netip.Addr{}
		for id, a := range attachments(l, "node-1") {
			recorded[id] = a.Addresses[0]
		}
		if pods := living(l, "node-1"); len(pods) != 8 {
			return fmt.Errorf("%d pods have an address, want 8", len(pods))
		} else if diff := cmp.Diff(pods, recorded, byAddr); diff != "" {
			return fmt.Errorf("the records are not the living pods (-pods +records):\n%s", diff)
		}
		return nil
	})
	wantPublished(t, l, false, lost.Addresses...)
	for _, p := range l.WaitPods() {
		if p.Spec.NodeName == "node-1" && old[p.Status.PodIP] {
			t.Errorf("pod %s has %s, which has not rested", p.Name, p.Status.PodIP)
		}
	}
	l.Fault(spec.NodeCheck, "node-1")

	// The runtime's list lacks everything: what lives stays.
	r = l.Runtime("node-1")
	r.Network = "fairlead"
	if err := r.GC(t.Context()); err != nil {
		t.Fatalf("GC: %v", err)
	}
	for id := range living(l, "node-1") {
		if got := problems(l, "node-1", id); len(got) != 1 || got[0] != "NotCollected" {
			t.Errorf("%s, which lives and which GC did not name, is reported as %v", id, got)
		}
	}
	l.Fault(spec.NodeCheck, "node-1")
	l.Fault(spec.NodeGC, "node-1")
	for id := range living(l, "node-1") {
		if got := problems(l, "node-1", id); len(got) > 0 {
			t.Errorf("%s is still reported as %v", id, got)
		}
	}
}

// shortGrace gives the controller a shorter grace period than usual, and a shorter
// lease: that of a leader that was killed has to run out too.
func shortGrace(t *testing.T, l *labtest.Lab, grace time.Duration) {
	t.Helper()
	config := filepath.Join(l.Directory(), spec.FileController)
	raw, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := yaml.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	c["vanishedNodeGrace"] = grace.String()
	c["leaderElection"] = map[string]string{"leaseDuration": "2s", "renewDeadline": "1s", "retryPeriod": "200ms"}
	if raw, err = yaml.Marshal(c); err == nil {
		err = os.WriteFile(config, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.Fault(spec.ControllerRestart, "")
}

// A6: a node vanishes; its addresses come back, and no living pod loses its own.
func TestScenarioA6(t *testing.T) {
	const grace = 6 * time.Second
	l := labtest.Up(t, lab.Options{Nodes: 3})
	shortGrace(t, l, grace)
	l.Apply(pods("a", "node-1", 4) + "---\n" + pods("b", "node-2", 4) + "---\n" + pods("c", "node-3", 4))
	others := map[string]netip.Addr{}
	for _, p := range l.WaitPods() {
		if p.Spec.NodeName != "node-3" {
			others[p.Name] = netip.MustParseAddr(p.Status.PodIP)
		}
	}
	kept := func() error {
		all := allocated(t, l)
		for name, a := range others {
			if all[a].Name != name {
				return fmt.Errorf("%s of pod %s belongs to %+v", a, name, all[a])
			}
		}
		return nil
	}
	labtest.Eventually(t, labtest.Patience, kept)

	l.Delete(datastore.KindNode, "node-3") // the lab cuts its power: no DEL
	began := time.Now()
	for range 2 {
		l.Fault(spec.ControllerKill, "")
		l.Fault(spec.ControllerStart, "")
	}
	labtest.Eventually(t, labtest.Limit(t, 2*grace), func() error {
		if err := kept(); err != nil {
			t.Fatal(err)
		}
		for _, b := range labtest.List[*v1alpha1.IPBlock](l, datastore.KindIPBlock) {
			if b.Spec.Node == "node-3" {
				return fmt.Errorf("IPBlock %s still belongs to node-3", b.Name)
			}
		}
		return nil
	})
	t.Logf("the blocks are free %s after the node's end", time.Since(began))
	if took := time.Since(began); took < grace {
		t.Errorf("the blocks were freed after %s, before the grace period of %s", took, grace)
	}
	for _, node := range []string{"node-1", "node-2"} {
		l.Fault(spec.NodeCheck, node)
	}
	if err := kept(); err != nil {
		t.Error(err)
	}
}
