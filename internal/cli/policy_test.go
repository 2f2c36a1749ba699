package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/agent"
	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// policyCluster has the objects of testdata/policy.yaml and agents that know the given
// flows and explain packets as change says, or, if that is nil, as agents do.
func policyCluster(t *testing.T, change map[string]func(*admin.Explanation), flows ...apply.Flow) *cluster {
	t.Helper()
	c := newCluster(t)
	c.loadFile("policy.yaml")
	snap, err := readWorld(t.Context(), c.store)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // nodes are asked at the same time
	for _, node := range []string{"n1", "n2"} {
		n, _, _ := decide.New(decide.Config{Node: node}).Compile(nil, worldtest.Local(snap, node))
		c.serve(node, map[string]admin.Handler{
			"GET /v1/explain": func(_ context.Context, v url.Values) (any, error) {
				q, err := admin.ParseQuestion(v)
				if err != nil {
					return nil, err
				}
				mu.Lock()
				c.asked = append(c.asked, q)
				mu.Unlock()
				x, _ := agent.Explain(n, q)
				x.AppliedRevision = 7
				if x.Ingress != nil && x.Ingress.List != "" {
					x.Rules, x.NoRules = walked(x.Ingress.Allowed), ""
				}
				if f := change[node]; f != nil {
					f(&x)
				}
				return x, nil
			},
			"GET /v1/flows": func(context.Context, url.Values) (any, error) {
				return admin.Flows{Node: node, Flows: flows}, nil
			},
		})
	}
	return c
}

// walked is a way through rules.
func walked(accepted bool) *apply.Walk {
	packets := uint64(3)
	w := &apply.Walk{Verdict: "drop", Steps: []apply.Step{
		{Stage: "ingress", Hook: "forward", Chain: "forward", Rule: 4, Comment: "policies of the receiver", Text: "oifname vmap @ingress-of-port", Effect: "jump ingress-01", Handle: 23},
		{Stage: "ingress", Hook: "forward", Chain: "ingress-01", Rule: 0, Comment: "denied by bank/tellers", Text: "counter drop", Effect: "drop", Handle: 31, Packets: &packets},
	}}
	if accepted {
		w.Verdict = "accept"
		w.Steps[1].Comment, w.Steps[1].Text, w.Steps[1].Effect = "allowed by bank/tellers", "ip saddr @x return", "return"
		w.Steps = append(w.Steps, apply.Step{Stage: "flow", Hook: "forward", Chain: "forward", Rule: -1, Effect: "policy accept"})
	}
	return w
}

func TestPolicyWhy(t *testing.T) {
	c := policyCluster(t, nil)
	c.transcript(
		"policy-why",
		"policy why shop/web bank/teller:http",
		"policy why shop/web bank/teller:80/TCP -o wide",
		"policy why shop/cart bank/teller:80/tcp",
		"policy why node/n1 bank/teller:80",
		"policy why 203.0.113.7 bank/teller:80",
		"policy why -n shop web cart:8080 -o json",
		"policy why bank/vault svc/shop/web:8000",
		"policy why bank/vault 10.96.0.10:w/TCP -o yaml",
		"policy why shop/web 8.8.8.8:icmp",
	)
}

func TestPolicyWhyMistakes(t *testing.T) {
	c := policyCluster(t, nil)
	c.transcript(
		"policy-why-mistakes",
		"policy why shop/web",
		"policy why shop/web bank/teller",
		"policy why shop/web bank/teller:0/TCP",
		"policy why shop/web bank/teller:80/ICMP",
		"policy why shop/web bank/teller:80000",
		"policy why shop/web bank/teller:nope",
		"policy why shop/web bank/teller:http/UDP",
		"policy why shop/web fd00::1:80/TCP",
		"policy why web bank/teller:80",
		"policy why n1 bank/teller:80",
		"policy why shop/none bank/teller:80",
		"policy why bank/web bank/teller:80",
		"policy why node/n9 bank/teller:80",
		"policy why node/n3 bank/teller:80",
		"policy why shop/web bank/late:80",
		"policy why svc/shop/web bank/teller:80",
		"policy why shop/web svc/shop/nope:80",
		"policy why shop/web svc/shop/web:1",
		"policy why shop/web svc/shop/empty:80",
		"policy why shop/ bank/teller:80",
		"policy why a/b/c bank/teller:80",
		"policy why shop/web outside:x",
		"policy why 203.0.113.7 1.2.3.4:http",
		"policy why fd00:10::2 bank/teller:80",
		"policy why shop/web 0.0.0.0:80",
		"policy why :: bank/teller:80",
		"policy why shop/web [::ffff:0.0.0.0]:80",
		"policy why shop/web [fe80::1%eth0]:80",
	)
}

