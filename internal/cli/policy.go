package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func (a *app) policyCommand() *cobra.Command {
	return group("policy", "Policies: why a packet passes or not, and what a change would do", a.policyWhyCommand(), a.policyWhatifCommand())
}

// clusterView is the cluster as the policy commands see it.
type clusterView struct {
	snap     *world.Snapshot
	model    *oracle.Model
	ends     []oracle.End
	services []*corev1.Service
	store    datastore.Store
	// namespace of names that say none.
	namespace string
}

func viewCluster(ctx context.Context, s datastore.Store, namespace string) (*clusterView, error) {
	snap, err := readWorld(ctx, s)
	if err != nil {
		return nil, err
	}
	services, err := listTyped[*corev1.Service](ctx, s, datastore.KindService)
	if err != nil {
		return nil, err
	}
	m := oracle.Read(snap)
	return &clusterView{snap: snap, model: m, ends: m.Ends(), services: services, store: s, namespace: namespace}, nil
}

// endpoint is an end of a packet, as a person named it.
type endpoint struct {
	// name as it is written in full: "shop/web", "node/n1", "10.0.0.1", "svc/shop/web".
	name string
	// ends are its addresses; several of one family only for a Service's endpoints.
	ends []oracle.End
	// note is what a person should know about it.
	note string
	// service is set for a Service.
	service *corev1.Service
}

const endForms = "a pod (NAMESPACE/NAME), node/NAME, an address, or svc/NAMESPACE/NAME"

// find reads who text names.
func (v *clusterView) find(text string) (endpoint, error) {
	if text == "" {
		return endpoint{}, usagef("an end is missing: name %s", endForms)
	}
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		a = a.Unmap()
		switch {
		case a.Zone() != "":
			return endpoint{}, usagef("%s is an address of one link, and nothing routes to it: leave out %%%s to ask all the same", a, a.Zone())
		case a.IsUnspecified():
			return endpoint{}, usagef("%s is nobody's address: name one that a machine has", a)
		}
		return v.findAddress(a), nil
	}
	parts := strings.Split(text, "/")
	switch {
	case slices.Contains(parts, "") || len(parts) > 3:
		return endpoint{}, usagef("%q is none of %s", text, endForms)
	case parts[0] == "node" && len(parts) == 2:
		return v.findNode(parts[1])
	case parts[0] == "svc" && len(parts) == 2:
		return v.findService(world.Key{Namespace: cmp.Or(v.namespace, "default"), Name: parts[1]})
	case parts[0] == "svc":
		return v.findService(world.Key{Namespace: parts[1], Name: parts[2]})
	case parts[0] == "pod" && len(parts) == 3:
		return v.findPod(world.Key{Namespace: parts[1], Name: parts[2]}, true)
	case len(parts) == 3:
		return endpoint{}, usagef("%q is none of %s", text, endForms)
	case len(parts) == 2:
		return v.findPod(world.Key{Namespace: parts[0], Name: parts[1]}, true)
	}
	return v.findPod(world.Key{Namespace: cmp.Or(v.namespace, "default"), Name: text}, v.namespace != "")
}

func (v *clusterView) findAddress(a netip.Addr) endpoint {
	i := slices.IndexFunc(v.services, func(s *corev1.Service) bool { return slices.Contains(serviceAddresses(s), a) })
	if i >= 0 {
		s := v.services[i]
		return endpoint{name: "svc/" + s.Namespace + "/" + s.Name, service: s, note: a.String() + " is the address of Service " + s.Namespace + "/" + s.Name}
	}
	e := endpoint{name: a.String(), ends: []oracle.End{{Addr: a}}}
	if i := slices.IndexFunc(v.ends, func(x oracle.End) bool { return x.Addr == a }); i >= 0 {
		e.ends[0] = v.ends[i]
	}
	return e
}

func (v *clusterView) findNode(name string) (endpoint, error) {
	e := endpoint{name: "node/" + name}
	for _, x := range v.ends {
		n, _ := v.snap.NodeNetworks.Get(world.Key{Name: name})
		own := n != nil && slices.ContainsFunc(n.Addresses, func(p netip.Prefix) bool { return p.Addr() == x.Addr })
		if own && x.Place == (oracle.Place{Kind: oracle.Node, Node: name}) {
			e.ends = append(e.ends, x)
		}
	}
	if len(e.ends) > 0 {
		return e, nil
	}
	if _, known := v.snap.Nodes.Get(world.Key{Name: name}); known {
		return endpoint{}, fmt.Errorf("node %s has told no address yet: does fairlead-agent run there? fairlead node status %s asks it", name, name)
	}
	var names []string
	for n := range v.snap.Nodes.Values() {
		names = append(names, n.Name)
	}
	return endpoint{}, noNode(name, names)
}

// noNode says that a node does not exist, and which do.
func noNode(name string, known []string) error {
	return fmt.Errorf("there is no node %s%s", usage.Quote(name), amongst(known))
}

