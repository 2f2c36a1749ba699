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
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme, policyv1beta1.Install} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			p := &published{t: t, family: tt.family, Client: fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&appsv1.StatefulSet{}).Build()}
			server := httptest.NewServer(http.HandlerFunc(p.exec))
			defer server.Close()
			kube := rest.Config{Host: server.URL}
			clientSet, err := kubernetes.NewForConfig(&kube)
			if err != nil {
				t.Fatal(err)
			}
			s := suite.New(suite.Options{
				Client: p, ClientSet: clientSet, KubeConfig: kube, EnableAllSupportedFeatures: true,
				// The answer is there at once, and never another one.
				TimeoutConfig: config.TimeoutConfig{PokeInterval: time.Millisecond, PokeTimeout: time.Second, RequestTimeout: time.Second},
			})
			s.Setup(t)
			s.Run(t, tests.ConformanceTests)
			t.Logf("%d tests, %d connections, %d of them allowed", len(tests.ConformanceTests), p.asked.Load(), p.allowed.Load())
			if p.asked.Load() == 0 || p.allowed.Load() == 0 || p.allowed.Load() == p.asked.Load() {
				t.Error("no difference was made")
			}
		})
	}
}

// published is the cluster of the conformance tests. It is their API client, which
// also does the work of the StatefulSets' controller.
type published struct {
	client.Client
	t       *testing.T
	family  int
	asked   atomic.Int64
	allowed atomic.Int64
}

// Create an object; a StatefulSet has its pods at once.
func (p *published) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := p.Client.Create(ctx, o, opts...); err != nil || o.GetObjectKind().GroupVersionKind().Kind != "StatefulSet" {
		return err
	}
	var set appsv1.StatefulSet
	if err := p.Get(ctx, client.ObjectKeyFromObject(o), &set); err != nil {
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
	if err := p.Status().Update(ctx, &set); err != nil {
		return err
	}
	_, err := p.world(ctx, true)
	return err
}

// world makes the world of all objects. The pods' addresses depend on their order only;
// publish writes them to the pods' status.
func (p *published) world(ctx context.Context, publish bool) (*world.Snapshot, error) {
	var namespaces corev1.NamespaceList
	var pods corev1.PodList
	var policies networkingv1.NetworkPolicyList
	var clusterPolicies policyv1beta1.ClusterNetworkPolicyList
	for _, list := range []client.ObjectList{&namespaces, &pods, &policies, &clusterPolicies} {
		if err := p.List(ctx, list); err != nil {
			return nil, err
		}
	}
	c := newCluster()
	for _, n := range namespaces.Items {
		c.convert(p.t, world.KindNamespace, &n)
	}
	for _, pod := range pods.Items {
		addr := c.pod(p.t, pod.Namespace, pod.Name, pod.Labels, pod.Spec)[p.family].String()
		if !publish || pod.Status.PodIP == addr {
			continue
		}
		pod.Status.PodIP = addr
		if err := p.Client.Status().Update(ctx, &pod); err != nil {
			return nil, err
		}
	}
	for _, np := range policies.Items {
		c.convert(p.t, world.KindNetworkPolicy, &np)
	}
	for _, cnp := range clusterPolicies.Items {
		c.convert(p.t, world.KindClusterNetworkPolicy, &cnp)
	}
	return c.snapshot(), nil
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
		return fmt.Errorf("%q: %v, %v", cmd, err1, err2)
	}
	snap, err := c.p.world(ctx, false)
	if err != nil {
		return err
	}
	key := world.Key{Namespace: c.namespace, Name: pod}
	from, ok := snap.Pods.Get(key)
	if !ok {
		return fmt.Errorf("pod %s does not exist", key)
	}
	var src netip.Addr
	for b := range snap.Blocks.Values() {
		for _, a := range b.Allocations {
			if a.Owner.UID == from.UID && a.Addr.BitLen() == to.Addr().BitLen() {
				src = a.Addr
			}
		}
	}
	probe := oracle.Probe{
		From:   oracle.Place{Kind: oracle.Pod, Node: from.Node, Pod: key},
		Packet: packet.Packet{Src: src, Dst: to.Addr(), Protocol: protocol, SrcPort: 49152, DstPort: to.Port(), SYN: protocol == packet.TCP},
	}
	v := oracle.Judge(snap, nil, probe)
	if arrives, way := render(c.p.t, snap).send(c.p.t, probe); arrives != v.Allowed {
		c.p.t.Errorf("%s to %s/%s: the oracle says %v:%s\nby what is rendered: %s", key, to, protocol, v.Allowed, say(v), way)
	}
	c.p.asked.Add(1)
	if v.Allowed {
		c.p.allowed.Add(1)
		return nil
	}
	_, err = fmt.Fprintf(stderr, "TIMEOUT: %s to %s/%s:%s\n", key, to, protocol, say(v))
	return err
}