func TestPolicyWhyDisagreements(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*admin.Explanation)
		want   string
		code   int
	}{
		{"none", func(*admin.Explanation) {}, "agree", 0},
		{"the list denies", func(x *admin.Explanation) { x.Ingress.Allowed = false }, "the oracle says allowed", exitDisagree},
		{"no port", func(x *admin.Explanation) { x.Ingress = nil }, "no port of it has the pod's address", exitDisagree},
		{"the rules drop", func(x *admin.Explanation) { x.Rules.Verdict = "drop" }, "expects the rules to accept", exitDisagree},
		{"no list", func(x *admin.Explanation) {
			x.Ingress.List, x.Ingress.Rule, x.Ingress.Reason = "", nil, "no policy selects the pod in this direction"
		}, "the node has no rule list for it", exitDisagree},
		{"a rule is gone", func(x *admin.Explanation) { x.Rules.Miss("ingress", "rule 4 of chain forward is not in the kernel") }, "node n2: ingress: rule 4 of chain forward is not in the kernel", exitDisagree},
		{"no way", func(x *admin.Explanation) { x.Rules.Verdict = "" }, "node n2: flow: the oracle expects the rules to accept the packet", exitDisagree},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := policyCluster(t, map[string]func(*admin.Explanation){"n2": tt.change})
			r := c.run("policy", "why", "shop/web", "bank/teller:80")
			if r.code != tt.code || !strings.Contains(r.out, tt.want) {
				t.Errorf("exit %d, want %d and %q:\n%s%s", r.code, tt.code, tt.want, r.out, r.err)
			}
		})
	}
}

// An agent that does not answer costs its evidence, and nothing else.
func TestPolicyWhyWithoutAgents(t *testing.T) {
	c := policyCluster(t, nil)
	delete(c.sockets, "n2")
	r := c.run("policy", "why", "shop/web", "bank/teller:80", "-o", "json")
	var got whyReport
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	if r.code != 1 || !got.Allowed || !strings.Contains(r.err, "no evidence of node n2") {
		t.Errorf("exit %d, allowed %t: %s", r.code, got.Allowed, r.err)
	}
	if m := got.Flows[0].Missing; len(m) != 1 || m[0] != (whyMissing{"n2", `there is no node "n2"; there is n1`}) {
		t.Errorf("missing: %+v", m)
	}
	r = c.run("policy", "why", "shop/web", "bank/teller:80")
	if r.code != 1 || !strings.HasSuffix(r.out, "\nno evidence of n2: there is no node \"n2\"; there is n1; the rest agrees.\n") {
		t.Errorf("exit %d: %s", r.code, r.out)
	}
	delete(c.sockets, "n1")
	r = c.run("policy", "why", "shop/web", "bank/teller:80")
	if r.code != 1 || strings.Contains(r.out, "agree") || !strings.Contains(r.out, "no evidence of n1: ") || !strings.Contains(r.out, "no evidence of n2: ") {
		t.Errorf("exit %d: %s", r.code, r.out)
	}
}

