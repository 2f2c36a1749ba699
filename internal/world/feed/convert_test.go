package feed_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

var byValue = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// What somebody wrote past all checks under a name that cannot be is no object.
func TestConvertRefusesNames(t *testing.T) {
	for _, name := range []string{"", "A", "a b", "a\nb", `"`, "../../x", "$(x)", "é", strings.Repeat("a", 254)} {
		for _, o := range []datastore.Object{&v1alpha1.VPC{}, &v1alpha1.Subnet{}, &corev1.Node{}, &corev1.Namespace{}, &corev1.Pod{}} {
			o.SetName(name)
			kind, err := datastore.KindOf(o)
			if err != nil {
				t.Fatal(err)
			}
			value, problems := feed.Convert(world.Kind(kind), o)
			if value != nil || len(problems) != 1 || problems[0].Reason != "InvalidName" {
				t.Errorf("%T %q: %v, %v", o, name, value, problems)
			}
		}
	}
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = "a", "../x"
	if value, problems := feed.Convert(world.KindPod, pod); value != nil || len(problems) != 1 {
		t.Errorf("pod in a namespace that cannot be: %v, %v", value, problems)
	}
}

func TestConvert(t *testing.T) {
	created := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name   string
		kind   world.Kind
		object datastore.Object
		yaml   string
		want   any
		fields []string // of the problems
	}{
		{
			name: "node", kind: world.KindNode, object: &corev1.Node{},
			yaml: `{metadata: {name: a, uid: u, labels: {zone: x}}, status: {addresses: [{type: Hostname, address: a}, {type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "2001:db8::1"}, {type: InternalIP, address: "fe80::1%eth0"}, {type: ExternalIP, address: 198.51.100.1}]}}`,
			want: &world.Node{
				Name: "a", UID: "u", Labels: map[string]string{"zone": "x"}, Addresses: addrs("192.0.2.1", "2001:db8::1"),
				ExternalAddresses: addrs("198.51.100.1"),
			}, fields: []string{"status.addresses[3]"},
		},
		{
			name: "namespace", kind: world.KindNamespace, object: &corev1.Namespace{},
			yaml: `{metadata: {name: web, uid: u, labels: {team: a}}}`,
			want: &world.Namespace{Name: "web", UID: "u", Labels: map[string]string{"team": "a"}},
		},
		{
			name: "pod", kind: world.KindPod, object: &corev1.Pod{},
			yaml: `
metadata: {name: p, namespace: web, uid: u, labels: {app: p}, annotations: {fairlead.dev/ip: 10.0.0.7, fairlead.dev/subnet: blue, kubernetes.io/config.hash: h, other: x}}
spec:
  nodeName: a
  hostNetwork: true
  initContainers: [{name: i, ports: [{containerPort: 1}]}, {name: s, restartPolicy: Always, ports: [{containerPort: 15090, name: sidecar}]}]
  containers: [{name: c, ports: [{name: http, containerPort: 80}, {containerPort: 53, protocol: UDP}, {containerPort: 70000}, {containerPort: 7, protocol: QUIC}]}]
status: {phase: Succeeded, podIP: 10.0.0.7, podIPs: [{ip: 10.0.0.7}, {ip: nonsense}]}`,
			want: &world.Pod{
				Namespace: "web", Name: "p", UID: "u", Node: "a", Labels: map[string]string{"app": "p"}, HostNetwork: true, Finished: true,
				Addresses: addrs("10.0.0.7"), WantSubnet: "blue", WantIP: "10.0.0.7", StaticUID: "h",
				Ports: []world.ContainerPort{{Name: "sidecar", Protocol: packet.TCP, Port: 15090}, {Name: "http", Protocol: packet.TCP, Port: 80}, {Protocol: packet.UDP, Port: 53}},
			},
			fields: []string{"status.podIPs[1]", "spec.containers[0].ports[2].containerPort", "spec.containers[0].ports[3].protocol"},
		},
		{
			name: "vpc", kind: world.KindVPC, object: &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}},
			yaml: `{metadata: {name: v}, spec: {isolation: Tenant, namespaces: {matchExpressions: [{key: k, operator: Nonsense, values: [a]}]}}, status: {vni: 77}}`,
			want: &world.VPC{Name: "v", Created: created, Tenant: true, VNI: 77, Namespaces: &world.Selector{MatchExpressions: []world.Requirement{{Key: "k", Operator: "Nonsense", Values: []string{"a"}}}}},
		},
		{
			name: "vpc, nil and empty selectors differ", kind: world.KindVPC, object: &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}},
			yaml: `{metadata: {name: v}, spec: {namespaces: {}}, status: {vni: -1}}`,
			want: &world.VPC{Name: "v", Created: created, Namespaces: &world.Selector{}}, fields: []string{"status.vni"},
		},
		{
			name: "subnet, all said", kind: world.KindSubnet, object: &v1alpha1.Subnet{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}},
			yaml: `{metadata: {name: s}, spec: {vpc: v, cidrs: [10.1.0.0/16, bad, "fd00::/64"], transport: Routed, encapsulation: None, blockSize: {v4: 28, v6: 120}, exclude: [10.1.0.9, 10.1.1.0/24, x], gateway: [10.1.0.1], natOutgoing: false}}`,
			want: &world.Subnet{
				Name: "s", Created: created, VPC: "v", CIDRs: prefixes("10.1.0.0/16", "fd00::/64"), BadCIDRs: []string{"bad"}, Transport: world.Routed,
				Encapsulation: world.NoEncapsulation, BlockBits4: 28, BlockBits6: 120, Exclude: prefixes("10.1.0.9/32", "10.1.1.0/24"), Gateway: addrs("10.1.0.1"),
			},
			fields: []string{"spec.exclude[2]"},
		},
		{
			name: "subnet, nothing said", kind: world.KindSubnet, object: &v1alpha1.Subnet{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}},
			yaml: `{metadata: {name: s}, spec: {cidrs: [10.1.0.0/16]}}`,
			want: &world.Subnet{
				Name: "s", Created: created, VPC: "default", CIDRs: prefixes("10.1.0.0/16"), Transport: world.Overlay, Encapsulation: world.VXLAN,
				BlockBits4: 26, BlockBits6: 122, NATOutgoing: true,
			},
		},
		{
			name: "subnet, nonsense", kind: world.KindSubnet, object: &v1alpha1.Subnet{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}},
			yaml: `{metadata: {name: s}, spec: {cidrs: ["::ffff:10.0.0.0/104"], transport: Pigeon, encapsulation: Bag, blockSize: {v4: 99, v6: -1}}}`,
			want: &world.Subnet{
				Name: "s", Created: created, VPC: "default", BadCIDRs: []string{"::ffff:10.0.0.0/104"}, Transport: world.Underlay,
				Encapsulation: world.NoEncapsulation, BlockBits4: 26, BlockBits6: 122, NATOutgoing: true,
			},
			fields: []string{"spec.blockSize.v4", "spec.blockSize.v6", "spec.transport", "spec.encapsulation"},
		},
		{
			name: "block", kind: world.KindBlock, object: &v1alpha1.IPBlock{},
			yaml: `{metadata: {name: blk}, spec: {subnet: s, cidr: 10.1.0.64/26, node: a, allocations: {10.1.0.100: {namespace: web, name: b, uid: "2"}, 10.1.0.70: {name: node/a/tunnel}, x: {name: c}}, lent: {10.1.0.99: b, bad: c}}}`,
			want: &world.Block{
				Name: "blk", Subnet: "s", CIDR: netip.MustParsePrefix("10.1.0.64/26"), Node: "a",
				Allocations: []world.Allocation{
					{Addr: netip.MustParseAddr("10.1.0.70"), Owner: world.Owner{Name: "node/a/tunnel"}},
					{Addr: netip.MustParseAddr("10.1.0.100"), Owner: world.Owner{Namespace: "web", Name: "b", UID: "2"}},
				},
				Lent: []world.Loan{{Addr: netip.MustParseAddr("10.1.0.99"), Node: "b"}},
			},
			fields: []string{"spec.allocations", "spec.lent"},
		},
		{
			name: "node network", kind: world.KindNodeNetwork, object: &v1alpha1.NodeNetwork{},
			yaml: `{metadata: {name: a}, spec: {addresses: ["2001:db8::1/64", 192.0.2.1/24, 192.0.2.2/24, x], vtepMAC: "06:00:00:00:00:01", mtu: 1500, plane: linux}, status: {wanted: [s], borrowed: {10.1.0.9: {namespace: web, name: p}}}}`,
			want: &world.NodeNetwork{
				Name: "a", Addresses: prefixes("192.0.2.1/24", "2001:db8::1/64"), VTEPMAC: packet.MAC{6, 0, 0, 0, 0, 1}, MTU: 1500, Plane: "linux", Wanted: []string{"s"},
				Borrowed: []world.Allocation{{Addr: netip.MustParseAddr("10.1.0.9"), Owner: world.Owner{Namespace: "web", Name: "p"}}},
			},
			fields: []string{"spec.addresses[3]", "spec.addresses"},
		},
		{
			name: "net namespace", kind: world.KindNetNamespace, object: &v1alpha1.NetNamespace{},
			yaml: `{metadata: {name: web}, spec: {vni: 16777216, global: true}}`,
			want: &world.NetNamespace{Name: "web", Global: true}, fields: []string{"spec.vni"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := yaml.UnmarshalStrict([]byte(tt.yaml), tt.object); err != nil {
				t.Fatal(err)
			}
			got, problems := feed.Convert(tt.kind, tt.object)
			if diff := cmp.Diff(tt.want, got, byValue); diff != "" {
				t.Errorf("value (-want +got):\n%s", diff)
			}
			var fields []string
			for _, p := range problems {
				fields = append(fields, p.Field)
				if p.Kind != tt.kind || p.Key.Name != tt.object.GetName() || p.Reason == "" || p.Message == "" {
					t.Errorf("problem %+v does not say what it is about", p)
				}
			}
			if diff := cmp.Diff(tt.fields, fields); diff != "" {
				t.Errorf("fields with problems (-want +got):\n%s", diff)
			}
		})
	}
}

