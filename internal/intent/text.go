package intent

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// String is the intent as text for people and golden files: one object a line,
// in the order of Node's fields.
func (n Node) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Node %s: %s\n", n.Name, n.describe())
	writeAll(&b, n.VPCs)
	writeAll(&b, n.Subnets)
	writeAll(&b, n.Peers)
	writeAll(&b, n.Routes)
	writeAll(&b, n.Tunnels)
	writeAll(&b, n.Ports)
	writeAll(&b, n.NATs)
	writeAll(&b, n.AddressSets)
	writeAll(&b, n.RuleLists)
	return b.String()
}

func writeAll[T Object[T]](b *strings.Builder, list []T) {
	for _, o := range list {
		fmt.Fprintf(b, "%s: %s\n", o.Ref(), o.String())
	}
}

func (n Node) describe() string {
	return fmt.Sprintf("MTU %d, underlay %s, VTEP %s", n.MTU, list(n.Underlay), n.VTEPMAC)
}

// String says for people what it is.
func (v VPC) String() string {
	if len(v.Tenants) == 0 {
		return fmt.Sprintf("VNI %d", v.VNI)
	}
	return fmt.Sprintf("VNI %d, tenants %s", v.VNI, numbers(v.Tenants))
}

// String says for people what it is.
func (s Subnet) String() string {
	kind := "direct"
	if s.Overlay {
		kind = "overlay"
	}
	return fmt.Sprintf("VPC %s, %s, %s", s.VPC, list(s.CIDRs), kind)
}

// String says for people what it is.
func (p Peer) String() string {
	outer := "no tunnel"
	if p.Outer.IsValid() {
		outer = "outer " + p.Outer.String()
	}
	return fmt.Sprintf("%s, %s, VTEP %s", list(p.Addrs), outer, p.VTEPMAC)
}

// String is "local", "via NODE", "dev LINK", "via ADDRESS", or a list of them.
func (h NextHop) String() string {
	switch {
	case h.Local:
		return "local"
	case h.Peer != "":
		return "via " + h.Peer
	case h.Device != "":
		return "dev " + h.Device
	case h.Gateway.IsValid():
		return "via " + h.Gateway.String()
	}
	return "ECMP " + list(h.ECMP)
}

// String is the origin in one word.
func (o Origin) String() string {
	switch o {
	case OriginBlock:
		return "block"
	case OriginStatic:
		return "static"
	case OriginBGP:
		return "BGP"
	}
	return fmt.Sprintf("origin %d", uint8(o))
}

// String says for people what it is.
func (r Route) String() string {
	s := r.NextHop.String()
	if r.Encapsulate {
		s += ", encapsulated"
	}
	if r.Origin != OriginBlock {
		s += ", from " + r.Origin.String()
	}
	return s
}

// String says for people what it is.
func (t TunnelAddress) String() string { return "Subnet " + t.Subnet }

// String says for people what it is.
func (p Port) String() string {
	pod := "no pod"
	if p.Pod != "" {
		pod = "pod " + p.Pod
	}
	s := fmt.Sprintf("%s, VPC %s, VNI %d, %s, MAC %s, %s in %s, host %s", pod, p.VPC, p.VNI, list(p.Addresses), p.MAC, p.Interface, p.Netns, p.HostInterface)
	for _, id := range []string{p.Ingress, p.Egress} {
		if id != "" {
			s += ", " + id
		}
	}
	return s
}

// String says for people what it is.
func (n NAT) String() string { return fmt.Sprintf("from %s, not to %s", list(n.Sources), n.Except) }

// String says for people what it is.
func (s AddressSet) String() string { return list(s.Prefixes) }

// String is "ingress" or "egress".
func (d Direction) String() string { return word(d, "ingress", "egress") }

// String is the word of the API.
func (a Action) String() string { return word(a, "Accept", "Deny", "Pass") }

// String is the word of the API.
func (t Tier) String() string { return word(t, "Admin", "NetworkPolicy", "Baseline") }

// word names a number that counts from one.
func word[T ~uint8](n T, words ...string) string {
	if n < 1 || int(n) > len(words) {
		return fmt.Sprintf("unknown %d", n)
	}
	return words[n-1]
}

// String is "80" or "80-90".
func (r PortRange) String() string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// String is "peers in A or B, TCP 80 8000-8080", or "everything".
func (m Match) String() string {
	var parts []string
	if len(m.Sets) > 0 {
		parts = append(parts, "peers in "+strings.Join(m.Sets, " or "))
	}
	if m.Protocol != 0 {
		s := m.Protocol.String()
		if len(m.Ports) > 0 {
			s += " " + list(m.Ports)
		}
		parts = append(parts, s)
	}
	if len(parts) == 0 {
		return "everything"
	}
	return strings.Join(parts, ", ")
}

// String is "NetworkPolicy NAMESPACE/NAME rule 1", for people.
func (o RuleOrigin) String() string {
	s := o.Kind + " " + o.Name
	if o.Namespace != "" {
		s = o.Kind + " " + o.Namespace + "/" + o.Name
	}
	if o.Index < 0 {
		return s + " isolates"
	}
	s += fmt.Sprintf(" rule %d", o.Index)
	if o.RuleName != "" {
		s += fmt.Sprintf(" (%q)", o.RuleName)
	}
	return s
}

// String says for people what it is.
func (r Rule) String() string {
	return fmt.Sprintf("%s: %s %s: %s", r.Tier, r.Action, r.Match, r.Origin)
}

// String says for people what it is: one rule a line.
func (l RuleList) String() string {
	s := fmt.Sprintf("VPC %s, %s", l.VPC, l.Direction)
	for _, r := range l.Rules {
		s += "\n  " + r.String()
	}
	return s
}

func list[T PortRange | netip.Addr | netip.Prefix | NextHop](items []T) string {
	if len(items) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, item := range items {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprint(&b, item)
	}
	return b.String()
}

func numbers(vnis []packet.VNI) string {
	var b strings.Builder
	for i, v := range vnis {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d", v)
	}
	return b.String()
}
