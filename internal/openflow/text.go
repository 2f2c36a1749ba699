package openflow

import (
	"strconv"
	"strings"
)

// String prints the flow as "ovs-ofctl -O OpenFlow15 --no-stats --no-names
// dump-flows" does, without the comment.
func (f Flow) String() string { return string(f.appendText(nil)) }

func (f Flow) appendText(b []byte) []byte {
	if f.Cookie != 0 {
		b = append(b, "cookie="...)
		b = appendHex(b, Num(f.Cookie))
		b = append(b, ", "...)
	}
	for _, part := range []struct {
		name  string
		value uint64
	}{
		{"table", uint64(f.Table)},
		{"idle_timeout", uint64(f.IdleTimeout)},
		{"hard_timeout", uint64(f.HardTimeout)},
	} {
		if part.value != 0 {
			b = append(append(b, part.name...), '=')
			b = strconv.AppendUint(b, part.value, 10)
			b = append(b, ", "...)
		}
	}
	start := len(b)
	if f.Priority != DefaultPriority {
		b = append(b, "priority="...)
		b = strconv.AppendUint(b, uint64(f.Priority), 10)
	}
	if len(f.Match) > 0 {
		if len(b) > start {
			b = append(b, ',')
		}
		b = f.Match.appendText(b)
	}
	if len(b) > start {
		b = append(b, ' ')
	}
	b = append(b, "actions="...)
	return appendActions(b, f.Actions)
}

// Text prints flows one a line in the given order, each with its comment behind
// it. "ovs-ofctl add-flows" and ParseFlows read it.
func Text(flows []Flow) string {
	var b []byte
	for _, f := range flows {
		b = f.appendText(b)
		if f.Comment != "" {
			b = append(b, " # "...)
			b = append(b, strings.Join(strings.Fields(f.Comment), " ")...)
		}
		b = append(b, '\n')
	}
	return string(b)
}

// String prints the group as "ovs-ofctl -O OpenFlow15 dump-groups" does.
func (g Group) String() string {
	b := append([]byte("group_id="), strconv.FormatUint(uint64(g.ID), 10)...)
	b = append(append(b, ",type="...), g.Type.String()...)
	if g.Method != SelectDefault {
		b = append(append(b, ",selection_method="...), g.Method...)
		if g.MethodParam != 0 {
			b = strconv.AppendUint(append(b, ",selection_method_param="...), g.MethodParam, 10)
		}
		b = appendFields(b, g.Fields)
	}
	for _, bucket := range g.Buckets {
		b = append(b, ",bucket=bucket_id:"...)
		b = strconv.AppendUint(b, uint64(bucket.ID), 10)
		if g.Type == GroupSelect && bucket.Weight != 1 {
			b = strconv.AppendUint(append(b, ",weight:"...), uint64(bucket.Weight), 10)
		}
		b = append(b, ",actions="...)
		b = appendActions(b, bucket.Actions)
	}
	return string(b)
}

func appendFields(b []byte, fields []Field) []byte {
	if len(fields) == 0 {
		return b
	}
	open, end := ",fields(", ")"
	if len(fields) == 1 {
		open, end = ",fields=", ""
	}
	b = append(b, open...)
	for i, f := range fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, f.String()...)
	}
	return append(b, end...)
}

// String is the type as ovs-ofctl spells it.
func (t GroupType) String() string {
	switch t {
	case GroupAll:
		return "all"
	case GroupSelect:
		return "select"
	case GroupIndirect:
		return "indirect"
	}
	return "type-" + strconv.Itoa(int(t))
}

// String prints the meter as "ovs-ofctl add-meter" reads it. (dump-meters prints
// the same over two lines, which ParseMeter reads too.)
func (m Meter) String() string {
	b := append([]byte("meter="), strconv.FormatUint(uint64(m.ID), 10)...)
	if m.PerPacket {
		b = append(b, " pktps"...)
	} else {
		b = append(b, " kbps"...)
	}
	if m.Burst != 0 {
		b = append(b, " burst"...)
	}
	b = append(b, " bands=type=drop rate="...)
	b = strconv.AppendUint(b, uint64(m.Rate), 10)
	if m.Burst != 0 {
		b = strconv.AppendUint(append(b, " burst_size="...), uint64(m.Burst), 10)
	}
	return string(b)
}

// String is the port as ovs-ofctl spells it.
func (p Port) String() string { return string(p.appendText(nil)) }

var portNames = []struct {
	port Port
	name string
}{
	{PortInPort, "IN_PORT"},
	{PortTable, "TABLE"},
	{PortNormal, "NORMAL"},
	{PortFlood, "FLOOD"},
	{PortAll, "ALL"},
	{PortController, "CONTROLLER"},
	{PortLocal, "LOCAL"},
	{PortAny, "ANY"},
}

func (p Port) appendText(b []byte) []byte {
	for _, n := range portNames {
		if n.port == p {
			return append(b, n.name...)
		}
	}
	return strconv.AppendUint(b, uint64(p), 10)
}

// appendHex appends a number as 0x…, and zero as 0.
func appendHex(b []byte, v Value) []byte {
	switch {
	case v.IsZero():
		return append(b, '0')
	case v.Hi == 0:
		return strconv.AppendUint(append(b, "0x"...), v.Lo, 16)
	}
	b = strconv.AppendUint(append(b, "0x"...), v.Hi, 16)
	low := strconv.FormatUint(v.Lo, 16)
	for range 16 - len(low) {
		b = append(b, '0')
	}
	return append(b, low...)
}

func appendMAC(b []byte, mac [6]byte) []byte {
	const digits = "0123456789abcdef"
	for i, c := range mac {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, digits[c>>4], digits[c&0xf])
	}
	return b
}

// appendIPv6 spells an address as inet_ntop(3) does, which shows the last 32 bits
// as IPv4 where the rest is zero.
func appendIPv6(b []byte, v Value) []byte {
	if v.Hi == 0 && v.Lo>>32 == 0 && v.Lo>>16 != 0 {
		return v.Addr4().AppendTo(append(b, "::"...))
	}
	return v.Addr6().AppendTo(b)
}

// appendAddr spells an address, with a mask unless that is full.
func appendAddr(b []byte, v, mask Value, width int) []byte {
	one := func(b []byte, v Value) []byte {
		if width == 32 {
			return v.Addr4().AppendTo(b)
		}
		return appendIPv6(b, v)
	}
	b = one(b, v)
	if mask == Ones(width) {
		return b
	}
	b = append(b, '/')
	if n, ok := mask.prefixLen(width); ok {
		return strconv.AppendUint(b, uint64(n), 10)
	}
	return one(b, mask)
}

// appendFlags spells all bits as names joined by |, or those of mask as +set-unset.
func appendFlags(b []byte, names []flagName, v, mask, all uint64) []byte {
	if mask == all {
		if v == 0 {
			return append(b, '0')
		}
		sep := ""
		for _, n := range names {
			if v&n.bit != 0 {
				b = append(append(b, sep...), n.name...)
				sep = "|"
			}
		}
		return b
	}
	for _, n := range names {
		switch {
		case mask&n.bit == 0:
			continue
		case v&n.bit != 0:
			b = append(b, '+')
		default:
			b = append(b, '-')
		}
		b = append(b, n.name...)
	}
	return b
}
