package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// maxBackends bounds the endpoints of a Service that are looked at.
const maxBackends = 16

// noServices is said of every answer about a Service.
const noServices = "this version carries no Service traffic itself: what is judged is the way from the client to each endpoint, as policies see it behind the translation"

// serviceAddresses are the cluster addresses of a Service.
func serviceAddresses(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, text := range append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...) {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	return out
}

func (v *clusterView) findService(key world.Key) (endpoint, error) {
	i := slices.IndexFunc(v.services, func(s *corev1.Service) bool { return s.Namespace == key.Namespace && s.Name == key.Name })
	if i < 0 {
		return endpoint{}, fmt.Errorf("there is no Service %s (fairlead get services lists them)", key)
	}
	return endpoint{name: "svc/" + key.String(), service: v.services[i]}, nil
}

// backend is an endpoint of a Service, and the port there.
type backend struct {
	end  oracle.End
	port portTarget
}

// backends are what a Service's port leads to.
func (v *clusterView) backends(ctx context.Context, s *corev1.Service, t portTarget) ([]backend, error) {
	port, err := servicePort(s, t)
	if err != nil {
		return nil, err
	}
	list, err := listTyped[*discoveryv1.EndpointSlice](ctx, v.store, datastore.KindEndpointSlice)
	if err != nil {
		return nil, err
	}
	name := s.Namespace + "/" + s.Name
	var out []backend
	known := false
	for _, slice := range list {
		if slice.Namespace == s.Namespace && slice.Labels[discoveryv1.LabelServiceName] == s.Name {
			known = true
			out = append(out, v.ofSlice(slice, port)...)
		}
	}
	if !known {
		if out, err = v.bySelector(s, port); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b backend) int { return a.end.Addr.Compare(b.end.Addr) })
	out = slices.CompactFunc(out, func(a, b backend) bool { return a.end == b.end && a.port == b.port })
	if len(out) == 0 {
		return nil, fmt.Errorf("the Service %s has no ready endpoint for port %s: nothing can be judged (fairlead get endpointslices -n %s, fairlead get pods -n %s)", name, t, s.Namespace, s.Namespace)
	}
	return out, nil
}

// servicePort finds the port of a Service by number or name.
func servicePort(s *corev1.Service, t portTarget) (corev1.ServicePort, error) {
	var have []string
	for _, p := range s.Spec.Ports {
		proto, err := packet.ParseProtocol(string(p.Protocol))
		if p.Protocol == "" {
			proto, err = packet.TCP, nil
		}
		if err != nil {
			continue
		}
		have = append(have, fmt.Sprintf("%d/%s", p.Port, proto))
		byNumber := t.name == "" && int32(t.number) == p.Port
		byName := t.name != "" && t.name == p.Name
		if (byNumber || byName) && (t.protocol == 0 || t.protocol == proto) {
			return p, nil
		}
	}
	return corev1.ServicePort{}, fmt.Errorf("the Service %s/%s has no port %s%s", s.Namespace, s.Name, t, amongst(have))
}

func protocolOf(p corev1.ServicePort) packet.Protocol {
	if proto, err := packet.ParseProtocol(string(p.Protocol)); err == nil {
		return proto
	}
	return packet.TCP
}

func (v *clusterView) ofSlice(slice *discoveryv1.EndpointSlice, port corev1.ServicePort) []backend {
	number := int32(0)
	for _, p := range slice.Ports {
		if p.Port != nil && (p.Name == nil && port.Name == "" || p.Name != nil && *p.Name == port.Name) {
			number = *p.Port
		}
	}
	if len(slice.Ports) == 0 && port.TargetPort.Type == intstr.Int { // Hand-written, all ports.
		number = max(port.TargetPort.IntVal, 0)
		if number == 0 {
			number = port.Port
		}
	}
	if number < 1 || number > 65535 {
		return nil
	}
	var out []backend
	for _, e := range slice.Endpoints {
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		for _, text := range e.Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				found := v.findAddress(a.Unmap())
				for _, end := range found.ends {
					out = append(out, backend{end, portTarget{number: uint16(number), protocol: protocolOf(port)}})
				}
			}
		}
	}
	return out
}

// bySelector finds endpoints where nobody has written EndpointSlices.
func (v *clusterView) bySelector(s *corev1.Service, port corev1.ServicePort) ([]backend, error) {
	if len(s.Spec.Selector) == 0 {
		return nil, fmt.Errorf("the Service %s/%s has neither EndpointSlices nor a selector: it leads nowhere", s.Namespace, s.Name)
	}
	var out []backend
	for _, end := range v.ends {
		pod, ok := v.snap.Pods.Get(end.Place.Pod)
		if end.Place.Kind != oracle.Pod || !ok || pod.Namespace != s.Namespace || pod.Finished || !hasLabels(pod.Labels, s.Spec.Selector) {
			continue
		}
		t := portTarget{protocol: protocolOf(port)}
		switch {
		case port.TargetPort.Type == intstr.String:
			t.name = port.TargetPort.StrVal
			var err error
			if t, err = t.onPod(pod); err != nil {
				continue // Such a pod is no endpoint of this port.
			}
		case port.TargetPort.IntVal > 0 && port.TargetPort.IntVal <= 65535:
			t.number = uint16(port.TargetPort.IntVal)
		default:
			t.number = uint16(port.Port)
		}
		out = append(out, backend{end, t})
	}
	return out, nil
}

func hasLabels(have, want map[string]string) bool {
	for k, x := range want {
		if got, ok := have[k]; !ok || got != x {
			return false
		}
	}
	return true
}

// podsOfService names a few pods that a Service selects, for a hint.
func (v *clusterView) podsOfService(s *corev1.Service) string {
	var out []string
	for k, p := range v.snap.Pods.All() {
		if len(s.Spec.Selector) > 0 && p.Namespace == s.Namespace && hasLabels(p.Labels, s.Spec.Selector) {
			out = append(out, k.String())
		}
	}
	slices.Sort(out)
	if len(out) == 0 {
		return ""
	}
	return ": " + strings.Join(out[:min(len(out), 8)], ", ")
}
