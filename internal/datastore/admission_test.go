package datastore

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
)

// decode reads one object from YAML.
func decode(t *testing.T, in string) Object {
	t.Helper()
	objects, err := DecodeManifest(strings.NewReader(in))
	if err != nil || len(objects) != 1 {
		t.Fatalf("%v, %v in\n%s", objects, err, in)
	}
	DefaultNamespace(objects, "default")
	return objects[0]
}

func TestAdmissionIsInjectable(t *testing.T) {
	moment := time.Date(2026, 11, 30, 12, 0, 0, 987654321, time.FixedZone("x", 3600))
	a := &Admission{Now: func() time.Time { return moment }, NewUID: func() types.UID { return "u-12345" }}
	o, err := a.Create(decode(t, "apiVersion: v1\nkind: Namespace\nmetadata: {generateName: team-, selfLink: /x, deletionGracePeriodSeconds: 3}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if o.GetName() != "team-12345" || o.GetUID() != "u-12345" || !o.GetCreationTimestamp().Time.Equal(moment.Truncate(time.Second)) {
		t.Errorf("name %s, uid %s, created %s", o.GetName(), o.GetUID(), o.GetCreationTimestamp())
	}
	if o.GetSelfLink() != "" || o.GetDeletionGracePeriodSeconds() != nil {
		t.Errorf("foreign metadata was kept: %+v", o)
	}
	if got := o.GetLabels()["kubernetes.io/metadata.name"]; got != "team-12345" {
		t.Errorf("label %q", got)
	}
}

// A refusal is for people, whatever was written.
func TestRefusalsAreShort(t *testing.T) {
	long, many := &v1alpha1.Subnet{}, &v1alpha1.Subnet{}
	long.Name, long.Spec.CIDRs = strings.Repeat("n", 1<<20), []string{strings.Repeat("1", 1<<20)}
	many.Name = "many"
	for range 5000 {
		many.Spec.CIDRs = append(many.Spec.CIDRs, "banana")
	}
	for _, s := range []*v1alpha1.Subnet{long, many} {
		_, err := new(Admission).Create(s, nil)
		if !apierrors.IsInvalid(err) || len(err.Error()) > 16<<10 {
			t.Errorf("%T of %d bytes: %.300s", err, len(err.Error()), err)
		}
	}
}

func TestRandomUID(t *testing.T) {
	seen := map[types.UID]bool{}
	for range 1000 {
		u := randomUID()
		if len(u) != 36 || u[14] != '4' || !strings.ContainsRune("89ab", rune(u[19])) || seen[u] {
			t.Fatalf("uid %q", u)
		}
		seen[u] = true
	}
}

func TestAdmissionDoesNotTouchItsInput(t *testing.T) {
	o := decode(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, ports: [{containerPort: 80}]}]}")
	before := o.DeepCopyObject()
	if _, err := new(Admission).Create(o, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, o); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// A datastore that cannot be asked for the other objects admits nothing that
// could collide.
func TestListerErrorIsPassedOn(t *testing.T) {
	away := errors.New("away")
	s := &v1alpha1.Subnet{}
	s.Name, s.Spec.CIDRs = "s", []string{"10.1.0.0/16"}
	_, err := new(Admission).Create(s, func(Kind) ([]Object, error) { return nil, away })
	if !errors.Is(err, away) {
		t.Errorf("%v, want %v", err, away)
	}
}

