package cyclonus

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// TestConformance runs the conformance tests of ClusterNetworkPolicy as they are
// published, nothing left out, against the oracle: their manifests and changes go to an
// API of objects in memory, and what they execute in pods, "connect to that address",
// comes to a server here, which answers as the oracle judges the first packet.
func TestConformance(t *testing.T) {
	for _, tt := range []struct {
		name   string
		family int
	}{{"IPv4", 0}, {"IPv6", 1}} {
		t.Run(tt.name, func(t *testing.T) {
			p := &published{t: t, family: tt.family, network: &model{t: t}}
			// The answer is there at once, and never another one.
			s := p.suite(t, config.TimeoutConfig{PokeInterval: time.Millisecond, PokeTimeout: time.Second, RequestTimeout: time.Second})
			s.Run(t, tests.ConformanceTests)
			p.summary(t, len(tests.ConformanceTests))
		})
	}
}

// published is the cluster of the conformance tests. It is their API client, which
// also does the work of the StatefulSets' controller.
type published struct {
	client.Client
	t       *testing.T
	family  int
	network network
	// snap is what the objects mean since the last change.
	snap    atomic.Pointer[world.Snapshot]
	asked   atomic.Int64
	allowed atomic.Int64
}

// network is where the objects are in force.
type network interface {
	// become makes it have these objects and no others of their kinds, and returns the
	// world that they make, when it is in force.
	become(context.Context, []datastore.Object) (*world.Snapshot, error)
	// connect sends the first packet of a flow, of which the oracle says v, and returns
	// why there was no connection, empty if there was.
	connect(ctx context.Context, p oracle.Probe, v oracle.Verdict, timeout time.Duration) (string, error)
}

// suite sets up the published suite for this cluster.
func (p *published) suite(t *testing.T, patience config.TimeoutConfig) *suite.ConformanceTestSuite {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme, policyv1beta1.Install} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	p.Client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&appsv1.StatefulSet{}).Build()
	server := httptest.NewServer(http.HandlerFunc(p.exec))
	t.Cleanup(server.Close)
	kube := rest.Config{Host: server.URL}
	clientSet, err := kubernetes.NewForConfig(&kube)
	if err != nil {
		t.Fatal(err)
	}
	s := suite.New(suite.Options{Client: p, ClientSet: clientSet, KubeConfig: kube, EnableAllSupportedFeatures: true, TimeoutConfig: patience})
	s.Setup(t)
	return s
}

// summary says what was asked; tests that can only pass prove nothing.
func (p *published) summary(t *testing.T, n int) {
	asked, allowed := p.asked.Load(), p.allowed.Load()
	t.Logf("%d tests, %d connections asked for, %d of them allowed", n, asked, allowed)
	if asked == 0 || allowed == 0 || allowed == asked {
		t.Error("no difference was made")
	}
}

// Create an object; a StatefulSet has its pods at once.
func (p *published) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := p.Client.Create(ctx, o, opts...); err != nil {
		return err
	}
	if o.GetObjectKind().GroupVersionKind().Kind == "StatefulSet" {
		if err := p.replicas(ctx, client.ObjectKeyFromObject(o)); err != nil {
			return err
		}
	}
	return p.settle(ctx)
}

// Update an object.
func (p *published) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if err := p.Client.Update(ctx, o, opts...); err != nil {
		return err
	}
	return p.settle(ctx)
}

// Patch an object.
func (p *published) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := p.Client.Patch(ctx, o, patch, opts...); err != nil {
		return err
	}
	return p.settle(ctx)
}

// Delete an object.
func (p *published) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := p.Client.Delete(ctx, o, opts...); err != nil {
		return err
	}
	return p.settle(ctx)
}

func (p *published) replicas(ctx context.Context, key client.ObjectKey) error {
	var set appsv1.StatefulSet
	if err := p.Get(ctx, key, &set); err != nil {
		return err
	}
	for i := range *set.Spec.Replicas {
		name := fmt.Sprintf("%s-%d", set.Name, i)
		labels := maps.Clone(set.Spec.Template.Labels)
		labels[appsv1.StatefulSetPodNameLabel] = name
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: name, Labels: labels}, Spec: set.Spec.Template.Spec}
		if err := p.Client.Create(ctx, pod); err != nil {
			return err
		}
	}
	set.Status.ReadyReplicas = *set.Spec.Replicas
	return p.Status().Update(ctx, &set)
}

// settle brings the objects into force, and writes the pods' addresses to their status.
func (p *published) settle(ctx context.Context) error {
	var namespaces corev1.NamespaceList
	var pods corev1.PodList
	var policies networkingv1.NetworkPolicyList
	var clusterPolicies policyv1beta1.ClusterNetworkPolicyList
	for _, list := range []client.ObjectList{&namespaces, &pods, &policies, &clusterPolicies} {
		if err := p.List(ctx, list); err != nil {
			return err
		}
	}
	var all []datastore.Object
	for i := range namespaces.Items {
		all = append(all, &namespaces.Items[i])
	}
	for i := range pods.Items {
		all = append(all, &pods.Items[i])
	}
	for i := range policies.Items {
		all = append(all, &policies.Items[i])
	}
	for i := range clusterPolicies.Items {
		all = append(all, &clusterPolicies.Items[i])
	}
	snap, err := p.network.become(ctx, all)
	if err != nil {
		return err
	}
	p.snap.Store(snap)
	for _, pod := range pods.Items {
		addr := address(snap, world.Key{Namespace: pod.Namespace, Name: pod.Name}, p.family)
		if pod.Status.PodIP == addr.String() {
			continue
		}
		pod.Status.PodIP = addr.String()
		if err := p.Client.Status().Update(ctx, &pod); err != nil {
			return err
		}
	}
	return nil
}