// A node whose list knows a policy of which the oracle knows nothing.
func TestPolicyWhyOfUnknownPolicy(t *testing.T) {
	rule := &admin.Rule{Kind: "NetworkPolicy", Policy: "shop/old", Action: "Accept"}
	c := policyCluster(t, map[string]func(*admin.Explanation){"n1": func(x *admin.Explanation) {
		x.Egress.List, x.Egress.Rule, x.Egress.Reason = "egress-01", rule, ""
	}})
	r := c.run("policy", "why", "shop/web", "bank/teller:80")
	if r.code != exitDisagree || !strings.Contains(r.out, "the oracle knows no policy that decides") {
		t.Errorf("exit %d: %s", r.code, r.out)
	}
}

// The nodes are asked about the packet as it meets their policies.
func TestPolicyWhyAsksOfThePacketOnTheNode(t *testing.T) {
	c := policyCluster(t, nil)
	c.run("policy", "why", "node/n1", "bank/teller:80")
	slices.SortFunc(c.asked, func(a, b admin.Question) int { return b.Packet.Src.Compare(a.Packet.Src) })
	if asked := c.asked; len(asked) != 2 || !asked[0].FromNode || asked[1].FromNode || asked[1].Packet.Src != netip.MustParseAddr("10.128.0.1") || asked[1].VNI != 4096 {
		t.Errorf("asked %+v, want n1 of what it sends and n2 of a packet from n1's tunnel address", c.asked)
	}
}

