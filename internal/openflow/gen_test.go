package openflow

import (
	"net/netip"
	"slices"

	"pgregory.net/rapid"
)

// profiles are the protocols that a random match starts from.
var profiles = [][]Term{
	nil,
	{Eq(EthType, EthTypeARP)},
	{Eq(EthType, EthTypeRARP)},
	{Eq(EthType, 0x88cc)},
	{Eq(EthType, EthTypeIPv4), Masked(VLANVID, VLANPresent, VLANPresent)},
	{Eq(EthType, EthTypeIPv4)},
	{Eq(EthType, EthTypeIPv6)},
	{Eq(EthType, EthTypeIPv4), Eq(IPProto, ProtoTCP)},
	{Eq(EthType, EthTypeIPv4), Eq(IPProto, ProtoUDP)},
	{Eq(EthType, EthTypeIPv4), Eq(IPProto, ProtoSCTP)},
	{Eq(EthType, EthTypeIPv4), Eq(IPProto, ProtoICMP)},
	{Eq(EthType, EthTypeIPv4), Eq(IPProto, 89)},
	{Eq(EthType, EthTypeIPv6), Eq(IPProto, ProtoTCP)},
	{Eq(EthType, EthTypeIPv6), Eq(IPProto, ProtoUDP)},
	{Eq(EthType, EthTypeIPv6), Eq(IPProto, ProtoSCTP)},
	{Eq(EthType, EthTypeIPv6), Eq(IPProto, ProtoICMPv6)},
	{Eq(EthType, EthTypeIPv6), Eq(IPProto, ProtoICMPv6), Eq(ICMPv6Type, NeighborSolicit), Eq(ICMPv6Code, 0)},
	{Eq(EthType, EthTypeIPv6), Eq(IPProto, ProtoICMPv6), Eq(ICMPv6Type, NeighborAdvert), Eq(ICMPv6Code, 0)},
	{Eq(EthType, EthTypeIPv4), Masked(CTState, CTTracked, CTTracked|CTInvalid)},
	{Eq(EthType, EthTypeIPv4), Masked(CTState, CTTracked|CTEstablished, CTTracked|CTEstablished), Eq(CTNwProto, ProtoTCP)},
	{Eq(EthType, EthTypeIPv6), Masked(CTState, CTTracked|CTNew, CTTracked|CTNew), Eq(CTNwProto, ProtoUDP)},
}

// evenly draws a number below n, each as likely as another; rapid's own ranges
// prefer small ones.
func evenly(t *rapid.T, n int) int {
	h := uint64(1)
	for range 4 {
		h = (h + uint64(rapid.Uint16().Draw(t, "evenly"))) * 0x9e3779b97f4a7c15
		h ^= h >> 31
	}
	return int(h >> 33 % uint64(n))
}

// drawField picks a field that exists under a match.
func drawField(t *rapid.T, m Match) Field {
	var fields []Field
	for f := fieldNone + 1; f < fieldEnd; f++ {
		if m.provides(fieldTable[f].need) == nil {
			fields = append(fields, f)
		}
	}
	// Half of the time, one that this protocol has and others have not.
	if special := slices.DeleteFunc(slices.Clone(fields), func(f Field) bool {
		return fieldTable[f].need == needNothing || fieldTable[f].need == needAction
	}); len(special) > 0 && evenly(t, 2) == 0 {
		fields = special
	}
	return fields[evenly(t, len(fields))]
}

func drawValue(t *rapid.T, width int) Value {
	v := Value{rapid.Uint64().Draw(t, "hi"), rapid.Uint64().Draw(t, "lo")}
	return v.And(Ones(width))
}

// drawMask prefers masks that people write.
func drawMask(t *rapid.T, f Field) Value {
	width := f.Bits()
	if !f.Maskable() {
		return f.full()
	}
	switch rapid.IntRange(0, 3).Draw(t, "mask") {
	case 0:
		mask := drawValue(t, width)
		if fieldTable[f].kind == kindIP6 {
			// ovs-ofctl takes a mask that begins with a digit for the length of a prefix.
			mask = mask.Or(Ones(8).Lsh(120))
		}
		return mask
	case 1:
		return f.full().And(Ones(rapid.IntRange(0, width).Draw(t, "host")).Not())
	}
	return f.full()
}

func drawTerm(t *rapid.T, f Field) Term {
	term := Term{f, drawValue(t, f.Bits()), drawMask(t, f)}
	switch f {
	case InPort:
		term.Value = Num(rapid.Uint64Range(1, 65279).Draw(t, "port"))
		if rapid.IntRange(0, 9).Draw(t, "local") == 0 {
			term.Value = Num(uint64(PortLocal))
		}
	case VLANVID:
		term = rapid.SampledFrom([]Term{
			Eq(VLANVID, 0), Masked(VLANVID, VLANPresent, VLANPresent),
			Eq(VLANVID, VLANPresent|rapid.Uint64Range(0, 0xfff).Draw(t, "vid")),
			Masked(VLANVID, VLANPresent|4, VLANPresent|0xf),
		}).Draw(t, "vlan")
	case IPFrag:
		n := rapid.SampledFrom(fragNames).Draw(t, "frag")
		term = Masked(IPFrag, n.value, n.mask)
	case ARPOp:
		term.Value = Num(rapid.Uint64Range(0, 255).Draw(t, "op"))
	}
	return term
}