func TestNamespaceLabelCannotBeRemoved(t *testing.T) {
	a := new(Admission)
	o, err := a.Create(decode(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: web, labels: {kubernetes.io/metadata.name: evil}}"), nil)
	if err != nil || o.GetLabels()["kubernetes.io/metadata.name"] != "web" {
		t.Fatalf("%v, %v", o, err)
	}
	o.SetResourceVersion("5")
	bare := o.DeepCopyObject().(Object)
	bare.SetLabels(nil)
	out, changed, err := a.Update(bare, o, nil)
	if err != nil || changed || out.GetLabels()["kubernetes.io/metadata.name"] != "web" {
		t.Errorf("%v, changed %v, %v", out.GetLabels(), changed, err)
	}
}

const (
	podHead = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
	npHead  = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\n"
	cnpHead = "apiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: a}\n"
	svcHead = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"
	epsHead = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\n"
	depHead = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n"
	oneCtr  = "containers: [{name: c}]"
)

func TestValidation(t *testing.T) {
	egress := func(rule string) string {
		return cnpHead + "spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Accept, " + rule + "}]}"
	}
	for name, test := range map[string]struct{ in, want string }{
		"pod without containers":        {podHead + "spec: {}", "spec.containers: Required"},
		"container without name":        {podHead + "spec: {containers: [{}]}", "spec.containers[0].name: Required"},
		"two containers of one name":    {podHead + "spec: {containers: [{name: c}, {name: c}]}", "spec.containers[1].name: Duplicate"},
		"port 0":                        {podHead + "spec: {containers: [{name: c, ports: [{}]}]}", "spec.containers[0].ports[0].containerPort"},
		"protocol":                      {podHead + "spec: {containers: [{name: c, ports: [{containerPort: 1, protocol: tcp}]}]}", "ports[0].protocol: Unsupported"},
		"port name":                     {podHead + "spec: {containers: [{name: c, ports: [{containerPort: 1, name: HTTP}]}]}", "ports[0].name"},
		"host port":                     {podHead + "spec: {hostNetwork: true, containers: [{name: c, ports: [{containerPort: 1, hostPort: 2}]}]}", "ports[0].hostPort"},
		"node name":                     {podHead + "spec: {nodeName: N1, " + oneCtr + "}", "spec.nodeName"},
		"restart policy":                {podHead + "spec: {restartPolicy: Maybe, " + oneCtr + "}", "spec.restartPolicy: Unsupported"},
		"pod name":                      {strings.Replace(podHead, "name: a", "name: A_b", 1) + "spec: {" + oneCtr + "}", "metadata.name"},
		"label":                         {strings.Replace(podHead, "name: a", "name: a, labels: {'a b': c}", 1) + "spec: {" + oneCtr + "}", "metadata.labels"},
		"huge annotation":               {strings.Replace(podHead, "name: a", "name: a, annotations: {x: "+strings.Repeat("y", 300_000)+"}", 1) + "spec: {" + oneCtr + "}", "metadata.annotations: Too long"},
		"fixed address":                 {strings.Replace(podHead, "name: a", "name: a, annotations: {fairlead.dev/ip: 10.0.0}", 1) + "spec: {" + oneCtr + "}", "metadata.annotations[fairlead.dev/ip]"},
		"two of a family":               {strings.Replace(podHead, "name: a", "name: a, annotations: {fairlead.dev/ip: '10.0.0.1,10.0.0.2'}", 1) + "spec: {" + oneCtr + "}", "of one family"},
		"fixed subnet":                  {strings.Replace(podHead, "name: a", "name: a, annotations: {fairlead.dev/subnet: A}", 1) + "spec: {" + oneCtr + "}", "metadata.annotations[fairlead.dev/subnet]"},
		"policy selector":               {npHead + "spec: {podSelector: {matchLabels: {'-': x}}}", "spec.podSelector.matchLabels"},
		"policy operator":               {npHead + "spec: {podSelector: {matchExpressions: [{key: a, operator: Like, values: [b]}]}}", "matchExpressions[0].operator"},
		"policy operator without value": {npHead + "spec: {podSelector: {matchExpressions: [{key: a, operator: In}]}}", "matchExpressions[0].values: Required"},
		"empty peer":                    {npHead + "spec: {podSelector: {}, ingress: [{from: [{}]}]}", "spec.ingress[0].from[0]: Required"},
		"mixed peer":                    {npHead + "spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]}", "spec.egress[0].to[0]: Forbidden"},
		"bad cidr":                      {npHead + "spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0}}]}]}", "from[0].ipBlock.cidr"},
		"except outside":                {npHead + "spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}]}", "ipBlock.except[0]"},
		"except equal":                  {npHead + "spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}]}", "strict part"},
		"end port":                      {npHead + "spec: {podSelector: {}, ingress: [{ports: [{port: 80, endPort: 79}]}]}", "ports[0].endPort"},
		"end port alone":                {npHead + "spec: {podSelector: {}, ingress: [{ports: [{endPort: 79}]}]}", "ports[0].port: Required"},
		"end port of a name":            {npHead + "spec: {podSelector: {}, ingress: [{ports: [{port: http, endPort: 79}]}]}", "named port"},
		"policy type":                   {npHead + "spec: {podSelector: {}, policyTypes: [Sideways]}", "spec.policyTypes[0]: Unsupported"},
		"tier":                          {cnpHead + "spec: {tier: admin, priority: 1, subject: {namespaces: {}}}", "spec.tier: Unsupported"},
		"priority":                      {cnpHead + "spec: {tier: Admin, priority: 1001, subject: {namespaces: {}}}", "spec.priority"},
		"no subject":                    {cnpHead + "spec: {tier: Admin, priority: 1, subject: {}}", "spec.subject: Required"},
		"two subjects":                  {cnpHead + "spec: {tier: Admin, priority: 1, subject: {namespaces: {}, pods: {podSelector: {}}}}", "spec.subject: Forbidden"},
		"no peers":                      {egress("to: []"), "spec.egress[0].to: Required"},
		"network with host bits":        {egress("to: [{networks: [10.0.0.1/8]}]"), "networks[0]"},
		"named port of a network":       {egress("to: [{networks: [10.0.0.0/8]}], protocols: [{destinationNamedPort: http}]"), "protocols[0].destinationNamedPort: Forbidden"},
		"port range":                    {egress("to: [{nodes: {}}], protocols: [{tcp: {destinationPort: {range: {start: 9, end: 9}}}}]"), "tcp.destinationPort.range.end"},
		"port number":                   {egress("to: [{nodes: {}}], protocols: [{udp: {destinationPort: {number: 70000}}}]"), "udp.destinationPort.number"},
		"no port":                       {egress("to: [{nodes: {}}], protocols: [{sctp: {}}]"), "sctp.destinationPort: Required"},
		"domain name":                   {egress("to: [{domainNames: ['a.*.b']}]"), "domainNames[0]"},
		"service name":                  {strings.Replace(svcHead, "name: a", "name: 1a", 1) + "spec: {ports: [{port: 80}]}", "metadata.name"},
		"service without ports":         {svcHead + "spec: {}", "spec.ports: Required"},
		"nameless ports":                {svcHead + "spec: {ports: [{port: 80}, {port: 81, name: b}]}", "spec.ports[0].name: Required"},
		"target port":                   {svcHead + "spec: {ports: [{port: 80, targetPort: 0}, {port: 81, name: b, targetPort: 70000}]}", "spec.ports[1].targetPort"},
		"cluster ip":                    {svcHead + "spec: {clusterIP: 1.2.3, ports: [{port: 80}]}", "spec.clusterIP"},
		"address family":                {epsHead + "addressType: IPv6\nendpoints: [{addresses: [10.0.0.1]}]", "endpoints[0].addresses[0]"},
		"address type":                  {epsHead + "addressType: IPX", "addressType: Unsupported"},
		"endpoint without address":      {epsHead + "addressType: IPv4\nendpoints: [{addresses: []}]", "endpoints[0].addresses: Required"},
		"deployment without selector":   {depHead + "spec: {template: {spec: {" + oneCtr + "}}}", "spec.selector: Required"},
		"selector misses":               {depHead + "spec: {selector: {matchLabels: {a: b}}, template: {spec: {" + oneCtr + "}}}", "spec.template.metadata.labels"},
		"replicas":                      {depHead + "spec: {replicas: -1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {" + oneCtr + "}}}", "spec.replicas"},
		"lease":                         {"apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: a}\nspec: {leaseDurationSeconds: 0}", "spec.leaseDurationSeconds"},
		"node":                          {"apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDRs: [10.0.0.1/24]}", "spec.podCIDRs[0]"},
		"finalizer":                     {"apiVersion: v1\nkind: Node\nmetadata: {name: a, finalizers: [x/y]}", "metadata.finalizers: Forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := new(Admission).Create(decode(t, test.in), nil)
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v\nwant Invalid with %q", err, test.want)
			}
		})
	}
}

