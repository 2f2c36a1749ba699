package openflow

import (
	"errors"
	"fmt"
	"strings"
)

// Validate says whether a switch would take the flow, with everything that is
// wrong.
func (f Flow) Validate() error {
	c := checker{match: f.Match}
	var errs []error
	if f.Table == TableAll {
		errs = append(errs, errors.New("table 255 does not exist"))
	}
	errs = append(errs, f.Match.validate()...)
	errs = append(errs, c.actions(f.Actions, 0)...)
	for i, a := range f.Actions {
		g, ok := a.(GotoTable)
		if _, isMeter := a.(MeterAction); isMeter && i > 0 {
			errs = append(errs, errors.New("a meter is not the first action"))
		}
		switch {
		case !ok:
		case i != len(f.Actions)-1:
			errs = append(errs, errors.New("goto_table is not the last action"))
		case g.Table <= f.Table:
			errs = append(errs, fmt.Errorf("goto_table:%d does not lead to a later table than %d", g.Table, f.Table))
		}
	}
	if len(errs) == 0 {
		n := len(AppendFlowMod(nil, 0, FlowMod{Flow: f}))
		if n <= MaxMessage-BundleOverhead {
			return nil
		}
		errs = append(errs, fmt.Errorf("%d bytes long, more than a message can hold", n))
	}
	name := clip(f.String())
	if f.Comment != "" {
		name += " (" + f.Comment + ")"
	}
	return fmt.Errorf("openflow: flow %s: %w", name, errors.Join(errs...))
}

// Validate says whether a switch would take the match.
func (m Match) Validate() error {
	if errs := m.validate(); len(errs) > 0 {
		return fmt.Errorf("openflow: match %s: %w", clip(m.String()), errors.Join(errs...))
	}
	return nil
}

func (m Match) validate() []error {
	if !m.Canonical() {
		return []error{errors.New("the match is not in the form that NewMatch gives")}
	}
	var errs []error
	for _, t := range m {
		switch {
		case !t.Field.valid():
			errs = append(errs, errors.New("a term on a field that does not exist, or that cannot hold the value or an address of that family"))
		case !t.Exact() && !t.Field.Maskable():
			errs = append(errs, fmt.Errorf("%s: only the whole field can be matched", t.Field))
		case fieldTable[t.Field].need == needAction:
			errs = append(errs, fmt.Errorf("%s as actions see it cannot be matched", t.Field))
		default:
			if err := m.provides(fieldTable[t.Field].need); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", t.Field, err))
			}
		}
		switch t.Field {
		case CTState:
			errs = append(errs, checkCTState(t)...)
		case InPort:
			if p := Port(t.Value.Lo); p == 0 || p >= PortMax && p != PortLocal && p != PortController {
				errs = append(errs, fmt.Errorf("in_port: no packet comes from port %s", p))
			}
		case ARPOp:
			if t.Value.Lo > 0xff {
				errs = append(errs, errors.New("arp_op: only the lower 8 bits exist"))
			}
		case IPFrag:
			if t.Value.Lo&(FragAny|FragLater) == FragLater && t.Exact() {
				errs = append(errs, errors.New("ip_frag: a later fragment is also any fragment"))
			}
		case VLANVID:
			if t.Mask.Lo&VLANPresent != 0 && t.Value.Lo&VLANPresent == 0 && t.Value.Lo != 0 {
				errs = append(errs, errors.New("vlan_vid: an id without a VLAN header"))
			}
		}
	}
	return errs
}

// checkCTState refuses what can never be.
func checkCTState(t Term) []error {
	on, off := t.Value.Lo, t.Mask.Lo&^t.Value.Lo
	var errs []error
	if on&^CTTracked != 0 && off&CTTracked != 0 {
		errs = append(errs, errors.New("ct_state: the packet is not tracked, and yet has a state"))
	}
	if on&CTNew != 0 && on&CTEstablished != 0 {
		errs = append(errs, errors.New("ct_state: a connection is not both new and established"))
	}
	return errs
}

// provides says whether the match makes sure that a packet has what a field needs.
func (m Match) provides(need prerequisite) error {
	ethType, _ := m.exact(EthType)
	protocol, _ := m.exact(IPProto)
	isIP := ethType == EthTypeIPv4 || ethType == EthTypeIPv6
	frag, _ := m.Get(IPFrag)
	first := frag.Value.Lo&FragLater == 0
	want := func(ok bool, what string) error {
		if ok {
			return nil
		}
		return fmt.Errorf("the match must demand %s", what)
	}
	nd := func(types ...uint64) bool {
		typ, ok := m.exact(ICMPv6Type)
		code, _ := m.exact(ICMPv6Code) // need not be matched
		for _, t := range types {
			if ok && typ == t && code == 0 {
				return ethType == EthTypeIPv6 && protocol == ProtoICMPv6
			}
		}
		return false
	}
	switch need {
	case needARP:
		return want(ethType == EthTypeARP || ethType == EthTypeRARP, "arp")
	case needIPv4:
		return want(ethType == EthTypeIPv4, "ip")
	case needIPv6:
		return want(ethType == EthTypeIPv6, "ipv6")
	case needIP:
		return want(isIP, "ip or ipv6")
	case needTCP:
		return want(isIP && protocol == ProtoTCP && first, "tcp or tcp6, and no later fragments")
	case needUDP:
		return want(isIP && protocol == ProtoUDP && first, "udp or udp6, and no later fragments")
	case needSCTP:
		return want(isIP && protocol == ProtoSCTP && first, "sctp or sctp6, and no later fragments")
	case needICMP:
		return want(ethType == EthTypeIPv4 && protocol == ProtoICMP, "icmp")
	case needICMPv6:
		return want(ethType == EthTypeIPv6 && protocol == ProtoICMPv6, "icmp6")
	case needND:
		return want(nd(NeighborSolicit, NeighborAdvert), "icmp6 of type 135 or 136 and code 0")
	case needNDSolicit:
		return want(nd(NeighborSolicit), "icmp6 of type 135 and code 0")
	case needNDAdvert:
		return want(nd(NeighborAdvert), "icmp6 of type 136 and code 0")
	case needCT, needCT4, needCT6, needCTPorts:
		return m.providesCT(need, ethType, want)
	}
	return nil
}