const onlyTellers = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: teller}}}], ports: [{port: 80}]}]
`

func TestPolicyWhatif(t *testing.T) {
	flow := func(src string, sport uint16, dst string, dport uint16) apply.Flow {
		return apply.Flow{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Protocol: packet.TCP, SrcPort: sport, DstPort: dport}
	}
	dead := flow("10.128.0.67", 40003, "10.128.0.2", 80)
	dead.Cut = true
	over := flow("10.128.0.67", 40004, "10.128.0.2", 80) // remembered for a while, and no loss
	over.Ended = true
	c := policyCluster(
		t, nil, flow("10.128.0.3", 40000, "10.128.0.2", 80), flow("10.128.0.66", 40001, "10.128.0.2", 80),
		flow("203.0.113.9", 40002, "10.128.0.2", 80), flow("172.30.0.11", 40009, "10.128.0.2", 80), dead, over,
	)
	c.write("web.yaml", onlyTellers)
	c.write("open.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: tellers, namespace: bank}\nspec: {podSelector: {}, ingress: [{}]}\n")
	c.write("tellers.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: tellers, namespace: bank}\nspec: {podSelector: {}}\n")
	c.write("labels.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: bank, labels: {team: web}}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: new, namespace: bank}\nspec: {containers: [{name: c}]}\n")
	c.write("bad.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: bad, namespace: bank}\nspec: {podSelector: {matchExpressions: [{key: a, operator: Foo}]}}\n")
	c.write("out.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: out, namespace: shop}\nspec: {podSelector: {matchLabels: {app: cart}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 198.51.100.0/24}}], ports: [{port: 443}]}]}\n")
	c.transcript(
		"policy-whatif",
		"policy whatif -f DIR/web.yaml",
		"policy whatif -f DIR/web.yaml -o json",
		"policy whatif -f DIR/open.yaml --no-flows",
		"policy whatif -f DIR/tellers.yaml --delete -o wide",
		"policy whatif -f DIR/labels.yaml",
		"policy whatif -f DIR/out.yaml",
		"policy whatif -f DIR/web.yaml --delete",
		"policy whatif -f DIR/bad.yaml",
		"policy whatif",
	)
	if r := c.run("get", "networkpolicies", "-o", "json"); strings.Contains(r.out, `"name": "web"`) || r.code != 0 {
		t.Errorf("whatif has written: %s", r.out)
	}
}

// What a datastore refuses is refused here too.
func TestPolicyWhatifRefuses(t *testing.T) {
	c := policyCluster(t, nil)
	policy := func(namespace, values string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: " + namespace + "}\nspec: {podSelector: {matchExpressions: [{key: a, operator: In, values: [" + values + "]}]}}\n"
	}
	value := strings.Repeat("x", 60) + ","
	const space = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: new}\n"
	for name, tt := range map[string]struct {
		manifest, want string
	}{
		"huge":         {policy("shop", strings.Repeat(value, datastore.MaxSize/len(value))), "can be stored: make it smaller"},
		"nowhere":      {policy("new", "x"), `namespaces "new" not found`},
		"in good time": {policy("new", "x") + space, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := c.write("f.yaml", tt.manifest)
			r := c.run("policy", "whatif", "--no-flows", "-f", f)
			if (r.code == 0) != (tt.want == "") || !strings.Contains(r.err, tt.want) {
				t.Errorf("exit %d, %.300q; want %q", r.code, r.err, tt.want)
			}
			if name != "huge" {
				return
			}
			if applied := c.run("apply", "-f", f); applied.code == 0 || !strings.Contains(applied.err, tt.want) {
				t.Errorf("applied: exit %d, %.300q; want %q", applied.code, applied.err, tt.want)
			}
		})
	}
}

// The later of two objects of one name changes the earlier.
func TestPolicyWhatifNamesAnObjectTwice(t *testing.T) {
	c := policyCluster(t, nil)
	second := strings.Replace(onlyTellers, "app: teller", "app: vault", 1)
	r := c.run("policy", "whatif", "--no-flows", "-o", "json", "-f", c.write("twice.yaml", onlyTellers+"---"+second))
	alone := c.run("policy", "whatif", "--no-flows", "-o", "json", "-f", c.write("second.yaml", second))
	var got, want whatifReport
	if err := errors.Join(json.Unmarshal([]byte(r.out), &got), json.Unmarshal([]byte(alone.out), &want)); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	if d := gocmp.Diff(want.Reach, got.Reach); d != "" || len(got.Reach) == 0 {
		t.Errorf("(-the later alone +both)\n%s", d)
	}
	changes := []whatifChange{{"create", "networkpolicy/shop/web"}, {"change", "networkpolicy/shop/web"}}
	if d := gocmp.Diff(changes, got.Changes); d != "" || r.code != 0 {
		t.Errorf("exit %d (-want +got)\n%s", r.code, d)
	}
}

// Who is deleted talks no more, and a namespace takes its pods along.
func TestPolicyWhatifDeletesPods(t *testing.T) {
	flow := apply.Flow{
		Src: netip.MustParseAddr("10.128.0.2"), Dst: netip.MustParseAddr("10.128.0.66"), Protocol: packet.TCP, SrcPort: 40000, DstPort: 80,
	}
	c := policyCluster(t, nil, flow)
	const one = "apiVersion: v1\nkind: Pod\nmetadata: {name: teller, namespace: bank}\nspec: {containers: [{name: c}]}\n"
	const all = "apiVersion: v1\nkind: Namespace\nmetadata: {name: bank}\n---\n" + one
	for _, tt := range []struct {
		name, manifest string
		deleted        []string
	}{
		{"pod", one, []string{"pod/bank/teller"}},
		{"namespace", all, []string{"namespace/bank", "pod/bank/late", "pod/bank/teller", "pod/bank/vault"}},
		{"host", "apiVersion: v1\nkind: Pod\nmetadata: {name: host, namespace: shop}\nspec: {containers: [{name: c}]}\n", []string{"pod/shop/host"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := c.run("policy", "whatif", "--delete", "-o", "json", "-f", c.write(tt.name+".yaml", tt.manifest))
			var got whatifReport
			if err := json.Unmarshal([]byte(r.out), &got); err != nil {
				t.Fatalf("%v: %+v", err, r)
			}
			var deleted []string
			for _, change := range got.Changes {
				deleted = append(deleted, change.Object)
			}
			if d := gocmp.Diff(tt.deleted, deleted); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if tt.name == "host" {
				if len(got.Notes) != 1 || len(got.Reach)+len(got.Flows) != 0 {
					t.Errorf("%+v", got)
				}
				return
			}
			if len(got.Notes) != 0 || r.code != exitFailed || len(got.Flows) != 1 || got.Flows[0].Why != "the pod that receives is deleted" {
				t.Errorf("exit %d, notes %q, flows %+v", r.code, got.Notes, got.Flows)
			}
			if !slices.ContainsFunc(got.Reach, func(g reachGroup) bool {
				return slices.Contains(g.From, "shop/web") && slices.Contains(g.To, "bank/teller") && g.Before == "allowed" && g.After == "gone" && g.Policy == nil
			}) {
				t.Errorf("reach %+v", got.Reach)
			}
		})
	}
}

// That flows are not known is no all-clear.
func TestPolicyWhatifWithoutAgents(t *testing.T) {
	c := newCluster(t)
	c.loadFile("policy.yaml")
	c.write("web.yaml", onlyTellers)
	if r := c.run("policy", "whatif", "-f", c.dir+"/web.yaml"); r.code != 1 || !strings.Contains(r.err, "flows not known") {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
	if r := c.run("policy", "whatif", "-f", c.dir+"/web.yaml", "--no-flows"); r.code != 0 {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
}

// P5: apply says at once what is wrong with a policy: by a refusal or a warning that names
// the policy, the rule by its index, and the reason.
func TestApplyTellsWhatIsWrong(t *testing.T) {
	np := func(spec string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: shop}\nspec: {" + spec + "}\n"
	}
	cnp := func(spec string) string {
		return "apiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: p}\nspec: {tier: Admin, subject: {namespaces: {}}, " + spec + "}\n"
	}
	for name, tt := range map[string]struct {
		manifest string
		refused  bool
		want     []string
	}{
		"invalid selector":            {np("podSelector: {}, ingress: [{}, {from: [{podSelector: {matchExpressions: [{key: a, operator: Foo}]}}]}]"), true, []string{"networkpolicy/shop/p", "spec.ingress[1].from[0].podSelector.matchExpressions[0].operator", "Foo"}},
		"invalid subject":             {np("podSelector: {matchLabels: {a b: c}}"), true, []string{"networkpolicy/shop/p", "spec.podSelector.matchLabels", "a b"}},
		"empty peer":                  {np("podSelector: {}, ingress: [{}, {from: [{}]}]"), true, []string{"networkpolicy/shop/p", "spec.ingress[1].from[0]", "Required"}},
		"empty range":                 {np("podSelector: {}, ingress: [{}, {from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.0/25, 10.0.0.128/25]}}]}]"), false, []string{"warning: networkpolicy/shop/p: spec.ingress[1].from[0].ipBlock.except: EmptyRange"}},
		"unknown port":                {np("podSelector: {}, ingress: [{}, {ports: [{port: nope}]}]"), false, []string{"warning: networkpolicy/shop/p: spec.ingress[1].ports[0]: UnresolvedPort"}},
		"rules without type":          {np("podSelector: {}, policyTypes: [Ingress], egress: [{}]"), false, []string{"warning: networkpolicy/shop/p: spec.egress: RulesWithoutType"}},
		"cluster, invalid selector":   {cnp("priority: 1, ingress: [{action: Deny, from: [{namespaces: {matchExpressions: [{key: a, operator: Foo}]}}]}]"), true, []string{"clusternetworkpolicy/p", "spec.ingress[0].from[0].namespaces", "Foo"}},
		"cluster, empty peer":         {cnp("priority: 1, egress: [{action: Deny, to: [{}]}]"), true, []string{"clusternetworkpolicy/p", "spec.egress[0].to[0]"}},
		"cluster, equal priorities":   {cnp("priority: 10"), false, []string{"warning: clusternetworkpolicy/p: spec.priority: EqualPriority"}},
		"cluster, never reached":      {cnp("priority: 1, ingress: [{action: Deny, from: [{namespaces: {}}]}, {action: Accept, from: [{namespaces: {}}]}]"), false, []string{"warning: clusternetworkpolicy/p: spec.ingress[1]: RuleNeverReached"}},
		"cluster, names from the DNS": {cnp("priority: 1, egress: [{action: Accept, to: [{domainNames: [example.org]}]}]"), false, []string{"warning: clusternetworkpolicy/p: spec.egress[0].to[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := policyCluster(t, nil)
			r := c.run("apply", "-f", c.write("p.yaml", tt.manifest))
			if (r.code != 0) != tt.refused {
				t.Errorf("exit %d, want refused: %v", r.code, tt.refused)
			}
			for _, want := range tt.want {
				if !strings.Contains(r.err, want) {
					t.Errorf("said %q, want %q", r.err, want)
				}
			}
			seen := map[string]bool{}
			for line := range strings.SplitSeq(r.err, "\n") {
				if seen[line] && line != "" {
					t.Errorf("said twice: %q", line)
				}
				seen[line] = true
			}
		})
	}
}

func TestGetPolicies(t *testing.T) {
	c := policyCluster(t, nil)
	c.load("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: names, namespace: shop}\nspec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], egress: [{}], ingress: [{ports: [{port: metrics}, {port: dns}]}]}\n")
	c.transcript("policy-get", "get netpol", "get netpol -o wide", "get cnp", "get cnp -o wide", "get netpol bank/tellers")
}

func TestApplyWarnsOfPolicies(t *testing.T) {
	c := policyCluster(t, nil)
	c.write("p.yaml", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress:
    - from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.0/25, 10.0.0.128/25]}}]
      ports: [{port: https}, {port: dns}, {port: http}]
  egress: [{ports: [{port: http, protocol: SCTP}]}]
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: p}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {}}
  ingress:
    - {action: Pass, from: [{namespaces: {}}]}
    - {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]}
  egress:
    - {action: Deny, to: [{namespaces: {matchLabels: {team: web}}}], protocols: [{destinationNamedPort: nope}]}
`)
	c.transcript("policy-apply", "apply -f DIR/p.yaml --dry-run", "apply -f DIR/p.yaml", "apply -f DIR/p.yaml")
}