func TestValidIsAccepted(t *testing.T) {
	for name, in := range map[string]string{
		"pod":        podHead + "spec: {hostNetwork: true, initContainers: [{name: i}], containers: [{name: c, image: x, ports: [{containerPort: 80, name: http}, {containerPort: 80, protocol: UDP, name: http-udp}]}]}",
		"fixed":      strings.Replace(podHead, "name: a", "name: a, annotations: {fairlead.dev/ip: '10.0.0.1, fd00::1', fairlead.dev/subnet: pods}", 1) + "spec: {" + oneCtr + "}",
		"policy":     npHead + "spec: {podSelector: {matchExpressions: [{key: a, operator: NotIn, values: [b]}]}, policyTypes: [Egress], ingress: [{}], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}, {namespaceSelector: {}, podSelector: {}}], ports: [{port: 1, endPort: 65535}, {port: dns, protocol: UDP}]}]}",
		"cnp":        cnpHead + "spec: {tier: Baseline, priority: 0, subject: {pods: {namespaceSelector: {}, podSelector: {}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}], egress: [{name: x, action: Accept, to: [{domainNames: ['*.example.com']}, {networks: ['::/0']}], protocols: [{tcp: {destinationPort: {range: {start: 1, end: 2}}}}]}]}",
		"service":    svcHead + "spec: {clusterIP: None, selector: {a: b}, ports: [{port: 80, name: tcp, targetPort: http}, {port: 80, protocol: UDP, name: udp}]}",
		"external":   svcHead + "spec: {type: ExternalName, externalName: example.com}",
		"slice":      epsHead + "addressType: IPv6\nendpoints: [{addresses: ['fd00::1']}]\nports: [{port: 80}]",
		"deployment": depHead + "spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {" + oneCtr + "}}}",
		"event":      "apiVersion: v1\nkind: Event\nmetadata: {name: a}\ninvolvedObject: {kind: Pod, name: a}\nreason: X",
	} {
		if _, err := new(Admission).Create(decode(t, in), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPodUpdate(t *testing.T) {
	a := new(Admission)
	old, err := a.Create(decode(t, podHead+"spec: {"+oneCtr+"}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	old.SetResourceVersion("5")
	bound, changed, err := a.Update(withSpec(t, old, "nodeName: n1, "+oneCtr), old, nil)
	if err != nil || !changed {
		t.Fatalf("bind: changed %v, %v", changed, err)
	}
	bound.SetResourceVersion("6")
	for name, spec := range map[string]string{
		"rebind":       "nodeName: n2, " + oneCtr,
		"host network": "hostNetwork: true, nodeName: n1, " + oneCtr,
		"more":         "nodeName: n1, containers: [{name: c}, {name: d}]",
	} {
		if _, _, err := a.Update(withSpec(t, bound, spec), bound, nil); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
	}
	if _, _, err := a.Update(withSpec(t, bound, "nodeName: n1, containers: [{name: c, image: new}]"), bound, nil); err != nil {
		t.Errorf("a new image: %v", err)
	}
}

func withSpec(t *testing.T, o Object, spec string) Object {
	t.Helper()
	out := decode(t, podHead+"spec: {"+spec+"}")
	out.SetResourceVersion(o.GetResourceVersion())
	return out
}

// What cannot be read of a policy widens whom it is about, never what it allows.
func TestStandIn(t *testing.T) {
	why := errors.New("torn")
	all := `{"podSelector":{}}`
	for name, tt := range map[string]struct {
		kind Kind
		raw  string
		want string // podSelector, or tier, priority and subject
	}{
		"torn":               {KindNetworkPolicy, `{"spec":{"podSelector":`, all},
		"no spec":            {KindNetworkPolicy, `{"spec":7}`, all},
		"selector":           {KindNetworkPolicy, `{"spec":{"podSelector":{"matchLabels":{"app":"db"}},"ingress":"all"}}`, `{"podSelector":{"matchLabels":{"app":"db"}}}`},
		"unknown narrowing":  {KindNetworkPolicy, `{"spec":{"podSelector":{"matchLabels":{"app":"db"},"matchNames":["a"]},"ingress":7}}`, all},
		"selector is null":   {KindNetworkPolicy, `{"spec":{"podSelector":null,"ingress":7}}`, all},
		"cluster, torn":      {KindClusterNetworkPolicy, `?`, `nothing`},
		"cluster, a rule":    {KindClusterNetworkPolicy, `{"spec":{"tier":"Baseline","priority":3,"subject":{"pods":{"namespaceSelector":{"matchLabels":{"a":"b"}},"podSelector":{}}},"egress":7}}`, `Baseline 3 {"pods":{"namespaceSelector":{"matchLabels":{"a":"b"}},"podSelector":{}}}`},
		"cluster, a subject": {KindClusterNetworkPolicy, `{"spec":{"tier":"Top","priority":"3","subject":{"pods":7}}}`, `nothing`},
		"cluster, of nobody": {KindClusterNetworkPolicy, `{"spec":{"subject":{},"egress":7}}`, `nothing`},
	} {
		o := StandIn(tt.kind, Key{Namespace: "shop", Name: "p"}, []byte(tt.raw), "9", why)
		var got any
		switch p := o.(type) {
		case *networkingv1.NetworkPolicy:
			got = map[string]any{"podSelector": p.Spec.PodSelector}
			if len(p.Spec.PolicyTypes) != 2 || p.Spec.Ingress != nil || p.Spec.Egress != nil {
				t.Errorf("%s: %+v does not isolate", name, p.Spec)
			}
		case *policyv1beta1.ClusterNetworkPolicy:
			got = p.Spec.Subject
			if tt.want == "nothing" {
				if len(p.Spec.Ingress)+len(p.Spec.Egress) != 0 {
					t.Errorf("%s: %+v denies", name, p.Spec)
				}
			} else if len(p.Spec.Ingress) != 1 || len(p.Spec.Egress) != 1 || p.Spec.Ingress[0].Action != "Deny" || p.Spec.Egress[0].Action != "Deny" {
				t.Errorf("%s: %+v does not deny", name, p.Spec)
			}
		}
		text, err := json.Marshal(got)
		if p, ok := o.(*policyv1beta1.ClusterNetworkPolicy); ok {
			text = fmt.Appendf(nil, "%s %d %s", p.Spec.Tier, p.Spec.Priority, text)
			if len(p.Spec.Ingress) == 0 {
				text = []byte("nothing")
			}
		}
		if err != nil || string(text) != tt.want || Unreadable(o) != "torn" || o.GetResourceVersion() != "9" {
			t.Errorf("%s: %s, %v, want %s", name, text, err, tt.want)
		}
	}
	if o := StandIn(KindPod, Key{Namespace: "shop", Name: "p"}, nil, "9", why); o != nil {
		t.Errorf("a pod: %+v", o)
	}
}

// What was wrong before keeps nobody from saying so in the status.
func TestStatusOfWhatIsInvalid(t *testing.T) {
	old := &policyv1beta1.ClusterNetworkPolicy{}
	old.Name, old.ResourceVersion, old.UID, old.Generation = "p", "3", "u", 1
	old.Spec.Tier = "Top"
	now := old.DeepCopy()
	now.Status.Conditions = []metav1.Condition{{Type: "fairlead.dev/Ready", Status: "True", Reason: "InUse", LastTransitionTime: metav1.Now()}}
	if _, _, err := new(Admission).Update(now, old, nil); !apierrors.IsInvalid(err) {
		t.Fatalf("update: %v, want that it is invalid", err)
	}
	if out, changed, err := new(Admission).UpdateStatus(now, old); err != nil || !changed || out.(*policyv1beta1.ClusterNetworkPolicy).Status.Conditions == nil {
		t.Errorf("status: %v, changed %v", err, changed)
	}
}

// FuzzDecode reads what somebody wrote into etcd. Nothing panics; what cannot be read has an
// object that stands for it, or none; what can be read can be written.
func FuzzDecode(f *testing.F) {
	f.Add("NetworkPolicy", `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"namespace":"shop","name":"p"},"spec":{"podSelector":{"matchLabels":{"a":"b"}}}}`)
	f.Add("ClusterNetworkPolicy", `{"spec":{"tier":"Baseline","priority":3,"subject":{"pods":{}}}}`)
	f.Add("Pod", `{"apiVersion":"v1","kind":"Pod"}`)
	f.Fuzz(func(t *testing.T, kind, raw string) {
		key := Key{Name: "p"}
		if r, err := Lookup(Kind(kind)); err != nil {
			return
		} else if r.Namespaced {
			key.Namespace = "shop"
		}
		o, err := Decode(Kind(kind), key, []byte(raw), "1")
		if err != nil {
			if o = StandIn(Kind(kind), key, []byte(raw), "1", err); o == nil {
				return
			}
			if Unreadable(o) == "" {
				t.Errorf("%s does not say that it only stands for %q", kind, raw)
			}
		}
		if _, err := Encode(o); err != nil || KeyOf(o) != key {
			t.Errorf("%s %s of %q: %v", kind, KeyOf(o), raw, err)
		}
	})
}
