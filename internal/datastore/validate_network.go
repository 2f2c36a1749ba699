package datastore

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
)

func validateService(s, _ *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	types := []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName}
	if !slices.Contains(types, s.Spec.Type) {
		errs = append(errs, field.NotSupported(path.Child("type"), s.Spec.Type, types))
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		if msgs := validation.IsDNS1123Subdomain(s.Spec.ExternalName); len(msgs) > 0 {
			errs = append(errs, field.Invalid(path.Child("externalName"), s.Spec.ExternalName, msgs[0]))
		}
	}
	if len(s.Spec.Ports) == 0 && s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone {
		errs = append(errs, field.Required(path.Child("ports"), "at least one port"))
	}
	names, ports := sets.New[string](), sets.New[string]()
	for i := range s.Spec.Ports {
		errs = append(errs, validateServicePort(s, i, names, ports, path.Child("ports").Index(i))...)
	}
	for i, ip := range s.Spec.ClusterIPs {
		if ip == corev1.ClusterIPNone {
			continue
		}
		if _, err := v1alpha1.ParseAddr(ip); err != nil {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(i), ip, err.Error()))
		}
	}
	if ip := s.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		if _, err := v1alpha1.ParseAddr(ip); err != nil {
			errs = append(errs, field.Invalid(path.Child("clusterIP"), ip, err.Error()))
		}
	}
	return append(errs, metav1validation.ValidateLabels(s.Spec.Selector, path.Child("selector"))...)
}

func validateServicePort(s *corev1.Service, i int, names, ports sets.Set[string], path *field.Path) field.ErrorList {
	port := &s.Spec.Ports[i]
	errs := validatePort(port.Port, path.Child("port"))
	errs = append(errs, validateProtocol(port.Protocol, path.Child("protocol"))...)
	if port.NodePort != 0 {
		errs = append(errs, validatePort(port.NodePort, path.Child("nodePort"))...)
	}
	switch {
	case port.Name == "" && len(s.Spec.Ports) > 1:
		errs = append(errs, field.Required(path.Child("name"), "every port needs a name where there are several"))
	case port.Name == "":
	case len(validation.IsDNS1123Label(port.Name)) > 0:
		errs = append(errs, field.Invalid(path.Child("name"), port.Name, validation.IsDNS1123Label(port.Name)[0]))
	case names.Has(port.Name):
		errs = append(errs, field.Duplicate(path.Child("name"), port.Name))
	}
	names.Insert(port.Name)
	if id := fmt.Sprintf("%d/%s", port.Port, port.Protocol); ports.Has(id) {
		errs = append(errs, field.Duplicate(path, id))
	} else {
		ports.Insert(id)
	}
	return append(errs, validatePortOrName(port.TargetPort, path.Child("targetPort"))...)
}

func validatePortOrName(p intstr.IntOrString, path *field.Path) field.ErrorList {
	if p.Type == intstr.Int {
		return validatePort(p.IntVal, path)
	}
	if msgs := validation.IsValidPortName(p.StrVal); len(msgs) > 0 {
		return field.ErrorList{field.Invalid(path, p.StrVal, "must be a port number or a port name: "+msgs[0])}
	}
	return nil
}

func validateEndpointSlice(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	types := []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN}
	if !slices.Contains(types, s.AddressType) {
		return field.ErrorList{field.NotSupported(field.NewPath("addressType"), s.AddressType, types)}
	}
	if old != nil && old.AddressType != s.AddressType {
		errs = append(errs, field.Invalid(field.NewPath("addressType"), s.AddressType, fmt.Sprintf("is immutable, it was %s", old.AddressType)))
	}
	path := field.NewPath("endpoints")
	if len(s.Endpoints) > 1000 {
		return append(errs, field.TooMany(path, len(s.Endpoints), 1000))
	}
	for i, ep := range s.Endpoints {
		at := path.Index(i).Child("addresses")
		if len(ep.Addresses) == 0 {
			errs = append(errs, field.Required(at, "at least one address"))
		}
		for j, a := range ep.Addresses {
			errs = append(errs, validateEndpointAddress(s.AddressType, a, at.Index(j))...)
		}
	}
	names := sets.New[string]()
	for i, p := range s.Ports {
		at := field.NewPath("ports").Index(i)
		name := ptr.Deref(p.Name, "")
		if names.Has(name) {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		names.Insert(name)
		errs = append(errs, validateProtocol(ptr.Deref(p.Protocol, corev1.ProtocolTCP), at.Child("protocol"))...)
		if p.Port != nil {
			errs = append(errs, validatePort(*p.Port, at.Child("port"))...)
		}
	}
	return errs
}