func TestCrowd(t *testing.T) {
	sizes := map[string]int{"shop": 4, "bank": 9}
	for _, tt := range []struct {
		names []string
		want  string
	}{
		{[]string{"a/b", "node/n1"}, "a/b, node/n1"},
		{[]string{"shop/a", "shop/b", "shop/c", "shop/d"}, "all 4 of shop"},
		{[]string{"bank/a", "bank/b", "node/n1", "shop/a"}, "2 of bank (bank/a, …), node/n1, shop/a"},
		{[]string{"a/x", "b/x", "c/x", "d/x"}, "a/x, b/x, c/x, and more, 4 in all"},
	} {
		if got := crowd(slices.Clone(tt.names), sizes); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.names, got, tt.want)
		}
	}
}

// What the rules of a node are expected to do follows from where the oracle says that
// the packet ends.
func TestExpectedOfRules(t *testing.T) {
	f := whyFlow{From: whyPlace{Kind: "pod", Node: "n1"}, To: whyPlace{Kind: "pod", Node: "n2"}}
	for _, tt := range []struct{ stopped, sender, receiver string }{
		{"delivery", "accept", "accept"},
		{"ingress", "accept", "drop"},
		{"egress", "drop", ""},
		{"vpc", "drop", ""},
		{"tenant", "", "drop"},
		{"path", "", ""},
		{"source", "", ""},
	} {
		if got := f.expect("n1", tt.stopped); got != tt.sender {
			t.Errorf("%s: the sender's node %q, want %q", tt.stopped, got, tt.sender)
		}
		if got := f.expect("n2", tt.stopped); got != tt.receiver {
			t.Errorf("%s: the receiver's node %q, want %q", tt.stopped, got, tt.receiver)
		}
	}
}

// What is read as an end and a port can be written, and is read as the same again.
func FuzzSplitTarget(f *testing.F) {
	for _, text := range []string{"shop/web:80/TCP", "[fd00::1]:53/udp", "svc/shop/web:http", "node/n1:icmp", "a:", ":80", "a:0/TCP", "a:http/SCTP"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		end, target, err := splitTarget(text)
		if err != nil {
			return
		}
		again, same, err := splitTarget(end + ":" + target.String())
		if err != nil || again != end || same != target {
			t.Errorf("%q is %q and %+v; written as %q it is %q and %+v, %v", text, end, target, end+":"+target.String(), again, same, err)
		}
	})
}