func (m Match) providesCT(need prerequisite, ethType uint64, want func(bool, string) error) error {
	t, _ := m.Get(CTState)
	valid := t.Value.Lo&(CTNew|CTEstablished|CTRelated|CTReply|CTSNAT|CTDNAT) != 0 ||
		t.Value.Lo&CTTracked != 0 && t.Mask.Lo&CTInvalid != 0 && t.Value.Lo&CTInvalid == 0
	if err := want(valid, "a ct_state that only a tracked, valid packet has (+trk+est, +trk-inv, …)"); err != nil {
		return err
	}
	switch need {
	case needCT4:
		return want(ethType == EthTypeIPv4, "ip")
	case needCT6:
		return want(ethType == EthTypeIPv6, "ipv6")
	case needCTPorts:
		p, _ := m.exact(CTNwProto)
		return want(p == ProtoTCP || p == ProtoUDP || p == ProtoSCTP || p == ProtoICMP || p == ProtoICMPv6,
			"a ct_nw_proto that has ports")
	}
	return nil
}

// Validate says whether a switch would take the group.
func (g Group) Validate() error {
	var errs []error
	if g.ID > GroupIDMax {
		errs = append(errs, fmt.Errorf("numbers of groups end at %d", GroupIDMax))
	}
	switch {
	case g.Type > GroupIndirect:
		errs = append(errs, fmt.Errorf("%s does not exist", g.Type))
	case g.Type == GroupIndirect && len(g.Buckets) != 1:
		errs = append(errs, fmt.Errorf("%d buckets, an indirect group has one", len(g.Buckets)))
	}
	errs = append(errs, g.validateMethod()...)
	seen := make(map[uint32]bool, len(g.Buckets))
	c := checker{anyProtocol: true}
	for _, b := range g.Buckets {
		if b.ID > bucketMax || seen[b.ID] {
			errs = append(errs, fmt.Errorf("bucket %d: the number is taken or too large", b.ID))
		}
		seen[b.ID] = true
		if g.Type != GroupSelect && b.Weight != 0 {
			errs = append(errs, fmt.Errorf("bucket %d: only groups of type select have weights", b.ID))
		}
		for _, err := range c.actions(b.Actions, 1) {
			errs = append(errs, fmt.Errorf("bucket %d: %w", b.ID, err))
		}
	}
	if n := len(AppendGroupMod(nil, 0, GroupAdd, g)); n > MaxMessage-BundleOverhead {
		errs = append(errs, fmt.Errorf("%d bytes long, more than a message can hold", n))
	}
	if len(errs) == 0 {
		return nil
	}
	name := fmt.Sprint(g.ID)
	if g.Comment != "" {
		name += " (" + g.Comment + ")"
	}
	return fmt.Errorf("openflow: group %s: %w", name, errors.Join(errs...))
}

func (g Group) validateMethod() []error {
	var errs []error
	switch {
	case g.Method == SelectDefault && (g.MethodParam != 0 || len(g.Fields) > 0):
		errs = append(errs, errors.New("a parameter or fields without a selection method"))
	case g.Method != SelectDefault && g.Type != GroupSelect:
		errs = append(errs, fmt.Errorf("selection method %q in a group of type %s", g.Method, g.Type))
	case g.Method != SelectDefault && g.Method != SelectHash && g.Method != SelectDPHash:
		errs = append(errs, fmt.Errorf("selection method %q is not known", g.Method))
	case g.Method != SelectHash && len(g.Fields) > 0:
		errs = append(errs, fmt.Errorf("selection method %q takes no fields", g.Method))
	}
	for i, f := range g.Fields {
		if !f.valid() || i > 0 && f <= g.Fields[i-1] {
			errs = append(errs, fmt.Errorf("field %s does not exist or is out of order", f))
		}
	}
	return errs
}

// Validate says whether a switch would take the meter.
func (m Meter) Validate() error {
	var wrong []string
	if m.ID == 0 || m.ID > MeterIDMax {
		wrong = append(wrong, fmt.Sprintf("numbers of meters are 1 to %d", MeterIDMax))
	}
	if m.Rate == 0 {
		wrong = append(wrong, "a rate of 0")
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("openflow: meter %d: %s", m.ID, strings.Join(wrong, "; "))
}
