package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/memplane"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests: all of them are for something that
// happens at once.
const patience = 20 * time.Second

// plane is a node's memory plane, which outlives agents as a kernel does.
type plane struct {
	*memplane.Plane
	mu      sync.Mutex
	applied chan struct{} // closed after every Apply
	drops   error
	shadows []apply.Difference
}

func newPlane(node string) *plane {
	return &plane{Plane: memplane.NewFabric().Node(node), applied: make(chan struct{})}
}

func (p *plane) Apply(ctx context.Context, n intent.Node, o apply.Options) (apply.Report, error) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(p.applied)
		p.applied = make(chan struct{})
	}()
	return p.Plane.Apply(ctx, n, o)
}

func (p *plane) CheckPort(_ context.Context, port intent.Port, _ int) ([]apply.Difference, error) {
	if !slices.ContainsFunc(p.Intent().Ports, port.Equal) {
		return []apply.Difference{{Subsystem: "link", Object: port.HostInterface, Problem: "missing"}}, nil
	}
	return nil, nil
}

func (p *plane) Drops(context.Context) (map[string]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return map[string]uint64{"spoofed": 3}, p.drops
}

func (p *plane) Shadowing(context.Context) ([]apply.Difference, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shadows, nil
}

func (p *plane) Features() []string { return []string{"memory"} }

// until waits until the kernel is as it should be.
func (p *plane) until(t *testing.T, what string, ok func(intent.Node) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		applied := p.applied
		p.mu.Unlock()
		if ok(p.Intent()) {
			return
		}
		select {
		case <-applied:
		case <-deadline:
			t.Fatalf("not in time: %s; the plane has %+v", what, p.Intent())
		}
	}
}

// namespaces are all alive, but for those that are dead.
type namespaces struct{ dead sync.Map }

func (n *namespaces) State(path string) (attach.NamespaceState, error) {
	if _, dead := n.dead.Load(path); dead {
		return attach.NamespaceDead, nil
	}
	return attach.NamespaceAlive, nil
}

// node is a machine on which agents live one after the other.
type node struct {
	t      *testing.T
	dir    string
	store  datastore.Store
	plane  *plane
	spaces namespaces
	plugin Plugin
	agent  *Agent
	client *admin.Client
}

func newNode(t *testing.T, store datastore.Store) *node {
	// Paths of sockets are short.
	dir, err := os.MkdirTemp("", "fl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &node{t: t, dir: dir, store: store, plane: newPlane("n1")}
}

func (n *node) config() Config {
	return Config{
		Agent: config.Agent{
			Node: "n1", Plane: "linux", StateDir: filepath.Join(n.dir, "state"), RunDir: filepath.Join(n.dir, "run"),
			Resync: config.Duration{Duration: time.Minute},
		},
		lookPeriod: time.Millisecond, Version: "v9", Store: n.store, Plane: n.plane, Namespaces: &n.spaces, Plugin: n.plugin, Logger: slog.New(slog.DiscardHandler),
		findUnderlay: func(string) (underlay, error) {
			return underlay{device: "eth0", addresses: prefixes("172.30.0.11/24"), mtu: 1500}, nil
		},
	}
}

// boot starts an agent and returns when its sockets are there; end ends it.
func (n *node) boot() (end func()) {
	n.t.Helper()
	a, err := New(n.config())
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	for _, name := range []string{"cni.sock", "admin.sock"} {
		for deadline := time.Now().Add(patience); ; {
			if _, err := os.Stat(filepath.Join(n.dir, "run", name)); err == nil {
				break
			}
			select {
			case err := <-done:
				n.t.Fatalf("the agent ended: %v", err)
			default:
			}
			if time.Now().After(deadline) {
				n.t.Fatalf("%s does not appear", name)
			}
		}
	}
	client := admin.NewClient(filepath.Join(n.dir, "run", "admin.sock"))
	n.agent, n.client = a, client
	var once sync.Once
	end = func() {
		once.Do(func() {
			client.Close()
			cancel()
			select {
			case err := <-done:
				if err != nil {
					n.t.Errorf("Run: %v", err)
				}
			case <-time.After(patience):
				n.t.Error("the agent does not end")
			}
		})
	}
	n.t.Cleanup(end)
	return end
}

// cni calls the agent as the plugin does.
func (n *node) cni(command cniapi.Command, container, pod, conf string) (int, map[string]any) {
	n.t.Helper()
	body, err := json.Marshal(cniapi.Request{
		Command: command, ContainerID: container, Netns: "/run/netns/" + container, IfName: "eth0",
		Args: "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=" + pod, Config: []byte(conf),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(n.dir, "run", "cni.sock"))
		},
	}}
	resp, err := client.Post("http://agent"+cniapi.URLPath, "application/json", bytes.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	out := map[string]any{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &out); err != nil {
			n.t.Fatalf("%s: %s: %v", command, raw, err)
		}
	}
	if resp.Header.Get(cniapi.HeaderExit) == "0" {
		return 0, out
	}
	code, _ := out["code"].(float64)
	return int(code), out
}

