package forwarding

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/run/journal"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// dual are the CIDRs of a default Subnet with both families.
var dual = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd00:128::/48")}

// port is what every pod of these tests serves, on TCP and UDP.
const port = 80

// pod is the manifest of a pod with the built-in server; namespace may be empty.
func pod(namespace, name, node string) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %q}
spec:
  nodeName: %s
  containers: [{name: c, image: any, ports: [{containerPort: 80}, {containerPort: 80, protocol: UDP}]}]
`, name, namespace, node)
}

// addPods makes pods PREFIX1, PREFIX2, … in the namespace default on each of the
// nodes, and waits for all: the pods of node-1 are a1, a2, …, those of node-2 b1, ….
func addPods(l *labtest.Lab, perNode int, nodes ...string) {
	var manifest strings.Builder
	for _, node := range nodes {
		for i := range perNode {
			manifest.WriteString(pod("default", podName(node, i+1), node))
		}
	}
	l.Apply(manifest.String())
	l.WaitPods()
}

// podName is that of the i-th pod of a node.
func podName(node string, i int) string {
	return fmt.Sprintf("%c%d", 'a'+node[len(node)-1]-'1', i)
}

// nodes are the names of a lab's nodes.
func nodes(l *labtest.Lab) []string {
	var out []string
	for _, n := range l.Status().Nodes {
		out = append(out, n.Name)
	}
	return out
}

// addressOf is the address of a pod of the namespace default in a family.
func addressOf(t testing.TB, l *labtest.Lab, name string, v6 bool) netip.Addr {
	t.Helper()
	if !strings.Contains(name, "/") {
		name = "default/" + name
	}
	p := labtest.Get[*corev1.Pod](l, datastore.KindPod, name)
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is6() == v6 {
			return a
		}
	}
	t.Fatalf("pod %s has no address of the family: %v", name, p.Status.PodIPs)
	return netip.Addr{}
}

// inPod opens the network namespace of a pod, "NAME" in the namespace default or
// "NAMESPACE/NAME".
func inPod(t testing.TB, l *labtest.Lab, name string) *os.File {
	t.Helper()
	ns, err := tryPod(l, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// tryPod is inPod for a pod that may not run; the caller closes the file.
func tryPod(l *labtest.Lab, name string) (*os.File, error) {
	namespace, short, found := strings.Cut(name, "/")
	if !found {
		namespace, short = "default", name
	}
	for _, n := range l.Status().Nodes {
		for _, p := range n.State.Pods {
			if p.Namespace == namespace && p.Name == short && p.Netns != "" {
				return netspace.Open(filepath.Join("/proc", fmt.Sprint(n.Pid), "root/run/netns", p.Netns))
			}
		}
	}
	return nil, fmt.Errorf("pod %s has no network namespace", name)
}

// inNode opens the network namespace of a node.
func inNode(t testing.TB, l *labtest.Lab, name string) *os.File {
	t.Helper()
	f, err := netspace.Open(fmt.Sprintf("/proc/%d/ns/net", l.Node(name).Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func status(l *labtest.Lab, node string) admin.Status {
	return labtest.AdminGet[admin.Status](l, node, "/v1/status")
}

func audit(l *labtest.Lab, node string) admin.Audit {
	return labtest.AdminGet[admin.Audit](l, node, "/v1/audit")
}

// changesSince are the changes in the kernel that a node's journal tells of.
func changesSince(l *labtest.Lab, node string, since time.Time) []string {
	var out []string
	for _, e := range labtest.AdminGet[[]journal.Entry](l, node, "/v1/journal") {
		if !e.Time.Before(since) {
			out = append(out, e.Changes...)
		}
	}
	return out
}

// clean waits until a node's kernel is what it should be: audited from outside of the
// reconcile loop, with the first pass done.
func clean(t testing.TB, l *labtest.Lab, node string, deadline time.Duration) time.Duration {
	t.Helper()
	return labtest.Eventually(t, deadline, func() error {
		a, err := labtest.TryAdminGet[admin.Audit](l, node, "/v1/audit")
		if err != nil {
			return err
		}
		if len(a.Differences) > 0 {
			return fmt.Errorf("%s: %d differences, the first: %+v", node, len(a.Differences), a.Differences[0])
		}
		return nil
	})
}

// synced waits until a node's agent follows every kind and may remove things.
func synced(t testing.TB, l *labtest.Lab, node string, deadline time.Duration) time.Duration {
	t.Helper()
	return labtest.Eventually(t, deadline, func() error {
		s, err := labtest.TryAdminGet[admin.Status](l, node, "/v1/status")
		switch {
		case err != nil:
			return err
		case s.NotReady != "":
			return fmt.Errorf("%s is not ready: %s", node, s.NotReady)
		case s.AddOnly:
			return fmt.Errorf("%s only adds: %d kinds are synced", node, len(s.Synced))
		}
		for _, f := range s.Feed {
			if f.Phase != "Watching" {
				return fmt.Errorf("%s: %s is %s: %s", node, f.Kind, f.Phase, f.LastError)
			}
		}
		return nil
	})
}

// tells reports whether a change from outside since then has all the words.
func tells(foreign []apply.Foreign, since time.Time, words ...string) bool {
	return slices.ContainsFunc(foreign, func(f apply.Foreign) bool {
		return !f.Time.Before(since) && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(f.What, w) })
	})
}

// up starts a lab with both families.
func up(t testing.TB, o lab.Options) *labtest.Lab {
	t.Helper()
	if len(o.Subnets) == 0 {
		o.Subnets = dual
	}
	return labtest.Up(t, o)
}
