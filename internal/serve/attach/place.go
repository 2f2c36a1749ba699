package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/decide/selector"
	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// place is where an attachment may go.
type place struct {
	pod     world.Owner
	vpc     string
	subnets []*world.Subnet // at least one, in the order in which to try them
	want    []netip.Addr
}

// notYetError says what the world lacks for a place; waiting may help.
type notYetError struct{ error }

func notYet(format string, args ...any) error {
	return notYetError{fmt.Errorf(format, args...)}
}

func isNotYet(err error) bool { return errors.As(err, new(notYetError)) }

// choose finds the place for a request in one snapshot. The error is a notYetError
// if the world lacks something; podMissing, if that is the pod.
func choose(s *world.Snapshot, r Request) (p place, podMissing bool, err error) {
	if r.Pod == (world.Owner{}) {
		p, err = chooseStandalone(s, r)
		return p, false, err
	}
	pod, ok := s.Pods.Get(podKey(r))
	if !ok {
		return place{}, true, notYet("the Pod %s is not known to this node", podKey(r))
	}
	if !isPod(pod, r.Pod.UID) {
		return place{}, true, notYet("the Pod %s that this node knows has UID %s, not %s", podKey(r), pod.UID, r.Pod.UID)
	}
	p, err = choosePod(s, r, pod)
	return p, false, err
}

func podKey(r Request) world.Key { return world.Key{Namespace: r.Pod.Namespace, Name: r.Pod.Name} }

// isPod compares by the UID that a runtime uses: a static pod's is that of its
// manifest, which its mirror in the API bears as an annotation.
func isPod(p *world.Pod, uid string) bool {
	return uid == "" || p.UID == uid || p.StaticUID == uid
}

func choosePod(s *world.Snapshot, r Request, pod *world.Pod) (place, error) {
	p := place{pod: r.Pod}
	p.pod.UID = cmp.Or(r.Pod.UID, pod.StaticUID, pod.UID)
	ns, ok := s.Namespaces.Get(world.Key{Name: pod.Namespace})
	if !ok {
		return place{}, notYet("the Namespace %s is not known to this node", pod.Namespace)
	}
	var err error
	if p.vpc, err = vpcOf(s, ns); err != nil {
		return place{}, err
	}
	if p.want, err = wanted(pod, r.Want); err != nil {
		return place{}, err
	}
	if name := cmp.Or(pod.WantSubnet, r.Subnet); name != "" {
		subnet, ok := s.Subnets.Get(world.Key{Name: name})
		switch {
		case !isSubnetName(name):
			return place{}, fmt.Errorf("%s asks for the Subnet %q, which is no name of a Subnet", asker(pod), shorten(name))
		case !ok:
			return place{}, notYet("the Subnet %s, which %s asks for, does not exist", name, asker(pod))
		case subnet.VPC != p.vpc:
			return place{}, fmt.Errorf("the Subnet %s, which %s asks for, is in VPC %s, and the namespace %s in %s", name, asker(pod), subnet.VPC, ns.Name, p.vpc)
		case rank(subnet, ns.Labels) == 0:
			return place{}, fmt.Errorf("the Subnet %s, which %s asks for, does not select the namespace %s", name, asker(pod), ns.Name)
		}
		p.subnets = []*world.Subnet{subnet}
	} else {
		p.subnets = subnetsFor(s, p.vpc, ns.Labels)
	}
	return p.usable("the namespace " + ns.Name)
}

func asker(pod *world.Pod) string {
	if pod.WantSubnet != "" {
		return "the pod's annotation fairlead.dev/subnet"
	}
	return "the network configuration"
}

