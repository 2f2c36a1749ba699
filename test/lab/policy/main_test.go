package policy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// dual are the CIDRs of a default Subnet with both families.
var dual = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd00:128::/48")}

// shared is a dual-stack lab that the tests leave as they find it.
var shared = &labtest.Shared{Options: lab.Options{Nodes: 3, Subnets: dual}}

func TestMain(m *testing.M) { labtest.Main(m, shared) }

// cluster is a lab and what the oracle says about it.
type cluster struct {
	*labtest.Lab
	t testing.TB
}

func newCluster(t testing.TB) *cluster { return &cluster{Lab: shared.Get(t), t: t} }

// with is the same cluster for a subtest.
func (c *cluster) with(t testing.TB) *cluster { return &cluster{Lab: c.Lab.With(t), t: t} }

// command is a call of the command line tool for this lab, which ends with the test or after a while.
func (c *cluster) command(args ...string) *exec.Cmd {
	c.t.Helper()
	bin, err := labtest.Bin()
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), labtest.Patience)
	c.t.Cleanup(cancel)
	args = append([]string{"--lab-root", filepath.Dir(c.Directory()), "--lab", c.Name()}, args...)
	return exec.CommandContext(ctx, filepath.Join(bin, "fairlead"), args...)
}

// cli runs the command line tool, which must succeed, and returns all that it says.
func (c *cluster) cli(args ...string) string {
	c.t.Helper()
	out, err := c.command(args...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("fairlead %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// model is what the datastore means at this moment.
func (c *cluster) model() *oracle.Model {
	c.t.Helper()
	return oracle.Read(c.World())
}

// scene applies a manifest for the time of a test, and returns the pods of its
// namespaces when they run.
func (c *cluster) scene(manifest string) map[string]*member {
	c.t.Helper()
	objects, err := datastore.DecodeManifest(strings.NewReader(manifest))
	if err != nil {
		c.t.Fatalf("the test's manifest: %v", err)
	}
	c.t.Cleanup(func() { c.remove(objects) })
	c.Apply(manifest)
	return c.members()
}

// remove deletes objects, those that stand on others first, and waits for the pods.
func (c *cluster) remove(objects []datastore.Object) {
	var pods []string
	for _, o := range slices.Backward(objects) {
		r, err := datastore.LookupObject(o)
		if err != nil {
			c.t.Error(err)
			continue
		}
		if r.Kind == datastore.KindPod {
			pods = append(pods, datastore.KeyOf(o).String())
		}
		ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
		err = c.Store.Delete(ctx, r.Kind, datastore.KeyOf(o), datastore.Preconditions{})
		cancel()
		if err != nil {
			c.t.Errorf("delete %s %s: %v", r.Kind, datastore.KeyOf(o), err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
	defer cancel()
	if err := c.gone(ctx, pods); err != nil {
		c.t.Error(err)
	}
}

// gone waits until no node has any of the pods.
func (c *cluster) gone(ctx context.Context, pods []string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := c.Lab.Lab.Status(ctx)
		if err != nil {
			return err
		}
		left := ""
		for _, n := range s.Nodes {
			for _, p := range n.State.Pods {
				if name := p.Namespace + "/" + p.Name; slices.Contains(pods, name) {
					left = name
				}
			}
		}
		if left == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("pod %s is still there: %w", left, ctx.Err())
		}
	}
}

// member is a pod that runs.
type member struct {
	key   world.Key
	node  string
	ns    *os.File
	addrs []netip.Addr
	ports []probe.Port
}

// addr is the pod's address of a family.
func (m *member) addr(is4 bool) netip.Addr {
	for _, a := range m.addrs {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}

// place is where the pod is, for the oracle.
func (m *member) place() oracle.Place {
	return oracle.Place{Kind: oracle.Pod, Node: m.node, Pod: m.key}
}

// members waits for all pods and returns them by NAMESPACE/NAME.
func (c *cluster) members() map[string]*member {
	c.t.Helper()
	out := map[string]*member{}
	pods := c.WaitPods()
	netns := map[string]string{}
	for _, n := range c.Status().Nodes {
		for _, p := range n.State.Pods {
			netns[p.Namespace+"/"+p.Name] = filepath.Join("/proc", fmt.Sprint(n.Pid), "root/run/netns", p.Netns)
		}
	}
	for _, p := range pods {
		m := &member{key: world.Key{Namespace: p.Namespace, Name: p.Name}, node: p.Spec.NodeName}
		for _, ip := range p.Status.PodIPs {
			m.addrs = append(m.addrs, netip.MustParseAddr(ip.IP))
		}
		for _, x := range p.Spec.Containers {
			for _, port := range x.Ports {
				m.ports = append(m.ports, probe.Port{Protocol: string(port.Protocol), Number: uint16(port.ContainerPort)})
				if port.Protocol == "" {
					m.ports[len(m.ports)-1].Protocol = string(corev1.ProtocolTCP)
				}
			}
		}
		name := p.Namespace + "/" + p.Name
		ns, err := netspace.Open(netns[name])
		if err != nil {
			c.t.Fatalf("pod %s: %v", name, err)
		}
		c.t.Cleanup(func() { _ = ns.Close() })
		m.ns, out[name] = ns, m
	}
	return out
}

// question is one of a table: may from reach a port of to?
type question struct {
	from, to *member
	port     probe.Port
	target   netip.Addr
}

func (q question) String() string {
	return fmt.Sprintf("%s -> %s:%s (%s)", q.from.key, q.to.key, q.port, q.target)
}

// table asks about every port of every pod, from every other, over both families.
func table(members map[string]*member) []question {
	var out []question
	for _, from := range members {
		for _, to := range members {
			for _, port := range to.ports {
				for _, target := range to.addrs {
					if from != to && from.addr(target.Is4()).IsValid() {
						out = append(out, question{from, to, port, target})
					}
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b question) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// expected is what the oracle says about each: does the first packet arrive?
func expected(t testing.TB, m *oracle.Model, questions []question) []bool {
	t.Helper()
	out := make([]bool, len(questions))
	for i, q := range questions {
		proto, err := packet.ParseProtocol(q.port.Protocol)
		if err != nil {
			t.Fatal(err)
		}
		out[i] = m.Judge(nil, oracle.Probe{From: q.from.place(), Packet: packet.Packet{
			Src: q.from.addr(q.target.Is4()), Dst: q.target, Protocol: proto,
			SrcPort: anyPort, DstPort: q.port.Number, SYN: proto == packet.TCP,
		}}).Allowed
	}
	return out
}

// anyPort is a client's: no rule speaks of it.
const anyPort = 49152

// answerTime is how long a probe of a table waits for its answer: a busy machine that
// takes longer is asked again.
const answerTime = 400 * time.Millisecond

// ask sends all questions, and tells which were answered by whom they were for.
func ask(ctx context.Context, questions []question) []bool {
	out := make([]bool, len(questions))
	from := map[*member][]int{}
	for i, q := range questions {
		from[q.from] = append(from[q.from], i)
	}
	slots := probe.NewSlots(probe.AtOnce)
	var wg sync.WaitGroup
	for m, list := range from {
		wg.Go(func() {
			asked := make([]probe.Question, len(list))
			for j, i := range list {
				q := questions[i]
				asked[j] = probe.Question{Protocol: q.port.Protocol, To: netip.AddrPortFrom(q.target, q.port.Number), Timeout: answerTime}
			}
			for j, a := range probe.Ask(ctx, m.ns, asked, slots) {
				out[list[j]] = a.Connected && a.Server == questions[list[j]].to.key.String()
			}
		})
	}
	wg.Wait()
	return out
}

// agree asks until every answer is the oracle's, and returns how long it took until
// that was so: the beginning of the last round.
func (c *cluster) agree(members map[string]*member, deadline time.Duration) time.Duration {
	c.t.Helper()
	took, _ := c.agreeOn(table(members), deadline)
	return took
}

// agreeOn is agree, and returns how many of the questions are to be answered.
func (c *cluster) agreeOn(questions []question, deadline time.Duration) (took time.Duration, allowed int) {
	c.t.Helper()
	began := time.Now()
	want := expected(c.t, c.model(), questions)
	labtest.Eventually(c.t, deadline, func() error {
		took = time.Since(began)
		return differences(questions, want, ask(c.t.Context(), questions))
	})
	for _, yes := range want {
		if yes {
			allowed++
		}
	}
	return took, allowed
}

func differences(questions []question, want, got []bool) error {
	var wrong []string
	for i, q := range questions {
		if want[i] != got[i] {
			wrong = append(wrong, fmt.Sprintf("%s: answered is %t, want %t", q, got[i], want[i]))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d of %d differ from the oracle: %s", len(wrong), len(questions), strings.Join(wrong[:min(5, len(wrong))], "; "))
	}
	return nil
}

// pod is the manifest of a pod with the built-in server; ports are "80/TCP", labels
// YAML such as "app: web".
func pod(namespace, name, node, labels string, ports ...string) string {
	var list []string
	for _, p := range ports {
		number, protocol, _ := strings.Cut(p, "/")
		list = append(list, fmt.Sprintf("{containerPort: %s, protocol: %s}", number, protocol))
	}
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {%s}}
spec:
  nodeName: %s
  containers: [{name: c, image: any, ports: [%s]}]
`, name, namespace, labels, node, strings.Join(list, ", "))
}

func namespace(name, labels string) string {
	return fmt.Sprintf("\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {%s}}\n", name, labels)
}