// A policy under such a name is one all the same, and so is what only stands for one.
func TestConvertKeepsPolicies(t *testing.T) {
	policy := &networkingv1.NetworkPolicy{}
	policy.Namespace, policy.Name = "shop", "Deny All\n"
	value, problems := feed.Convert(world.KindNetworkPolicy, policy)
	p, ok := value.(*world.NetworkPolicy)
	if !ok || p.Namespace != "shop" || !strings.HasPrefix(p.Name, "invalid-name-") || len(problems) != 1 || problems[0].Key.Name != p.Name || !strings.Contains(problems[0].Message, `"Deny All\n"`) {
		t.Errorf("%+v, %v", value, problems)
	}
	cluster := &policyv1beta1.ClusterNetworkPolicy{}
	if value, problems = feed.Convert(world.KindClusterNetworkPolicy, cluster); value == nil || len(problems) != 1 {
		t.Errorf("%+v, %v", value, problems)
	}
	for kind, key := range map[datastore.Kind]datastore.Key{
		datastore.KindNetworkPolicy: {Namespace: "shop", Name: "web"}, datastore.KindClusterNetworkPolicy: {Name: "web"},
	} {
		o := datastore.StandIn(kind, key, nil, "1", errors.New("torn"))
		value, problems := feed.Convert(world.Kind(kind), o)
		if value == nil || len(problems) != 1 || problems[0].Reason != "Unreadable" || !strings.HasPrefix(problems[0].Message, "torn: ") || problems[0].Key.Name != "web" {
			t.Errorf("%s: %+v, %v", kind, value, problems)
		}
	}
}