// chooseStandalone: without a pod there is no namespace. The VPC is that of the
// Subnet asked for, otherwise the default one and those of its Subnets that are for
// every namespace.
func chooseStandalone(s *world.Snapshot, r Request) (place, error) {
	p := place{pod: world.Owner{Name: "container/" + r.ContainerID}, vpc: packet.DefaultVPC, want: r.Want}
	if r.Subnet != "" {
		subnet, ok := s.Subnets.Get(world.Key{Name: r.Subnet})
		if !ok {
			return place{}, notYet("the Subnet %s, which the network configuration asks for, does not exist", r.Subnet)
		}
		p.vpc, p.subnets = subnet.VPC, []*world.Subnet{subnet}
	} else {
		for subnet := range s.Subnets.Values() {
			if subnet.VPC == p.vpc && forEverybody(subnet) {
				p.subnets = append(p.subnets, subnet)
			}
		}
	}
	var none world.Table[*world.Namespace]
	if _, err := tenancy.Decide(none, s.VPCs, world.Table[*world.NetNamespace]{}).VNI(p.vpc, ""); err != nil {
		return place{}, notYet("%w", err)
	}
	return p.usable("attachments without a pod")
}

// vpcOf returns the VPC of a namespace, provided that its packets have a VNI: what
// has none gets no network, and a pod that is told otherwise would hang instead of
// being tried again. The decision is made from this namespace alone; conflicts with
// others are found when the intent is compiled.
func vpcOf(s *world.Snapshot, ns *world.Namespace) (string, error) {
	var namespaces world.Table[*world.Namespace]
	var netNamespaces world.Table[*world.NetNamespace]
	key := world.Key{Name: ns.Name}
	if n, ok := s.NetNamespaces.Get(key); ok {
		netNamespaces = netNamespaces.With(key, n)
	}
	t := tenancy.Decide(namespaces.With(key, ns), s.VPCs, netNamespaces)
	vpc, _ := t.VPCOf(ns.Name)
	if _, err := t.VNI(vpc, ns.Name); err != nil {
		return "", notYet("%w", err)
	}
	return vpc, nil
}

// subnetsFor lists the VPC's Subnets that a namespace may use: those that select it
// by name or label before those that are for everybody, each by name.
func subnetsFor(s *world.Snapshot, vpc string, labels map[string]string) []*world.Subnet {
	var list []*world.Subnet
	for subnet := range s.Subnets.Values() {
		if subnet.VPC == vpc && rank(subnet, labels) > 0 {
			list = append(list, subnet)
		}
	}
	slices.SortStableFunc(list, func(a, b *world.Subnet) int { return cmp.Compare(rank(b, labels), rank(a, labels)) })
	return list
}

// rank is 2 for a Subnet that selects the namespace, 1 for one that is for every
// namespace of its VPC, 0 for one that is for others.
func rank(s *world.Subnet, labels map[string]string) int {
	if forEverybody(s) {
		return 1
	}
	// A selector that does not parse is the Subnet's Problem; it selects nothing.
	if m, err := selector.Parse(s.Namespaces); err == nil && m.Matches(labels) {
		return 2
	}
	return 0
}

func forEverybody(s *world.Subnet) bool {
	return s.Namespaces == nil || len(s.Namespaces.MatchLabels) == 0 && len(s.Namespaces.MatchExpressions) == 0
}

// usable keeps the Subnets that can give what is wanted.
func (p place) usable(whose string) (place, error) {
	fits := func(s *world.Subnet) bool {
		v4, v6 := families(s)
		return (v4 || v6) && !slices.ContainsFunc(p.want, func(a netip.Addr) bool { return !contains(s, a) })
	}
	had := len(p.subnets)
	p.subnets = slices.DeleteFunc(p.subnets, func(s *world.Subnet) bool { return !fits(s) })
	switch {
	case len(p.subnets) > 0:
		return p, nil
	case had > 0 && len(p.want) > 0:
		return place{}, notYet("no Subnet of VPC %s for %s contains %s", p.vpc, whose, join(p.want))
	}
	return place{}, notYet("VPC %s has no Subnet for %s", p.vpc, whose)
}