// add is ADD as runtimes call it: again while the answer is to try again.
func (n *node) add(container, pod string) []string {
	n.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		code, out := n.cni(cniapi.Add, container, pod, conf)
		if code == 0 {
			return addressesOf(n.t, out)
		}
		if code != int(cniapi.CodeTryAgain) || time.Now().After(deadline) {
			n.t.Fatalf("ADD: %v", out)
		}
	}
}

const conf = `{"cniVersion":"1.1.0","name":"fairlead","type":"fairlead-cni"}`

// addresses of a CNI result.
func addressesOf(t *testing.T, result map[string]any) []string {
	t.Helper()
	var out []string
	ips, _ := result["ips"].([]any)
	for _, ip := range ips {
		m, _ := ip.(map[string]any)
		out = append(out, fmt.Sprint(m["address"]))
	}
	if len(out) == 0 {
		t.Fatalf("no address in %v", result)
	}
	return out
}

const clusterObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
---
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: default}
status: {vni: 4096}
---
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: default}
spec: {cidrs: [10.128.0.0/16, "fd00:10::/64"]}
---
apiVersion: fairlead.dev/v1alpha1
kind: NodeNetwork
metadata: {name: n2}
spec: {addresses: [172.30.0.12/24], vtepMAC: "06:00:00:00:00:02", mtu: 1500, plane: linux}
---
apiVersion: fairlead.dev/v1alpha1
kind: IPBlock
metadata: {name: default.0a80ff00-26}
spec: {subnet: default, cidr: 10.128.255.0/26, node: n2, allocations: {10.128.255.1: {name: node/n2/tunnel}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {nodeName: n1, containers: [{name: c}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop}
spec: {nodeName: n1, containers: [{name: c}]}
`

func cluster(t *testing.T) *memory.Store {
	t.Helper()
	s := memory.New(memory.Config{})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	objects, err := datastore.DecodeManifest(strings.NewReader(clusterObjects))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		made, err := s.Create(t.Context(), o)
		if r, lerr := datastore.LookupObject(o); err == nil && lerr == nil && r.HasStatus {
			o.SetResourceVersion(made.GetResourceVersion())
			_, err = s.UpdateStatus(t.Context(), o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// awaitNodeNetwork waits until the datastore has what the node says of itself.
func awaitNodeNetwork(t *testing.T, s datastore.Store, ok func(*v1alpha1.NodeNetwork) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	list, err := s.List(ctx, kindNodeNetwork)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(ctx, kindNodeNetwork, list.ResourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, o := range list.Items {
		if n, _ := o.(*v1alpha1.NodeNetwork); n != nil && n.Name == "n1" && ok(n) {
			return
		}
	}
	for e := range w.Events() {
		if n, _ := e.Object.(*v1alpha1.NodeNetwork); n != nil && n.Name == "n1" && ok(n) {
			return
		}
	}
	t.Fatal("the NodeNetwork does not become what it should be")
}

func hasPort(n intent.Node, container string) bool {
	return slices.ContainsFunc(n.Ports, func(p intent.Port) bool { return p.ID == container+"/eth0" })
}
