package openflow

import (
	"encoding/hex"
	"fmt"
	"strconv"
)

// appendActions appends a list of actions; the empty one is drop.
func appendActions(b []byte, actions []Action) []byte {
	if len(actions) == 0 {
		return append(b, "drop"...)
	}
	return appendActionList(b, actions)
}

func appendActionList(b []byte, actions []Action) []byte {
	for i, a := range actions {
		if i > 0 {
			b = append(b, ',')
		}
		if a == nil { // Validate refuses it
			b = append(b, "nil"...)
			continue
		}
		b = a.appendText(b)
	}
	return b
}

// FormatActions prints actions as a flow prints them.
func FormatActions(actions []Action) string { return string(appendActions(nil, actions)) }

// String spells a part of a field as moves do.
func (s Subfield) String() string { return string(s.appendText(nil)) }

func (s Subfield) appendText(b []byte) []byte {
	name := s.Field.String()
	if s.Field.valid() {
		name = fieldTable[s.Field].nxm
	}
	b = append(b, name...)
	width := s.Width()
	switch {
	case s.Offset == 0 && width == s.Field.Bits():
		return append(b, "[]"...)
	case width == 1:
		return fmt.Appendf(b, "[%d]", s.Offset)
	}
	return fmt.Appendf(b, "[%d..%d]", s.Offset, int(s.Offset)+width-1)
}

func (a Output) appendText(b []byte) []byte {
	if a.Port < PortMax {
		b = append(b, "output:"...)
	}
	b = a.Port.appendText(b)
	if a.Port == PortController {
		b = append(b, ":0"...)
	}
	return b
}

func (a OutputField) appendText(b []byte) []byte {
	return a.Source.appendText(append(b, "output:"...))
}

func (a SetField) appendText(b []byte) []byte {
	b = append(b, "set_field:"...)
	mask := a.mask()
	b = appendSetValue(b, a.Field, a.Value.And(mask), mask)
	b = append(b, "->"...)
	return append(b, a.Field.String()...)
}

// appendSetValue spells a value as set_field and learn do, where only few fields
// have spellings of their own.
func appendSetValue(b []byte, f Field, v, mask Value) []byte {
	exact := mask == f.full()
	if f.valid() {
		switch fieldTable[f].kind {
		case kindHex, kindHex4:
			b = appendHex(b, v)
			if !exact {
				b = appendHex(append(b, '/'), mask)
			}
			return b
		case kindDec, kindVLAN:
			b = strconv.AppendUint(b, v.Lo, 10)
			if !exact {
				b = appendHex(append(b, '/'), mask)
			}
			return b
		case kindTunFlags:
			return appendFlags(b, tunFlagNames, v.Lo, mask.Lo, f.full().Lo)
		}
	}
	return appendValue(b, f, v, mask)
}

func (a Move) appendText(b []byte) []byte {
	b = a.From.appendText(append(b, "move:"...))
	return a.To.appendText(append(b, "->"...))
}

func (a GotoTable) appendText(b []byte) []byte {
	return strconv.AppendUint(append(b, "goto_table:"...), uint64(a.Table), 10)
}

func (a Resubmit) appendText(b []byte) []byte {
	port := a.InPort != 0 && a.InPort != PortInPort
	if port && a.Table == TableAll && !a.OriginalTuple {
		return a.InPort.appendText(append(b, "resubmit:"...))
	}
	b = append(b, "resubmit("...)
	if port {
		b = a.InPort.appendText(b)
	}
	b = append(b, ',')
	if a.Table != TableAll {
		b = strconv.AppendUint(b, uint64(a.Table), 10)
	}
	if a.OriginalTuple {
		b = append(b, ",ct"...)
	}
	return append(b, ')')
}

// The helpers of the connection tracker, by the port of their protocol.
const (
	algFTP  = 21
	algTFTP = 69
)

var algNames = []struct {
	port uint16
	name string
}{{algFTP, "ftp"}, {algTFTP, "tftp"}}

