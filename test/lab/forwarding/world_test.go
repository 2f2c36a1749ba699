package forwarding

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// small is a Subnet of four blocks of eight addresses.
const small = `
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: small}
spec: {vpc: default, cidrs: [10.77.0.0/27], blockSize: {v4: 29}, namespaces: {matchLabels: {subnet: small}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: small, labels: {subnet: small}}
`

// F1: a block changes hands while an agent is stopped; that agent has one route for it
// when it is back, the right one.
func TestScenarioF1BlockChangesHands(t *testing.T) {
	for _, encap := range []string{"VXLAN", "None"} {
		t.Run(encap, func(t *testing.T) {
			l := up(t, lab.Options{Encapsulation: encap})
			hurry(t, l)
			manifest := small
			if encap == "None" {
				manifest = strings.Replace(small, "vpc: default", "vpc: default, transport: Routed, encapsulation: None", 1)
			}
			l.Apply(manifest)
			l.Apply(pod("small", "a", "node-1") + pod("small", "c", "node-3"))
			addPods(l, 1, "node-1")
			l.WaitPods()
			var block string
			for _, o := range labtest.List[*v1alpha1.IPBlock](l, datastore.KindIPBlock) {
				if o.Spec.Subnet == "small" && o.Spec.Node == "node-3" {
					block = o.Spec.CIDR
				}
			}
			if block == "" {
				t.Fatal("node-3 has no block of the Subnet")
			}
			labtest.Eventually(t, labtest.Patience, func() error { return routedVia(l, block, "node-3") })
			l.Fault("agent-kill", "node-1")
			l.Delete(datastore.KindNode, "node-3")
			// node-2 fills its own block and the free ones, and then takes that of node-3.
			var pods strings.Builder
			for i := range 18 {
				pods.WriteString(pod("small", fmt.Sprintf("b%d", i), "node-2"))
			}
			l.Apply(pods.String())
			labtest.Eventually(t, 2*labtest.Patience, func() error {
				for _, o := range labtest.List[*v1alpha1.IPBlock](l, datastore.KindIPBlock) {
					if o.Spec.CIDR == block && o.Spec.Node == "node-2" {
						return nil
					}
				}
				return fmt.Errorf("block %s is not that of node-2", block)
			})
			l.Fault("agent-start", "node-1")
			took := labtest.Eventually(t, 5*time.Second, func() error { return routedVia(l, block, "node-2") })
			t.Logf("%s via node-2 %s after the agent's start", block, took.Round(time.Millisecond))
			clean(t, l, "node-1", 5*time.Second)
			probed := 0
			for _, p := range l.WaitPods() {
				a := netip.MustParseAddr(p.Status.PodIP)
				if p.Namespace != "small" || !netip.MustParsePrefix(block).Contains(a) {
					continue
				}
				probed++
				if err := reach(inPod(t, l, "small/a"), a, "small/"+p.Name, netip.Addr{}); err != nil {
					t.Error(err)
				}
			}
			if probed == 0 {
				t.Errorf("no pod of node-2 has an address of block %s", block)
			}
		})
	}
}

// routedVia wants exactly one way on node-1 for a block, to a node.
func routedVia(l *labtest.Lab, block, node string) error {
	peers, err := labtest.TryAdminGet[[]admin.Peer](l, "node-1", "/v1/peers")
	if err != nil {
		return err
	}
	var via []string
	for _, p := range peers {
		for _, path := range p.Paths {
			if slices.Contains(path.Prefixes, netip.MustParsePrefix(block)) {
				via = append(via, p.Name)
			}
		}
	}
	if !slices.Equal(via, []string{node}) {
		return fmt.Errorf("%s goes via %v, want %s alone", block, via, node)
	}
	return nil
}