func validateEndpointAddress(t discoveryv1.AddressType, s string, path *field.Path) field.ErrorList {
	if t == discoveryv1.AddressTypeFQDN {
		if msgs := validation.IsDNS1123Subdomain(s); len(msgs) > 0 {
			return field.ErrorList{field.Invalid(path, s, msgs[0])}
		}
		return nil
	}
	a, err := v1alpha1.ParseAddr(s)
	if err != nil {
		return field.ErrorList{field.Invalid(path, s, err.Error())}
	}
	if a.Is4() != (t == discoveryv1.AddressTypeIPv4) {
		return field.ErrorList{field.Invalid(path, s, fmt.Sprintf("is not an %s address, as addressType says", t))}
	}
	return nil
}

func validateNetworkPolicy(p, _ *networkingv1.NetworkPolicy) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateSelector(&p.Spec.PodSelector, path.Child("podSelector"))
	for i, rule := range p.Spec.Ingress {
		at := path.Child("ingress").Index(i)
		errs = append(errs, validatePolicyPorts(rule.Ports, at.Child("ports"))...)
		errs = append(errs, validatePolicyPeers(rule.From, at.Child("from"))...)
	}
	for i, rule := range p.Spec.Egress {
		at := path.Child("egress").Index(i)
		errs = append(errs, validatePolicyPorts(rule.Ports, at.Child("ports"))...)
		errs = append(errs, validatePolicyPeers(rule.To, at.Child("to"))...)
	}
	if len(p.Spec.PolicyTypes) > 2 {
		return append(errs, field.TooMany(path.Child("policyTypes"), len(p.Spec.PolicyTypes), 2))
	}
	valid := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	for i, t := range p.Spec.PolicyTypes {
		if !slices.Contains(valid, t) {
			errs = append(errs, field.NotSupported(path.Child("policyTypes").Index(i), t, valid))
		}
	}
	return errs
}

func validatePolicyPorts(ports []networkingv1.NetworkPolicyPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range ports {
		at := path.Index(i)
		if p.Protocol != nil {
			errs = append(errs, validateProtocol(*p.Protocol, at.Child("protocol"))...)
		}
		if p.Port != nil {
			errs = append(errs, validatePortOrName(*p.Port, at.Child("port"))...)
		}
		switch {
		case p.EndPort == nil:
		case p.Port == nil:
			errs = append(errs, field.Required(at.Child("port"), "endPort needs a port"))
		case p.Port.Type == intstr.String:
			errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, "may not be used with a named port"))
		case *p.EndPort < p.Port.IntVal || *p.EndPort > 65535:
			errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, fmt.Sprintf("must be between port (%d) and 65535", p.Port.IntVal)))
		}
	}
	return errs
}

func validatePolicyPeers(peers []networkingv1.NetworkPolicyPeer, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range peers {
		at := path.Index(i)
		switch {
		case p.IPBlock == nil && p.PodSelector == nil && p.NamespaceSelector == nil:
			errs = append(errs, field.Required(at, "a podSelector, a namespaceSelector or an ipBlock"))
		case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
			errs = append(errs, field.Forbidden(at, "an ipBlock stands alone: make a peer of its own for the selectors"))
		}
		errs = append(errs, validateSelector(p.PodSelector, at.Child("podSelector"))...)
		errs = append(errs, validateSelector(p.NamespaceSelector, at.Child("namespaceSelector"))...)
		if p.IPBlock != nil {
			errs = append(errs, validateIPBlock(p.IPBlock, at.Child("ipBlock"))...)
		}
	}
	return errs
}

func validateIPBlock(b *networkingv1.IPBlock, path *field.Path) field.ErrorList {
	outer, err := parsePolicyCIDR(b.CIDR)
	if err != nil {
		return field.ErrorList{field.Invalid(path.Child("cidr"), b.CIDR, err.Error())}
	}
	var errs field.ErrorList
	for i, s := range b.Except {
		at := path.Child("except").Index(i)
		inner, err := parsePolicyCIDR(s)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(at, s, err.Error()))
		case inner.Bits() <= outer.Bits() || !outer.Contains(inner.Addr()):
			errs = append(errs, field.Invalid(at, s, fmt.Sprintf("must be a strict part of the cidr %s", outer)))
		}
	}
	return errs
}
