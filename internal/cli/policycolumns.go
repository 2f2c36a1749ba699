package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// policyColumns are those of a kind of policy, which the rest of the cluster fills in;
// none for other kinds.
func policyColumns(ctx context.Context, s datastore.Store, kind datastore.Kind, items []datastore.Object) ([]column, error) {
	if kind != datastore.KindNetworkPolicy && kind != datastore.KindClusterNetworkPolicy || len(items) == 0 {
		return nil, nil
	}
	snap, err := readWorld(ctx, s)
	if err != nil {
		return nil, err
	}
	model := oracle.Read(snap)
	problems := map[string][]string{}
	for _, p := range problemsOf(snap, policyRefs(items)) {
		problems[p.Policy] = append(problems[p.Policy], strings.TrimSpace(p.Reason+" "+p.Field))
	}
	for _, o := range items {
		if ref := policyRefs([]datastore.Object{o}); datastore.Unreadable(o) != "" {
			problems[ref[0].String()] = []string{"Unreadable"}
		}
	}
	key := func(o datastore.Object) world.Key { return world.Key{Namespace: o.GetNamespace(), Name: o.GetName()} }
	selected := column{name: "SELECTED", cell: func(o datastore.Object) string {
		return strconv.Itoa(len(model.Selected(world.Kind(kind), key(o))))
	}}
	wrong := column{name: "PROBLEMS", cell: func(o datastore.Object) string {
		list := problems[policyRef{world.Kind(kind), key(o)}.String()]
		const shown = 2
		if len(list) > shown {
			list = append(slices.Clone(list[:shown]), fmt.Sprintf("and %d more", len(list)-shown))
		}
		return dash(strings.Join(list, "; "))
	}}
	if kind == datastore.KindNetworkPolicy {
		np := func(f func(*world.NetworkPolicy) string) func(datastore.Object) string {
			return ofWorld(snap.NetworkPolicies, key, f)
		}
		return []column{
			selected,
			{name: "POLICY-TYPES", cell: np(func(p *world.NetworkPolicy) string { return dash(strings.Join(p.Types, ",")) })},
			wrong,
			{name: "RULES", wide: true, cell: np(networkRules)},
		}, nil
	}
	cnp := func(f func(*world.ClusterNetworkPolicy) string) func(datastore.Object) string {
		return ofWorld(snap.ClusterNetworkPolicies, key, f)
	}
	return []column{
		{name: "TIER", cell: cnp(func(p *world.ClusterNetworkPolicy) string { return p.Tier })},
		{name: "PRIORITY", cell: cnp(func(p *world.ClusterNetworkPolicy) string { return strconv.Itoa(int(p.Priority)) })},
		selected,
		wrong,
		{name: "RULES", wide: true, cell: cnp(clusterRulesText)},
	}, nil
}

// ofWorld makes a cell of what the world has of an object.
func ofWorld[T comparable](t world.Table[T], key func(datastore.Object) world.Key, f func(T) string) func(datastore.Object) string {
	return func(o datastore.Object) string {
		v, ok := t.Get(key(o))
		if !ok {
			return "-" // Made or deleted between two readings.
		}
		return f(v)
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// networkRules are the rules of a NetworkPolicy in few words: "ingress from {app=web}
// 80/TCP; egress to any".
func networkRules(p *world.NetworkPolicy) string {
	var out []string
	for _, d := range []struct {
		word, to string
		rules    []world.PolicyRule
	}{{"ingress", "from", p.Ingress}, {"egress", "to", p.Egress}} {
		for _, r := range d.rules {
			var peers, ports []string
			for _, x := range r.Peers {
				peers = append(peers, peerText(x))
			}
			for _, x := range r.Ports {
				ports = append(ports, portRefText(x))
			}
			out = append(out, ruleText(d.word, d.to, peers, ports))
		}
	}
	return dash(strings.Join(out, "; "))
}

func ruleText(word, to string, peers, ports []string) string {
	who := "any"
	if len(peers) > 0 {
		who = strings.Join(peers, " or ")
	}
	text := word + " " + to + " " + who
	if len(ports) > 0 {
		text += " " + strings.Join(ports, ",")
	}
	return text
}

func peerText(p world.PolicyPeer) string {
	switch {
	case p.Range != nil && len(p.Range.Except) > 0:
		return p.Range.CIDR + " except " + strings.Join(p.Range.Except, ",")
	case p.Range != nil:
		return p.Range.CIDR
	case p.Namespaces != nil && p.Pods != nil:
		return "pods " + selectorText(p.Pods) + " in namespaces " + selectorText(p.Namespaces)
	case p.Namespaces != nil:
		return "namespaces " + selectorText(p.Namespaces)
	case p.Pods != nil:
		return "pods " + selectorText(p.Pods)
	}
	return "nobody"
}

// selectorText is a selector as kubectl's -l takes it, in braces; {} is everything.
func selectorText(s *world.Selector) string {
	var out []string
	for k, v := range s.MatchLabels {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	for _, e := range s.MatchExpressions {
		switch e.Operator {
		case "Exists":
			out = append(out, e.Key)
		case "DoesNotExist":
			out = append(out, "!"+e.Key)
		default:
			out = append(out, fmt.Sprintf("%s %s (%s)", e.Key, strings.ToLower(e.Operator), strings.Join(e.Values, ",")))
		}
	}
	return "{" + strings.Join(out, ",") + "}"
}

func portRefText(p world.PolicyPort) string {
	protocol := "TCP"
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	switch {
	case p.Port == nil:
		return protocol
	case p.Port.By == world.ByName:
		return p.Port.Name + "/" + protocol
	case p.EndPort != nil:
		return fmt.Sprintf("%d-%d/%s", p.Port.Number, *p.EndPort, protocol)
	}
	return fmt.Sprintf("%d/%s", p.Port.Number, protocol)
}

// clusterRulesText are the rules of a ClusterNetworkPolicy in few words.
func clusterRulesText(p *world.ClusterNetworkPolicy) string {
	var out []string
	for _, d := range []struct {
		word, to string
		rules    []world.ClusterRule
	}{{"ingress", "from", p.Ingress}, {"egress", "to", p.Egress}} {
		for _, r := range d.rules {
			var peers, ports []string
			for _, x := range r.Peers {
				peers = append(peers, clusterPeerText(x))
			}
			for _, x := range r.Protocols {
				ports = append(ports, clusterPortText(x))
			}
			out = append(out, strings.ToLower(r.Action)+" "+ruleText(d.word, d.to, peers, ports))
		}
	}
	return dash(strings.Join(out, "; "))
}

func clusterPeerText(p world.ClusterPeer) string {
	switch {
	case p.Namespaces != nil:
		return "namespaces " + selectorText(p.Namespaces)
	case p.Pods != nil:
		return "pods " + selectorText(&p.Pods.Pods) + " in namespaces " + selectorText(&p.Pods.Namespaces)
	case p.Nodes != nil:
		return "nodes " + selectorText(p.Nodes)
	case len(p.Networks) > 0:
		return strings.Join(p.Networks, ",")
	case len(p.DomainNames) > 0:
		return strings.Join(p.DomainNames, ",")
	}
	return "nobody"
}

func clusterPortText(p world.ClusterProtocol) string {
	if p.NamedPort != "" {
		return p.NamedPort
	}
	var out []string
	for _, x := range clusterRanges(p) {
		text := fmt.Sprint(x.numbers[0])
		if x.numbers[1] != x.numbers[0] {
			text += fmt.Sprintf("-%d", x.numbers[1])
		}
		out = append(out, text+"/"+x.protocol.String())
	}
	return dash(strings.Join(out, ","))
}