func TestConvertUnknownType(t *testing.T) {
	got, problems := feed.Convert(world.KindPod, &corev1.Service{})
	if got != nil || len(problems) != 1 {
		t.Errorf("got %v, %v", got, problems)
	}
}

// FuzzConvert feeds every kind with whatever decodes. S9: nothing panics, and what
// comes out can be put into a world.
func FuzzConvert(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a"},"spec":{"cidr":"10.0.0.0/8","cidrs":["::/0"],"allocations":{"::":{"name":""}},"addresses":["x"],"vni":-1}}`))
	f.Add([]byte(`{"metadata":{"name":"a","namespace":"n"},"spec":{"containers":[{"ports":[{"containerPort":-1,"protocol":"\u0000"}]}]},"status":{"podIPs":[{"ip":"%"}],"addresses":[{"type":"InternalIP","address":"::%"}]}}`))
	f.Add([]byte(`{"metadata":{"name":"a"},"spec":{"lent":{"::1":"x","0:0::1":"y"},"exclude":["10.0.0.0/8"],"gateway":["1.1.1.1"],"blockSize":{"v4":-2147483648}}}`))
	kinds := map[world.Kind]func() datastore.Object{
		world.KindNode:                 func() datastore.Object { return &corev1.Node{} },
		world.KindNamespace:            func() datastore.Object { return &corev1.Namespace{} },
		world.KindPod:                  func() datastore.Object { return &corev1.Pod{} },
		world.KindVPC:                  func() datastore.Object { return &v1alpha1.VPC{} },
		world.KindSubnet:               func() datastore.Object { return &v1alpha1.Subnet{} },
		world.KindBlock:                func() datastore.Object { return &v1alpha1.IPBlock{} },
		world.KindNodeNetwork:          func() datastore.Object { return &v1alpha1.NodeNetwork{} },
		world.KindNetNamespace:         func() datastore.Object { return &v1alpha1.NetNamespace{} },
		world.KindNetworkPolicy:        func() datastore.Object { return &networkingv1.NetworkPolicy{} },
		world.KindClusterNetworkPolicy: func() datastore.Object { return &policyv1beta1.ClusterNetworkPolicy{} },
	}
	f.Add([]byte(`{"spec":{"podSelector":{"matchExpressions":[{"operator":"x"}]},"policyTypes":[""],"ingress":[{"from":[{},{"ipBlock":{"cidr":"%","except":[""]}}],"ports":[{"port":"\u0000","endPort":-1},{}]}],"egress":[]}}`))
	f.Add([]byte(`{"spec":{"tier":"","priority":-1,"subject":{},"ingress":[{"from":[{}],"protocols":[{},{"tcp":{}}]}],"egress":[{"to":[{"networks":["x"],"domainNames":["*"]},{"nodes":{}}],"protocols":[{"sctp":{"destinationPort":{"range":{}}}}]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for kind, make := range kinds {
			o := make()
			if json.Unmarshal(data, o) != nil {
				continue
			}
			value, problems := feed.Convert(kind, o)
			if value == nil {
				if len(problems) != 1 || problems[0].Reason != "InvalidName" {
					t.Fatalf("%s converts to nothing: %v", kind, problems)
				}
				continue
			}
			key := world.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
			if len(problems) > 0 && problems[0].Reason == "InvalidName" {
				key = problems[0].Key // A policy counts all the same.
			}
			if s := world.NewStore(nil).Apply(world.Change{Kind: kind, Key: key, Object: value}); s.Revision != 1 {
				t.Fatalf("the world did not take a %s: %+v", kind, value)
			}
		}
	})
}