func (a CT) appendText(b []byte) []byte {
	b = append(b, "ct("...)
	start := len(b)
	if a.Commit {
		b = append(b, "commit,"...)
	}
	if a.Force {
		b = append(b, "force,"...)
	}
	if a.Recirc {
		b = fmt.Appendf(b, "table=%d,", a.Table)
	}
	if a.ZoneSource.Field != fieldNone {
		b = a.ZoneSource.appendText(append(b, "zone="...))
		b = append(b, ',')
	} else if a.Zone != 0 {
		b = fmt.Appendf(b, "zone=%d,", a.Zone)
	}
	if a.NAT != nil {
		b = append(a.NAT.appendText(b), ',')
	}
	if len(a.Exec) > 0 {
		b = appendActionList(append(b, "exec("...), a.Exec)
		b = append(b, "),"...)
	}
	if a.ALG != 0 {
		b = append(b, "alg="...)
		b = append(append(b, algName(a.ALG)...), ',')
	}
	if len(b) > start {
		b = b[:len(b)-1]
	}
	return append(b, ')')
}

func algName(port uint16) string {
	for _, a := range algNames {
		if a.port == port {
			return a.name
		}
	}
	return strconv.Itoa(int(port))
}

func (n *NAT) appendText(b []byte) []byte {
	b = append(b, "nat"...)
	switch n.Kind {
	case NATSource:
		b = append(b, "(src"...)
	case NATDestination:
		b = append(b, "(dst"...)
	default:
		return b
	}
	if n.Min.IsValid() {
		b = n.appendRange(append(b, '='))
		for _, f := range []struct {
			on   bool
			name string
		}{{n.Persistent, ",persistent"}, {n.Hash, ",hash"}, {n.Random, ",random"}} {
			if f.on {
				b = append(b, f.name...)
			}
		}
	}
	return append(b, ')')
}

func (n *NAT) appendRange(b []byte) []byte {
	one := func(b []byte, v Value) []byte {
		switch {
		case n.Min.Is4():
			return v.Addr4().AppendTo(b)
		case n.PortMin != 0:
			return append(appendIPv6(append(b, '['), v), ']')
		}
		return appendIPv6(b, v)
	}
	b = one(b, AddrValue(n.Min))
	if n.hasMax() {
		b = one(append(b, '-'), AddrValue(n.Max))
	}
	if n.PortMin != 0 {
		b = strconv.AppendUint(append(b, ':'), uint64(n.PortMin), 10)
		if n.PortMax > n.PortMin {
			b = strconv.AppendUint(append(b, '-'), uint64(n.PortMax), 10)
		}
	}
	return b
}

func (CTClear) appendText(b []byte) []byte { return append(b, "ct_clear"...) }

func (a Conjunction) appendText(b []byte) []byte {
	return fmt.Appendf(b, "conjunction(%d,%d/%d)", a.ID, a.Clause, a.Clauses)
}

func (a Clone) appendText(b []byte) []byte {
	return append(appendActions(append(b, "clone("...), a.Actions), ')')
}

func (DecTTL) appendText(b []byte) []byte { return append(b, "dec_ttl"...) }

func (a GroupAction) appendText(b []byte) []byte {
	return strconv.AppendUint(append(b, "group:"...), uint64(a.ID), 10)
}

func (a MeterAction) appendText(b []byte) []byte {
	return strconv.AppendUint(append(b, "meter:"...), uint64(a.ID), 10)
}

func (a Note) appendText(b []byte) []byte {
	b = append(b, "note:"...)
	for i := range a.padded() {
		if i > 0 {
			b = append(b, '.')
		}
		var c byte
		if i < len(a.Data) {
			c = a.Data[i]
		}
		b = fmt.Appendf(b, "%02x", c)
	}
	return b
}

// padded is the length that the switch gives the note.
func (a Note) padded() int { return max(6, (len(a.Data)+1)/8*8+6) }

func (a CheckPktLarger) appendText(b []byte) []byte {
	b = fmt.Appendf(b, "check_pkt_larger(%d)->", a.Length)
	return a.To.appendText(b)
}

func (a Unknown) appendText(b []byte) []byte {
	return hex.AppendEncode(append(b, "unknown:"...), a.Wire)
}