// hurry makes the controller give vanished nodes hardly any time.
func hurry(t *testing.T, l *labtest.Lab) {
	t.Helper()
	path := filepath.Join(l.Directory(), "controller.yaml")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	config["vanishedNodeGrace"] = "1s"
	if raw, err = yaml.Marshal(config); err == nil {
		err = os.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.Fault("controller-restart", "")
}

// F9: a node that boots without the datastore does what it knew.
func TestScenarioF9BootWithoutDatastore(t *testing.T) {
	l := up(t, lab.Options{})
	addPods(l, 2, nodes(l)...)
	before := status(l, "node-1")
	b1 := []netip.Addr{addressOf(t, l, "b1", false), addressOf(t, l, "b1", true)}
	l.Fault("agent-restart", "node-1") // one that ends in order saves its world
	l.Fault("datastore-kill", "")
	l.Fault("node-reboot", "node-1")
	took := labtest.Eventually(t, labtest.Patience, func() error {
		s, err := labtest.TryAdminGet[admin.Status](l, "node-1", "/v1/status")
		switch {
		case err != nil:
			return err
		case s.NotReady != "" || !s.AddOnly || s.Counts["peers"] != before.Counts["peers"] || s.Counts["ports"] < 2:
			return fmt.Errorf("not ready %q, add-only %t, counts %v", s.NotReady, s.AddOnly, s.Counts)
		}
		return nil
	})
	t.Logf("node-1 serves %s after the boot, from its checkpoint", took.Round(time.Millisecond))
	words := "not checked by our program"
	if l.OVS() {
		words = "pod address from the underlay"
	}
	if got := l.MustExec("node-1", "nft", "list", "table", "inet", "fairlead"); !strings.Contains(got, "masquerade") || !strings.Contains(got, words) {
		t.Errorf("the rules are not those of before:\n%s", got)
	}
	l.WaitReady("node-1")
	// It only adds: what the pods of before have left in sets stays for now.
	labtest.Eventually(t, labtest.Patience, func() error {
		a := audit(l, "node-1")
		if i := slices.IndexFunc(a.Differences, func(d apply.Difference) bool { return d.Problem != "unexpected" }); i >= 0 {
			return fmt.Errorf("audit: %+v", a.Differences[i])
		}
		return nil
	})
	// The pods of the node are there again, reach the others and are reached.
	for _, to := range b1 {
		labtest.Eventually(t, labtest.Patience, func() error {
			ns, err := tryPod(l, "a1")
			if err != nil {
				return err
			}
			defer ns.Close()
			return reach(ns, to, "default/b1", netip.Addr{})
		})
	}
	// What came meanwhile is only seen afterwards; nothing that was known is lost.
	l.Fault("datastore-start", "")
	back := synced(t, l, "node-1", 5*time.Second)
	t.Logf("in step %s after the datastore's return", back.Round(time.Millisecond))
	l.WaitPods()
	clean(t, l, "node-1", 5*time.Second)
	for _, v6 := range []bool{false, true} {
		now := addressOf(t, l, "a1", v6)
		labtest.Eventually(t, labtest.Patience, func() error {
			return reach(inPod(t, l, "b1"), now, "default/a1", netip.Addr{})
		})
	}
}

// F10: a list that lacks much removes nothing until a second one says the same.
func TestScenarioF10PartialList(t *testing.T) {
	l := up(t, lab.Options{Nodes: 6})
	addPods(l, 1, "node-1", "node-2")
	for _, n := range nodes(l) {
		synced(t, l, n, labtest.Patience)
	}
	peers := status(l, "node-1").Counts["peers"]
	if peers != 5 {
		t.Fatalf("node-1 knows %d peers, want 5", peers)
	}
	// The agents of the nodes that vanish must not write themselves anew, nor the
	// controller clean up after them.
	l.Fault("controller-stop", "")
	var saved []*v1alpha1.NodeNetwork
	for _, n := range []string{"node-3", "node-4", "node-5", "node-6"} {
		l.Fault("agent-stop", n)
	}
	l.Fault("agent-stop", "node-1")
	for _, n := range []string{"node-3", "node-4", "node-5", "node-6"} {
		saved = append(saved, labtest.Get[*v1alpha1.NodeNetwork](l, datastore.KindNodeNetwork, n))
		l.Delete(datastore.KindNodeNetwork, n)
	}
	kernel := watchKernel(t, inNode(t, l, "node-1"))
	began := time.Now()
	l.Fault("agent-start", "node-1")
	feedOf := func() (admin.Feed, admin.Status, error) {
		s, err := labtest.TryAdminGet[admin.Status](l, "node-1", "/v1/status")
		i := slices.IndexFunc(s.Feed, func(f admin.Feed) bool { return f.Kind == "NodeNetwork" })
		if err != nil || i < 0 {
			return admin.Feed{}, s, errors.Join(err, errors.New("no feed of NodeNetworks"))
		}
		return s.Feed[i], s, nil
	}
	labtest.Eventually(t, 5*time.Second, func() error {
		f, s, err := feedOf()
		if err != nil {
			return err
		}
		if !strings.Contains(f.Suspicious, "lacks 4 of 6") || !s.AddOnly || s.Counts["peers"] != peers {
			return fmt.Errorf("feed %+v, add-only %t, %v", f, s.AddOnly, s.Counts)
		}
		if !slices.ContainsFunc(s.Health, func(h health.State) bool {
			return h.Component == "datastore" && strings.Contains(h.Message, "not trusted")
		}) {
			return fmt.Errorf("health does not say so: %+v", s.Health)
		}
		return nil
	})
	// It was a mistake: the objects are there again before the second look.
	for _, o := range saved {
		o.SetResourceVersion("")
		o.SetUID("")
		if _, err := l.Store.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the objects were missing for %s", time.Since(began).Round(time.Millisecond))
	synced(t, l, "node-1", 5*time.Second)
	if f, s, err := feedOf(); err != nil || f.Suspicious != "" || s.Counts["peers"] != peers {
		t.Errorf("afterwards: %+v, %v, %v", f, s.Counts, err)
	}
	if got := changesSince(l, "node-1", began); len(got) > 0 {
		t.Errorf("the mistake changed: %v", got)
	}
	if got := kernel.written(t); len(got) > 0 {
		t.Errorf("the kernel was written to: %v", got)
	}

	// A second time it is no mistake.
	l.Fault("agent-stop", "node-1")
	for _, n := range []string{"node-3", "node-4", "node-5", "node-6"} {
		l.Delete(datastore.KindNodeNetwork, n)
	}
	l.Fault("agent-start", "node-1")
	took := labtest.Eventually(t, 5*time.Second, func() error {
		_, s, err := feedOf()
		if err != nil {
			return err
		}
		if s.Counts["peers"] != 1 || s.AddOnly {
			return fmt.Errorf("add-only %t, %v", s.AddOnly, s.Counts)
		}
		return nil
	})
	t.Logf("believed %s after the agent's start", took.Round(time.Millisecond))
	clean(t, l, "node-1", time.Second)
}