// amongst lists a few names that there are.
func amongst(names []string) string {
	const most = 8
	switch {
	case len(names) == 0:
		return ""
	case len(names) == 1:
		return "; there is " + names[0]
	case len(names) > most:
		return fmt.Sprintf("; there are %s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return "; there are " + strings.Join(names, ", ")
}

// findPod finds a pod. Of a name whose namespace nobody gave, pods elsewhere are hinted at.
func (v *clusterView) findPod(key world.Key, sure bool) (endpoint, error) {
	pod, ok := v.snap.Pods.Get(key)
	if !ok {
		return endpoint{}, v.noPod(key, sure)
	}
	if pod.HostNetwork {
		if pod.Node == "" {
			return endpoint{}, fmt.Errorf("pod %s is in the host's network, and bound to no node yet", key)
		}
		e, err := v.findNode(pod.Node)
		e.note = fmt.Sprintf("pod %s is in the host's network: policies take it for node %s", key, pod.Node)
		return e, err
	}
	e := endpoint{name: key.String()}
	for _, x := range v.ends {
		if x.Place.Kind == oracle.Pod && x.Place.Pod == key {
			e.ends = append(e.ends, x)
		}
	}
	switch {
	case len(e.ends) > 0:
		return e, nil
	case pod.Node == "":
		return endpoint{}, fmt.Errorf("pod %s has no address yet: it is bound to no node", key)
	case pod.Finished:
		return endpoint{}, fmt.Errorf("pod %s has finished, and has no address any more", key)
	}
	return endpoint{}, fmt.Errorf("pod %s has no address yet: fairlead events -n %s and fairlead node status %s tell why", key, key.Namespace, pod.Node)
}

func (v *clusterView) noPod(key world.Key, sure bool) error {
	var same []string
	for k := range v.snap.Pods.All() {
		if k.Name == key.Name && k.Namespace != key.Namespace {
			same = append(same, k.String())
		}
	}
	slices.Sort(same)
	_, isNode := v.snap.Nodes.Get(world.Key{Name: key.Name})
	isService := slices.ContainsFunc(v.services, func(s *corev1.Service) bool {
		return s.Namespace == key.Namespace && s.Name == key.Name
	})
	switch {
	case len(same) > 1 && !sure:
		return fmt.Errorf("there is no pod %s, and %q may be one of several: say which of %s", key, key.Name, strings.Join(same[:min(len(same), 8)], ", "))
	case len(same) == 1:
		return fmt.Errorf("there is no pod %s; did you mean %s?", key, same[0])
	case isService:
		return fmt.Errorf("there is no pod %s; the Service of that name is svc/%s", key, key)
	case isNode && !sure:
		return fmt.Errorf("there is no pod %s; the node of that name is node/%s", key, key.Name)
	}
	return fmt.Errorf("there is no pod %s (fairlead get pods lists them)", key)
}

// portTarget is a port as a person named it.
type portTarget struct {
	number   uint16
	name     string
	protocol packet.Protocol // zero: what the name stands for
}

const portForms = "PORT/PROTOCOL (80/TCP, 53/udp, http) or icmp"

// splitTarget splits DST:PORT/PROTO.
func splitTarget(text string) (end string, t portTarget, err error) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return "", portTarget{}, usagef("%q names no port: write DST:%s", text, portForms)
	}
	end = text[:i]
	if strings.Contains(end, ":") && !strings.HasPrefix(end, "[") {
		return "", portTarget{}, usagef("%q: write an IPv6 address in brackets, [fd00::1]:80/TCP", text)
	}
	t, err = parseTarget(text[i+1:])
	return end, t, err
}

func parseTarget(text string) (portTarget, error) {
	port, proto, given := strings.Cut(text, "/")
	if p, err := packet.ParseProtocol(port); !given && err == nil && (p == packet.ICMP || p == packet.ICMPv6) {
		return portTarget{protocol: p}, nil
	}
	var t portTarget
	if given {
		p, err := packet.ParseProtocol(proto)
		if err != nil || p == packet.ICMP || p == packet.ICMPv6 {
			return portTarget{}, usagef("%q: %q is no protocol with ports: want %s", text, proto, portForms)
		}
		t.protocol = p
	}
	n, err := strconv.ParseUint(port, 10, 64)
	switch {
	case err != nil && strings.ContainsFunc(port, func(r rune) bool { return r >= 'a' && r <= 'z' }):
		t.name = port
		return t, nil
	case err != nil, n < 1, n > 65535:
		return portTarget{}, usagef("%q: a port is a number from 1 to 65535, or a name: want %s", text, portForms)
	}
	t.number = uint16(n)
	t.protocol = cmp.Or(t.protocol, packet.TCP)
	return t, nil
}

// String is "80/TCP".
func (t portTarget) String() string {
	switch {
	case t.number == 0 && t.name == "":
		return t.protocol.String()
	case t.number == 0 && t.protocol == 0:
		return t.name
	case t.number == 0:
		return t.name + "/" + t.protocol.String()
	}
	return fmt.Sprintf("%d/%s", t.number, t.protocol)
}

// onPod finds what a port name stands for on a pod.
func (t portTarget) onPod(p *world.Pod) (portTarget, error) {
	if t.name == "" {
		return t, nil
	}
	var found []portTarget
	var names []string
	for _, c := range p.Ports {
		if c.Name != "" {
			names = append(names, c.Name)
		}
		if c.Name == t.name && (t.protocol == 0 || t.protocol == c.Protocol) {
			found = append(found, portTarget{number: c.Port, protocol: c.Protocol})
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return portTarget{}, fmt.Errorf("pod %s/%s has no container port named %s%s", p.Namespace, p.Name, t, amongst(names))
	}
	return portTarget{}, fmt.Errorf("pod %s/%s has several ports named %q: say which protocol, %s/TCP", p.Namespace, p.Name, t.name, t.name)
}