// address is a pod's of a family, or its node's.
func address(snap *world.Snapshot, key world.Key, family int) netip.Addr {
	pod, ok := snap.Pods.Get(key)
	if !ok {
		return netip.Addr{}
	}
	var all []netip.Addr
	if pod.HostNetwork {
		if n, ok := snap.Nodes.Get(world.Key{Name: pod.Node}); ok {
			all = n.Addresses
		}
	}
	for b := range snap.Blocks.Values() {
		for _, a := range b.Allocations {
			if a.Owner.Namespace == key.Namespace && a.Owner.Name == key.Name {
				all = append(all, a.Addr)
			}
		}
	}
	for _, a := range all {
		if a.Is4() == (family == 0) {
			return a
		}
	}
	return netip.Addr{}
}

// exec answers POST /api/v1/namespaces/NS/pods/POD/exec.
func (p *published) exec(w http.ResponseWriter, r *http.Request) {
	part := strings.Split(r.URL.Path, "/")
	if len(part) != 8 || part[7] != "exec" {
		http.Error(w, fmt.Sprintf("%s %s", r.Method, r.URL), http.StatusBadRequest)
		return
	}
	options := &remotecommand.Options{Stdout: true, Stderr: true}
	remotecommand.ServeExec(w, r, connector{p, part[4]}, part[6], "", "", r.URL.Query()["command"], options, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
}

// connector is what runs in the pods of a namespace.
type connector struct {
	p         *published
	namespace string
}

// ExecInContainer runs "/agnhost connect --timeout=T --protocol=P ADDRESS:PORT", which
// prints nothing if it has connected.
func (c connector) ExecInContainer(ctx context.Context, pod, _, _ string, cmd []string, _ io.Reader, _, stderr io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if len(cmd) != 5 || cmd[0] != "/agnhost" || cmd[1] != "connect" {
		return fmt.Errorf("a command that this test does not know: %q", cmd)
	}
	protocol, err1 := packet.ParseProtocol(strings.TrimPrefix(cmd[3], "--protocol="))
	to, err2 := netip.ParseAddrPort(cmd[4])
	if err1 != nil || err2 != nil {
		return fmt.Errorf("%q: %w, %w", cmd, err1, err2)
	}
	timeout, err := time.ParseDuration(strings.TrimPrefix(cmd[2], "--timeout="))
	if err != nil {
		return fmt.Errorf("%q: %w", cmd, err)
	}
	snap := c.p.snap.Load()
	key := world.Key{Namespace: c.namespace, Name: pod}
	from, ok := snap.Pods.Get(key)
	if !ok {
		return fmt.Errorf("pod %s does not exist", key)
	}
	probe := oracle.Probe{
		From: oracle.Place{Kind: oracle.Pod, Node: from.Node, Pod: key},
		Packet: packet.Packet{
			Src: address(snap, key, c.p.family), Dst: to.Addr(), Protocol: protocol, SrcPort: 49152, DstPort: to.Port(), SYN: protocol == packet.TCP,
		},
	}
	why, err := c.p.network.connect(ctx, probe, oracle.Judge(snap, nil, probe), timeout)
	if err != nil {
		return err
	}
	c.p.asked.Add(1)
	if why == "" {
		c.p.allowed.Add(1)
		return nil
	}
	_, err = fmt.Fprintf(stderr, "%s\n", why)
	return err
}

// model is a network in which the oracle decides, and what is rendered is held against it.
type model struct {
	t        *testing.T
	rendered *rendered
}

func (m *model) become(_ context.Context, objects []datastore.Object) (*world.Snapshot, error) {
	c := newCluster()
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			c.pod(m.t, pod.Namespace, pod.Name, pod.Labels, pod.Spec)
			continue
		}
		kind, err := datastore.KindOf(o)
		if err != nil {
			return nil, err
		}
		c.convert(m.t, world.Kind(kind), o)
	}
	snap := c.snapshot()
	m.rendered = render(m.t, snap)
	return snap, nil
}

func (m *model) connect(_ context.Context, p oracle.Probe, v oracle.Verdict, _ time.Duration) (string, error) {
	if arrives, way := m.rendered.send(m.t, p); arrives != v.Allowed {
		m.t.Errorf("%s to %s/%s: the oracle says %v:%s\nby what is rendered: %s", p.From, p.Packet.Dst, p.Packet.Protocol, v.Allowed, say(v), way)
	}
	if v.Allowed {
		return "", nil
	}
	return fmt.Sprintf("TIMEOUT: %s to %s/%s:%s", p.From, p.Packet.Dst, p.Packet.Protocol, say(v)), nil
}
