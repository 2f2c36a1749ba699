package datastore

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"sync"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// maxPolicyItems is the API's bound on rules, peers, protocols and networks.
const maxPolicyItems = 25

// domainName is the API's pattern for a domain name with an optional leading "*.".
var domainName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(\*\.)?([a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.)+[a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.?$`)
})

// parsePolicyCIDR reads a CIDR of a policy. Like the Kubernetes API it allows
// host bits and odd spellings, which mean the masked CIDR; unlike our own kinds.
func parsePolicyCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("is not a CIDR such as 10.9.8.0/24 or 2001:db8::/64")
	}
	return p.Masked(), nil
}

func validateClusterNetworkPolicy(p, _ *policyv1beta1.ClusterNetworkPolicy) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	tiers := []policyv1beta1.Tier{policyv1beta1.AdminTier, policyv1beta1.BaselineTier}
	if !slices.Contains(tiers, p.Spec.Tier) {
		errs = append(errs, field.NotSupported(path.Child("tier"), p.Spec.Tier, tiers))
	}
	if p.Spec.Priority < 0 || p.Spec.Priority > 1000 {
		errs = append(errs, field.Invalid(path.Child("priority"), p.Spec.Priority, "must be between 0 and 1000"))
	}
	subject := path.Child("subject")
	errs = append(errs, exactlyOne(subject, p.Spec.Subject.Namespaces != nil, p.Spec.Subject.Pods != nil)...)
	errs = append(errs, validateSelector(p.Spec.Subject.Namespaces, subject.Child("namespaces"))...)
	errs = append(errs, validateNamespacedPod(p.Spec.Subject.Pods, subject.Child("pods"))...)
	errs = append(errs, atMost(len(p.Spec.Ingress), path.Child("ingress"))...)
	errs = append(errs, atMost(len(p.Spec.Egress), path.Child("egress"))...)
	for i := range p.Spec.Ingress {
		rule, at := &p.Spec.Ingress[i], path.Child("ingress").Index(i)
		errs = append(errs, validateRule(rule.Name, rule.Action, len(rule.From), at, "from")...)
		for j, peer := range rule.From {
			at := at.Child("from").Index(j)
			errs = append(errs, exactlyOne(at, peer.Namespaces != nil, peer.Pods != nil)...)
			errs = append(errs, validateSelector(peer.Namespaces, at.Child("namespaces"))...)
			errs = append(errs, validateNamespacedPod(peer.Pods, at.Child("pods"))...)
		}
		errs = append(errs, validateProtocols(rule.Protocols, at.Child("protocols"))...)
	}
	for i := range p.Spec.Egress {
		errs = append(errs, validateEgressRule(&p.Spec.Egress[i], path.Child("egress").Index(i))...)
	}
	return append(errs, metav1validation.ValidateConditions(p.Status.Conditions, field.NewPath("status", "conditions"))...)
}

func validateEgressRule(rule *policyv1beta1.ClusterNetworkPolicyEgressRule, path *field.Path) field.ErrorList {
	errs := validateRule(rule.Name, rule.Action, len(rule.To), path, "to")
	portless := false
	for i, peer := range rule.To {
		at := path.Child("to").Index(i)
		errs = append(errs, exactlyOne(at, peer.Namespaces != nil, peer.Pods != nil, peer.Nodes != nil, len(peer.Networks) > 0, len(peer.DomainNames) > 0)...)
		errs = append(errs, validateSelector(peer.Namespaces, at.Child("namespaces"))...)
		errs = append(errs, validateNamespacedPod(peer.Pods, at.Child("pods"))...)
		errs = append(errs, validateSelector(peer.Nodes, at.Child("nodes"))...)
		errs = append(errs, validateNetworks(peer.Networks, at.Child("networks"))...)
		errs = append(errs, atMost(len(peer.DomainNames), at.Child("domainNames"))...)
		for j, name := range peer.DomainNames {
			if !domainName().MatchString(string(name)) {
				errs = append(errs, field.Invalid(at.Child("domainNames").Index(j), name, "must be a domain name, with *. in front at most"))
			}
		}
		if len(peer.DomainNames) > 0 && rule.Action != policyv1beta1.ClusterNetworkPolicyRuleActionAccept {
			errs = append(errs, field.Forbidden(at.Child("domainNames"), "only in rules with action Accept"))
		}
		portless = portless || peer.Nodes != nil || len(peer.Networks) > 0 || len(peer.DomainNames) > 0
	}
	errs = append(errs, validateProtocols(rule.Protocols, path.Child("protocols"))...)
	for i, p := range rule.Protocols {
		if portless && p.DestinationNamedPort != "" {
			errs = append(errs, field.Forbidden(path.Child("protocols").Index(i).Child("destinationNamedPort"), "nodes, networks and domain names have no named ports"))
		}
	}
	return errs
}

func validateRule(name string, action policyv1beta1.ClusterNetworkPolicyRuleAction, peers int, path *field.Path, list string) field.ErrorList {
	var errs field.ErrorList
	if len(name) > 100 {
		errs = append(errs, field.TooLong(path.Child("name"), name, 100))
	}
	actions := []policyv1beta1.ClusterNetworkPolicyRuleAction{
		policyv1beta1.ClusterNetworkPolicyRuleActionAccept, policyv1beta1.ClusterNetworkPolicyRuleActionDeny, policyv1beta1.ClusterNetworkPolicyRuleActionPass,
	}
	if !slices.Contains(actions, action) {
		errs = append(errs, field.NotSupported(path.Child("action"), action, actions))
	}
	if peers == 0 {
		errs = append(errs, field.Required(path.Child(list), "at least one peer"))
	}
	return append(errs, atMost(peers, path.Child(list))...)
}

func validateNetworks(networks []policyv1beta1.CIDR, path *field.Path) field.ErrorList {
	errs := atMost(len(networks), path)
	seen := sets.New[policyv1beta1.CIDR]()
	for i, c := range networks {
		p, err := netip.ParsePrefix(string(c))
		switch {
		case err != nil || p.Addr().Is4In6() || p != p.Masked():
			errs = append(errs, field.Invalid(path.Index(i), c, "must be a CIDR without host bits, such as 10.9.8.0/24 or 2001:db8::/64"))
		case seen.Has(c):
			errs = append(errs, field.Duplicate(path.Index(i), c))
		}
		seen.Insert(c)
	}
	return errs
}

func validateProtocols(protocols []policyv1beta1.ClusterNetworkPolicyProtocol, path *field.Path) field.ErrorList {
	errs := atMost(len(protocols), path)
	for i, p := range protocols {
		at := path.Index(i)
		errs = append(errs, exactlyOne(at, p.TCP != nil, p.UDP != nil, p.SCTP != nil, p.DestinationNamedPort != "")...)
		if p.TCP != nil {
			errs = append(errs, validateDestination(p.TCP.DestinationPort, at.Child("tcp", "destinationPort"))...)
		}
		if p.UDP != nil {
			errs = append(errs, validateDestination(p.UDP.DestinationPort, at.Child("udp", "destinationPort"))...)
		}
		if p.SCTP != nil {
			errs = append(errs, validateDestination(p.SCTP.DestinationPort, at.Child("sctp", "destinationPort"))...)
		}
	}
	return errs
}

func validateDestination(p *policyv1beta1.Port, path *field.Path) field.ErrorList {
	if p == nil {
		return field.ErrorList{field.Required(path, "a port or a range; leave protocols out to match every protocol")}
	}
	errs := exactlyOne(path, p.Number != 0, p.Range != nil)
	if p.Number != 0 {
		errs = append(errs, validatePort(p.Number, path.Child("number"))...)
	}
	if r := p.Range; r != nil {
		errs = append(errs, validatePort(r.Start, path.Child("range", "start"))...)
		errs = append(errs, validatePort(r.End, path.Child("range", "end"))...)
		if r.Start >= r.End {
			errs = append(errs, field.Invalid(path.Child("range", "end"), r.End, fmt.Sprintf("must be greater than start (%d)", r.Start)))
		}
	}
	return errs
}

func validateNamespacedPod(p *policyv1beta1.NamespacedPod, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := validateSelector(&p.NamespaceSelector, path.Child("namespaceSelector"))
	return append(errs, validateSelector(&p.PodSelector, path.Child("podSelector"))...)
}

func exactlyOne(path *field.Path, set ...bool) field.ErrorList {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	switch n {
	case 0:
		return field.ErrorList{field.Required(path, "exactly one of its fields must be set")}
	case 1:
		return nil
	}
	return field.ErrorList{field.Forbidden(path, fmt.Sprintf("exactly one of its fields must be set, %d are", n))}
}

func atMost(n int, path *field.Path) field.ErrorList {
	if n > maxPolicyItems {
		return field.ErrorList{field.TooMany(path, n, maxPolicyItems)}
	}
	return nil
}
