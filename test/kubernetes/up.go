package main

import (
	"context"
	_ "embed" // manifests
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/fabric"
	"github.com/fairlead-sdn/fairlead/lab/process"
)

//go:embed manifests/coredns.yaml
var corednsManifest string

// Bounds of starting a cluster. A busy machine is several times slower than an idle one.
const (
	upLimit   = 10 * time.Minute
	downLimit = 2 * time.Minute
)

type upOptions struct {
	nodes int
	cni   string
	// ovs gives every node an Open vSwitch.
	ovs bool
	// manifest that installs Fairlead, and the archive of its image.
	manifest, images string
}

// progress tells how long things took.
type progress struct {
	w     io.Writer
	start time.Time
}

func (p progress) say(format string, args ...any) {
	fmt.Fprintf(p.w, "%6.1fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

// up starts a cluster. What it has started when it fails is for down to remove.
func up(ctx context.Context, l layout, o upOptions, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	if err := o.check(l); err != nil {
		return err
	}
	if err := ensure(ctx, l, w); err != nil {
		return err
	}
	p := progress{w: w, start: time.Now()}
	c := &cluster{layout: l, Nodes: o.nodes, CNI: o.cni}
	if err := os.MkdirAll(l.run(), 0o700); err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	if o.cni == cniFairlead {
		if err := copyFile(l.image("fairlead"), o.images); err != nil {
			return fmt.Errorf("the archive of Fairlead's image (make images): %w", err)
		}
	}
	if err := c.bring(ctx, o, p); err != nil {
		return fmt.Errorf("%w\nlook into %s, then run make kube-down", err, l.run("machines"))
	}
	p.say("the cluster is up: go run ./test/kubernetes kubectl -- get pods -A")
	return nil
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := renameio.NewPendingFile(to)
	if err != nil {
		return err
	}
	defer func() { _ = out.Cleanup() }() // After CloseAtomicallyReplace it does nothing.
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.CloseAtomicallyReplace()
}

func (o upOptions) check(l layout) error {
	switch {
	case unix.Geteuid() != 0:
		return errors.New("it needs root, to make namespaces: run it with sudo")
	case o.nodes < 1 || o.nodes > maxNodes:
		return fmt.Errorf("--nodes: want 1 to %d, not %d", maxNodes, o.nodes)
	case o.cni != cniFairlead && o.cni != cniBridge && o.cni != cniNone:
		return fmt.Errorf("--cni: want %s, %s or %s, not %q", cniFairlead, cniBridge, cniNone, o.cni)
	}
	for _, dir := range []string{"/etc/", "/opt/", "/var/", "/run/"} {
		if strings.HasPrefix(l.root, dir) {
			return fmt.Errorf("the cache directory %s is below %s, which nodes have of their own: set XDG_CACHE_HOME to another", l.root, dir)
		}
	}
	if _, err := os.Stat(l.run("cluster.json")); err == nil {
		return errors.New("a cluster is there already (go run ./test/kubernetes status): run make kube-down first")
	}
	return nil
}

// bring does the work.
func (c *cluster) bring(ctx context.Context, o upOptions, p progress) error {
	if err := c.makePKI(c.Nodes); err != nil {
		return err
	}
	n, err := buildNetwork(c.Nodes)
	defer n.close()
	if err != nil {
		return err
	}
	control, err := c.controlMachine(c.CNI == cniBridge)
	if err != nil {
		return err
	}
	for _, m := range []machine{c.fabricMachine(), c.outsideMachine(), control} {
		if err := c.begin(m, n); err != nil {
			return err
		}
	}
	p.say("machines of the fabric, the outside and the control plane started")
	if err := c.await(ctx, "control"); err != nil {
		return err
	}
	p.say("the API server is ready")
	for i := 1; i <= c.Nodes; i++ {
		m, err := c.nodeMachine(i, c.CNI, o.ovs)
		if err != nil {
			return err
		}
		if err := makeCgroups(m.Name); err != nil {
			return err
		}
		if err := c.begin(m, n); err != nil {
			return err
		}
	}
	if err := c.apply(ctx, corednsManifest); err != nil {
		return err
	}
	if err := c.network(ctx, o, n, p); err != nil {
		return err
	}
	if c.CNI == cniNone {
		return nil
	}
	return c.awaitReady(ctx, p)
}

// begin starts a machine and notes it.
func (c *cluster) begin(m machine, n *network) error {
	r, err := c.start(m, n.namespaces[m.Name])
	if r.Pid != 0 {
		c.Machines = append(c.Machines, r)
		err = errors.Join(err, c.save())
	}
	return err
}

// await waits until a machine has done its steps.
func (c *cluster) await(ctx context.Context, name string) error {
	return poll(ctx, 100*time.Millisecond, func() error {
		if _, err := os.Stat(c.machine(name, "up")); err == nil {
			return nil
		}
		if _, err := c.find(name); err != nil {
			return fmt.Errorf("%w: %s", err, process.Tail(c.machine(name, "init.log")))
		}
		return fmt.Errorf("machine %s is not ready: %s", name, process.Tail(c.machine(name, "init.log")))
	})
}

// network installs what nodes get their network from.
func (c *cluster) network(ctx context.Context, o upOptions, n *network, p progress) error {
	switch c.CNI {
	case cniFairlead:
		raw, err := os.ReadFile(o.manifest)
		if err != nil {
			return fmt.Errorf("the manifest that installs Fairlead: %w", err)
		}
		if err := c.install(ctx, string(raw)); err != nil {
			return err
		}
		// The control plane is no node here. The API server reaches webhooks and what people
		// ask for through it as any machine beside the cluster would.
		route := map[netip.Prefix]netip.Addr{
			netip.MustParsePrefix(podCIDR): nodeAddress(1), netip.MustParsePrefix(podCIDR6): nodeAddress6(1),
		}
		if err := fabric.Configure(n.namespaces["control"], fabric.Interface{Name: "eth0", Routes: route}); err != nil {
			return err
		}
		p.say("%s applied", o.manifest)
	case cniBridge:
		if err := c.bridge(ctx, n); err != nil {
			return err
		}
		p.say("the bridge plugin is configured")
	}
	return nil
}

// install applies a manifest. Objects of kinds that it defines itself may come too early.
func (c *cluster) install(ctx context.Context, manifest string) error {
	return poll(ctx, time.Second, func() error { return c.apply(ctx, manifest) })
}

// nodeList is what is read of the nodes.
type nodeList struct {
	Items []struct {
		Metadata struct{ Name string }
		Spec     struct{ PodCIDR string }
		Status   struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
}

// bridge configures the reference plugin with the address range that the controller
// manager gave to each node, and routes between them.
func (c *cluster) bridge(ctx context.Context, n *network) error {
	routes, err := c.podCIDRs(ctx)
	if err != nil {
		return err
	}
	for cidr, via := range routes {
		for i := 1; i <= c.Nodes; i++ {
			if nodeAddress(i) != via {
				continue
			}
			if err := c.configureBridge(nodeName(i), cidr); err != nil {
				return err
			}
		}
	}
	for name, ns := range n.namespaces {
		link := "eth0"
		switch name {
		case "fabric":
			link = "nodes"
		case "outside":
			continue
		}
		others := map[netip.Prefix]netip.Addr{}
		for cidr, via := range routes {
			if !isNode(name, via) {
				others[cidr] = via
			}
		}
		if err := fabric.Configure(ns, fabric.Interface{Name: link, Routes: others}); err != nil {
			return err
		}
	}
	return nil
}

// podCIDRs waits until every node has its range: range → address of the node.
func (c *cluster) podCIDRs(ctx context.Context) (map[netip.Prefix]netip.Addr, error) {
	routes := map[netip.Prefix]netip.Addr{}
	return routes, poll(ctx, 300*time.Millisecond, func() error {
		var nodes nodeList
		if err := c.get(ctx, &nodes, "nodes"); err != nil {
			return err
		}
		for _, node := range nodes.Items {
			cidr, err := netip.ParsePrefix(node.Spec.PodCIDR)
			if err != nil {
				return fmt.Errorf("the podCIDR of node %s: %w", node.Metadata.Name, err)
			}
			for i := 1; i <= c.Nodes; i++ {
				if nodeName(i) == node.Metadata.Name {
					routes[cidr] = nodeAddress(i)
				}
			}
		}
		if len(routes) < c.Nodes {
			return fmt.Errorf("%d of %d nodes have a podCIDR", len(routes), c.Nodes)
		}
		return nil
	})
}

// configureBridge writes a node's network configuration.
func (c *cluster) configureBridge(node string, cidr netip.Prefix) error {
	list := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "trivial", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}`, cidr)
	r, err := c.find(node)
	if err != nil {
		return err
	}
	// Through the node's own view: an overlay must not be changed from below.
	path := fmt.Sprintf("/proc/%d/root/etc/cni/net.d/10-bridge.conflist", r.Pid)
	return renameio.WriteFile(path, []byte(list), 0o644, renameio.WithTempDir(filepath.Dir(path)))
}

func isNode(name string, a netip.Addr) bool {
	var i int
	_, err := fmt.Sscanf(name, "node%d", &i)
	return err == nil && nodeAddress(i) == a
}

// awaitReady waits for the nodes, cluster DNS, and the images of tests.
func (c *cluster) awaitReady(ctx context.Context, p progress) error {
	if err := poll(ctx, 500*time.Millisecond, func() error { return c.nodesReady(ctx) }); err != nil {
		return err
	}
	p.say("all %d nodes are Ready", c.Nodes)
	if _, err := c.kubectl(ctx, nil, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=180s"); err != nil {
		return err
	}
	p.say("CoreDNS serves")
	for i := 1; i <= c.Nodes; i++ {
		if err := c.await(ctx, nodeName(i)); err != nil {
			return err
		}
	}
	p.say("all nodes have imported all images")
	return nil
}

func (c *cluster) nodesReady(ctx context.Context) error {
	var nodes nodeList
	if err := c.get(ctx, &nodes, "nodes"); err != nil {
		return err
	}
	ready := 0
	waits := ""
	for _, n := range nodes.Items {
		for _, cond := range n.Status.Conditions {
			if cond.Type != "Ready" {
				continue
			}
			if cond.Status == "True" {
				ready++
			} else {
				waits = n.Metadata.Name + ": " + cond.Message
			}
		}
	}
	if ready < c.Nodes {
		return fmt.Errorf("%d of %d nodes are Ready; %s", ready, c.Nodes, waits)
	}
	return nil
}

// down stops a cluster, or what is left of one, and removes everything of it.
func down(ctx context.Context, l layout) error {
	ctx, cancel := context.WithTimeout(ctx, downLimit)
	defer cancel()
	c, err := openCluster(l)
	if errors.Is(err, errNoCluster) {
		return os.RemoveAll(l.run())
	} else if err != nil {
		return err
	}
	var errs []error
	for _, r := range c.Machines {
		errs = append(errs, r.kill(ctx))
	}
	for i := 1; i <= c.Nodes; i++ {
		errs = append(errs, removeCgroups(ctx, nodeName(i)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(l.run())
}

// status says what runs.
func status(ctx context.Context, l layout, w io.Writer) error {
	c, err := openCluster(l)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(c.Machines)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d nodes, network: %s\nmachines: %s\n", c.Nodes, c.CNI, raw)
	out, err := c.kubectl(ctx, nil, "get", "nodes,pods", "-A", "-o", "wide")
	fmt.Fprint(w, out)
	return err
}