func drawMatch(t *rapid.T) Match {
	m := NewMatch(profiles[evenly(t, len(profiles))]...)
	for range rapid.IntRange(0, 6).Draw(t, "terms") {
		f := drawField(t, m)
		if _, ok := m.Get(f); ok || m.provides(fieldTable[f].need) != nil {
			continue
		}
		if f == EthType || f == IPProto || f == CTNwProto {
			continue
		}
		if next := NewMatch(append(Match{drawTerm(t, f)}, m...)...); next.Validate() == nil {
			m = next
		}
	}
	return m
}

func drawSubfield(t *rapid.T, m Match, write bool, width int) (Subfield, bool) {
	f := drawField(t, m)
	if write && !f.Writable() || !f.Maskable() || m.provides(fieldTable[f].need) != nil || width > f.Bits() {
		return Subfield{}, false
	}
	if width == 0 {
		width = rapid.IntRange(1, min(64, f.Bits())).Draw(t, "width")
	}
	offset := rapid.IntRange(0, f.Bits()-width).Draw(t, "offset")
	return Subfield{f, uint8(offset), uint8(width)}, true
}

func drawPort(t *rapid.T) Port {
	return rapid.OneOf(
		rapid.Custom(func(t *rapid.T) Port { return Port(rapid.IntRange(1, 65279).Draw(t, "port")) }),
		rapid.SampledFrom([]Port{PortInPort, PortNormal, PortFlood, PortAll, PortLocal}),
	).Draw(t, "port")
}

func drawAddrs(t *rapid.T, v6 bool) (a, b netip.Addr) {
	v, w := drawValue(t, 128), drawValue(t, 128)
	if v6 {
		a, b = v.Addr6(), w.Addr6()
	} else {
		a, b = v.Addr4(), w.Addr4()
	}
	if b.Less(a) {
		a, b = b, a
	}
	if a.IsUnspecified() {
		a = b
	}
	return a, b
}

func drawNAT(t *rapid.T, v6 bool) *NAT {
	n := &NAT{Kind: NATKind(rapid.IntRange(0, 2).Draw(t, "kind"))}
	if n.Kind == NATRestore || rapid.IntRange(0, 4).Draw(t, "bare") == 0 {
		return n
	}
	n.Min, n.Max = drawAddrs(t, v6)
	if rapid.Bool().Draw(t, "single") || n.Max == n.Min {
		n.Max = netip.Addr{}
	}
	if rapid.Bool().Draw(t, "ports") {
		n.PortMin = rapid.Uint16Range(1, 65535).Draw(t, "port")
		if last := rapid.Uint16Range(0, 65535).Draw(t, "last"); last > n.PortMin {
			n.PortMax = last
		}
	}
	n.Persistent = rapid.Bool().Draw(t, "persistent")
	n.Hash = rapid.Bool().Draw(t, "hash")
	n.Random = !n.Hash && rapid.Bool().Draw(t, "random")
	return n
}

func drawCT(t *rapid.T, m Match) Action {
	a := CT{Commit: rapid.Bool().Draw(t, "commit"), Recirc: rapid.Bool().Draw(t, "recirc")}
	if a.Recirc {
		a.Table = rapid.Uint8Range(0, 253).Draw(t, "table")
	}
	if a.Commit {
		a.Force = rapid.Bool().Draw(t, "force")
		a.ALG = rapid.SampledFrom([]uint16{0, 21, 69}).Draw(t, "alg")
		if rapid.Bool().Draw(t, "nat") {
			ethType, _ := m.exact(EthType)
			a.NAT = drawNAT(t, ethType == EthTypeIPv6)
		}
		if rapid.Bool().Draw(t, "exec") {
			a.Exec = append(a.Exec, Set(CTMark, 7), Load(Range(CTLabel, 4, 20), 99))
			a.Exec = append(a.Exec, Move{Range(Reg3, 0, 15), Range(CTMark, 16, 31)})
		}
	} else if rapid.Bool().Draw(t, "nat") {
		a.NAT = &NAT{}
	}
	if s, ok := drawSubfield(t, m, false, 16); ok && rapid.Bool().Draw(t, "zone field") {
		a.ZoneSource = s
	} else {
		a.Zone = rapid.Uint16().Draw(t, "zone")
	}
	return a
}