func contains(s *world.Subnet, a netip.Addr) bool {
	return slices.ContainsFunc(s.CIDRs, func(c netip.Prefix) bool { return c.Contains(a) })
}

func families(s *world.Subnet) (v4, v6 bool) {
	for _, c := range s.CIDRs {
		v4 = v4 || c.Addr().Is4()
		v6 = v6 || c.Addr().Is6()
	}
	return v4, v6
}

// wanted reads the pod's annotation, which takes precedence over the request.
func wanted(pod *world.Pod, requested []netip.Addr) ([]netip.Addr, error) {
	if pod.WantIP == "" {
		return requested, nil
	}
	parts := strings.Split(pod.WantIP, ",")
	if len(parts) > 2 {
		return nil, fmt.Errorf("the pod's annotation fairlead.dev/ip has %d addresses; it takes one IPv4, one IPv6, or both with a comma", len(parts))
	}
	var want []netip.Addr
	for _, part := range parts {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("the pod's annotation fairlead.dev/ip is %q: %q is not an IP address", shorten(pod.WantIP), shorten(part))
		}
		want = append(want, a)
	}
	slices.SortFunc(want, netip.Addr.Compare) // IPv4 first
	return want, checkWant(want)
}

// checkWant wants plain addresses, at most one a family, IPv4 first.
func checkWant(want []netip.Addr) error {
	if len(want) == 0 {
		return nil
	}
	if err := checkAddresses(want); err != nil {
		return fmt.Errorf("the wanted %w", err)
	}
	return nil
}

// await waits until the world has a place for the request. The world hears of pods
// by its watch; after askAfter the datastore is asked for the pod directly.
func (s *Service) await(ctx context.Context, r Request) (place, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.PodTimeout, errPodTimeout)
	defer cancel()
	ask := time.NewTimer(s.cfg.AskAfter)
	defer ask.Stop()
	asked := make(chan error, 1)
	var asking bool
	defer func() {
		if asking { // it ends with the context
			cancel()
			<-asked
		}
	}()
	var lastAsk error
	for {
		snapshot, changed := s.cfg.World.Snapshot()
		p, podMissing, err := choose(snapshot, r)
		if err == nil || !isNotYet(err) {
			return p, err
		}
		var due <-chan time.Time
		if podMissing && !asking {
			due = ask.C
		}
		select {
		case <-changed:
		case <-due:
			asking = true
			go func() { asked <- s.fetch(ctx, r) }()
		case lastAsk = <-asked:
			asking = false
			ask.Reset(askAgain)
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), errPodTimeout) {
				return place{}, context.Cause(ctx)
			}
			return place{}, oneLine(err, lastAsk, s.Ready())
		}
	}
}

// askAgain is the time between two direct questions for the same pod.
const askAgain = time.Second

var errPodTimeout = errors.New("waited too long for the world")

// fetch asks the datastore for the request's pod and puts it into the world, unless
// the watch was faster. Should the watch have seen the pod's end in between, then
// the next list removes what is put here, and until then it does nothing: a pod has
// no address without an attachment.
func (s *Service) fetch(ctx context.Context, r Request) error {
	pod, err := s.cfg.Pods.Pod(ctx, r.Pod.Namespace, r.Pod.Name)
	switch {
	case err != nil:
		return fmt.Errorf("ask the datastore for the pod: %w", err)
	case pod == nil:
		return errors.New("the datastore has no such pod either")
	case !isPod(pod, r.Pod.UID):
		return fmt.Errorf("the datastore's pod of that name has UID %s", pod.UID)
	}
	snapshot, _ := s.cfg.World.Snapshot()
	if known, ok := snapshot.Pods.Get(podKey(r)); ok && isPod(known, r.Pod.UID) {
		return nil
	}
	s.cfg.World.Apply(world.Change{Kind: world.KindPod, Key: podKey(r), Object: pod})
	return nil
}

func join(addrs []netip.Addr) string {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}

// shorten keeps a hostile megabyte out of a message.
func shorten(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