func drawLearn(t *rapid.T) Action {
	a := Learn{
		Table: 7, Priority: rapid.Uint16().Draw(t, "priority"), Cookie: rapid.Uint64().Draw(t, "cookie"),
		IdleTimeout: rapid.Uint16().Draw(t, "idle"), HardTimeout: rapid.Uint16().Draw(t, "hard"),
		FinIdle: rapid.Uint16Range(0, 2).Draw(t, "fin"), DeleteLearned: rapid.Bool().Draw(t, "delete"),
		Limit: rapid.Uint32Range(0, 3).Draw(t, "limit"),
	}
	a.Specs = []LearnSpec{
		{To: Whole(EthType), Value: Num(EthTypeIPv4)},
		{To: Whole(IPProto), Value: Num(ProtoTCP)},
		{To: Whole(IPDst), From: Whole(IPSrc)},
		{To: Whole(Reg4), From: Whole(Reg4)},
		{To: Range(Reg5, 3, 19), Value: Num(77)},
		{Kind: LearnLoad, To: Range(Reg6, 0, 15), From: Range(Reg7, 4, 19)},
		{Kind: LearnLoad, To: Whole(Reg1), Value: Num(rapid.Uint64Range(0, 1<<32-1).Draw(t, "load"))},
		{Kind: LearnOutput, From: Range(Reg0, 0, 15)},
	}
	return a
}

func drawAction(t *rapid.T, m Match, depth int) Action {
	switch evenly(t, 16) {
	case 0:
		return Output{drawPort(t)}
	case 1:
		if s, ok := drawSubfield(t, m, false, rapid.IntRange(1, 32).Draw(t, "width")); ok {
			return OutputField{s}
		}
	case 2, 3, 4:
		return drawSetField(t, m)
	case 5, 6:
		width := rapid.IntRange(1, 32).Draw(t, "width")
		from, ok := drawSubfield(t, m, false, width)
		to, ok2 := drawSubfield(t, m, true, width)
		if ok && ok2 {
			return Move{from, to}
		}
	case 7:
		a := Resubmit{Table: rapid.Uint8().Draw(t, "table"), OriginalTuple: rapid.IntRange(0, 9).Draw(t, "ct") == 0}
		if rapid.IntRange(0, 3).Draw(t, "port") == 0 {
			a.InPort = Port(rapid.IntRange(1, 65279).Draw(t, "port"))
		}
		return a
	case 8, 9:
		return drawCT(t, m)
	case 10:
		return rapid.SampledFrom([]Action{CTClear{}, DecTTL{}}).Draw(t, "plain")
	case 11:
		if depth < 2 {
			return Clone{[]Action{drawAction(t, m, depth+1)}}
		}
	case 12:
		id := rapid.Uint32Range(1, 3).Draw(t, "id")
		return rapid.SampledFrom([]Action{GroupAction{id}, MeterAction{id}}).Draw(t, "by id")
	case 13:
		return Note{rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "note")}
	case 14:
		if s, ok := drawSubfield(t, m, true, 1); ok {
			return CheckPktLarger{rapid.Uint16().Draw(t, "length"), s}
		}
	case 15:
		return drawLearn(t)
	}
	return Set(Reg0, 1)
}

func drawSetField(t *rapid.T, m Match) Action {
	f := drawField(t, m)
	if !f.Writable() || m.provides(fieldTable[f].need) != nil {
		return Set(Reg2, 9)
	}
	v := drawValue(t, f.Bits())
	switch f {
	case ARPOp:
		v = v.And(Ones(8))
	case VLANVID:
		v = v.Or(Num(VLANPresent))
	case InPort16:
		v = Num(rapid.Uint64Range(0, 65279).Draw(t, "port"))
	}
	a, err := newSetField(f, v, drawMask(t, f))
	if err != nil {
		return Set(Reg2, 9)
	}
	return a
}

// drawFlow gives a flow that Validate accepts.
func drawFlow(t *rapid.T) Flow {
	f := Flow{
		Table:    rapid.Uint8Range(0, 253).Draw(t, "table"),
		Priority: rapid.Uint16().Draw(t, "priority"),
		Cookie:   rapid.Uint64().Draw(t, "cookie"),
		Match:    drawMatch(t),
	}
	if evenly(t, 10) == 0 { // long enough to outlive the test
		f.IdleTimeout = rapid.Uint16Range(600, 65535).Draw(t, "idle")
		f.HardTimeout = rapid.Uint16Range(600, 65535).Draw(t, "hard")
	}
	if rapid.IntRange(0, 9).Draw(t, "conjunction") == 0 {
		for i := range rapid.IntRange(1, 3).Draw(t, "n") {
			f.Actions = append(f.Actions, Conjunction{rapid.Uint32().Draw(t, "id"), uint8(i + 1), 3})
		}
		return f
	}
	for range rapid.IntRange(0, 5).Draw(t, "actions") {
		a := drawAction(t, f.Match, 0)
		if _, ok := a.(MeterAction); ok {
			if len(f.Actions) > 0 {
				continue
			}
		}
		if c := (&checker{match: f.Match}); a.check(c) == nil {
			f.Actions = append(f.Actions, a)
		}
	}
	if rapid.Bool().Draw(t, "goto") {
		f.Actions = append(f.Actions, GotoTable{f.Table + 1})
	}
	return f
}
