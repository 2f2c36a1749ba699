package openflow

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// splitList splits at commas and blanks that are not within parentheses.
func splitList(s string) ([]string, error) {
	var items []string
	depth, start := 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth < 0 {
				return nil, fmt.Errorf("%q: a ) without its (", clip(s))
			}
		case depth == 0 && isSeparator(rune(c)):
			if i > start {
				items = append(items, s[start:i])
			}
			start = i + 1
		}
	}
	if depth != 0 {
		return nil, fmt.Errorf("%q: a ( without its )", clip(s))
	}
	if start < len(s) {
		items = append(items, s[start:])
	}
	return items, nil
}

// parens gives what stands between the parentheses of name(…).
func parens(item, name string) (string, bool) {
	inner, ok := strings.CutPrefix(item, name+"(")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(inner, ")")
}

func parseActions(s string, depth int) ([]Action, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("actions are nested more than %d deep", maxNesting)
	}
	items, err := splitList(s)
	if err != nil {
		return nil, err
	}
	if len(items) == 1 && items[0] == "drop" {
		return nil, nil
	}
	if len(items) == 0 {
		return nil, errors.New(`no actions; write "drop" to drop`)
	}
	actions := make([]Action, 0, len(items))
	for _, item := range items {
		a, err := parseAction(item, depth)
		if err != nil {
			return nil, fmt.Errorf("action %q: %w", clip(item), err)
		}
		actions = append(actions, a)
	}
	return actions, nil
}

func parseAction(item string, depth int) (Action, error) {
	switch item {
	case "ct_clear":
		return CTClear{}, nil
	case "dec_ttl":
		return DecTTL{}, nil
	case "ct":
		return CT{}, nil
	case "CONTROLLER:0":
		return Output{PortController}, nil
	}
	i := strings.IndexAny(item, ":(=")
	if i < 0 {
		p, err := parsePort(item)
		return Output{p}, err
	}
	name, rest := item[:i], item[i+1:]
	if item[i] == '(' {
		return parseCall(item, name, depth)
	}
	switch name {
	case "CONTROLLER", "controller":
		return nil, errors.New("packets to the controller are not known")
	case "output":
		return parseOutput(rest)
	case "set_field":
		return parseSetField(rest)
	case "load":
		return parseLoad(rest)
	case "move":
		return parseMove(rest)
	case "note":
		data, err := hex.DecodeString(strings.ReplaceAll(rest, ".", ""))
		if err != nil {
			return nil, fmt.Errorf("%q is not a row of bytes", clip(rest))
		}
		return Note{data}, nil
	case "unknown":
		return parseUnknown(rest)
	case "resubmit":
		p, err := parsePort(rest)
		return Resubmit{InPort: resubmitPort(p), Table: TableAll}, err
	case "goto_table":
		n, err := parseNum(rest, 8)
		return GotoTable{uint8(n)}, err
	case "group":
		n, err := parseNum(rest, 32)
		return GroupAction{uint32(n)}, err
	case "meter":
		n, err := parseNum(rest, 32)
		return MeterAction{uint32(n)}, err
	}
	return nil, errors.New("not a known action")
}

// parseCall reads the actions that have parentheses.
func parseCall(item, name string, depth int) (Action, error) {
	if name == "check_pkt_larger" {
		return parseCheckPktLarger(item)
	}
	inner, ok := parens(item, name)
	if !ok {
		return nil, errors.New("no ) at the end")
	}
	switch name {
	case "ct":
		return parseCT(inner, depth)
	case "resubmit":
		return parseResubmit(inner)
	case "conjunction":
		return parseConjunction(inner)
	case "clone":
		list, err := parseActions(inner, depth+1)
		return Clone{list}, err
	case "learn":
		return parseLearn(inner)
	case "set_field":
		return parseSetField(inner)
	case "goto_table", "group", "meter", "load", "move", "note":
		return parseAction(name+":"+inner, depth)
	}
	return nil, errors.New("not a known action")
}

// parseUnknown reads one whole action back from its bytes.
func parseUnknown(s string) (Action, error) {
	wire, err := hex.DecodeString(s)
	if err != nil || len(wire) < 8 || len(wire)%8 != 0 || len(wire) > MaxMessage || int(wire[2])<<8|int(wire[3]) != len(wire) {
		return nil, errors.New("the bytes are not those of one action")
	}
	return Unknown{wire}, nil
}

func parseOutput(s string) (Action, error) {
	if s != "" && (s[0] >= '0' && s[0] <= '9' || s[0] >= 'A' && s[0] <= 'M') {
		if p, err := parsePort(s); err == nil {
			return Output{p}, nil
		}
	}
	f, err := parseSubfield(s)
	if err != nil {
		if p, portErr := parsePort(s); portErr == nil {
			return Output{p}, nil
		}
		return nil, err
	}
	return OutputField{f}, nil
}

// parseSubfield reads a field's name and, in brackets, its bits.
func parseSubfield(s string) (Subfield, error) {
	name, bits, bracket := strings.Cut(s, "[")
	f, ok := fieldByName(name)
	if !ok {
		f, ok = fieldByNXM(name)
	}
	if !ok {
		return Subfield{}, fmt.Errorf("%q is not a known field", clip(name))
	}
	if !bracket || bits == "]" {
		return Whole(f), nil
	}
	bits, closed := strings.CutSuffix(bits, "]")
	from, to, isRange := strings.Cut(bits, "..")
	if !isRange {
		to = from
	}
	first, err1 := parseNum(from, 8)
	last, err2 := parseNum(to, 8)
	if !closed || err1 != nil || err2 != nil || first > last || last >= uint64(f.Bits()) {
		return Subfield{}, fmt.Errorf("%q is not a range of bits [from..to] of a field of %d", clip(s), f.Bits())
	}
	return Range(f, uint8(first), uint8(last)), nil
}

// fieldByNXM finds a field by the name of one of its headers.
func fieldByNXM(name string) (Field, bool) {
	for f := fieldNone + 1; f < fieldEnd; f++ {
		if fieldTable[f].nxm == name {
			return f, true
		}
	}
	f, ok := headerNames[name]
	return f, ok
}

func parseSetField(s string) (Action, error) {
	value, name, ok := strings.Cut(s, "->")
	if !ok {
		return nil, errors.New(`no "->" to the field`)
	}
	f, known := fieldByName(name)
	if !known {
		return nil, fmt.Errorf("%q is not a known field", clip(name))
	}
	if name == "nw_tos" || name == "nw_frag" {
		return nil, fmt.Errorf("%q is read only in a match, set %s", name, f)
	}
	v, mask, err := parseFieldValue(f, value)
	if err != nil {
		return nil, err
	}
	return newSetField(f, v, mask)
}

// newSetField gives the canonical action: the zero mask if the whole field is set.
func newSetField(f Field, v, mask Value) (Action, error) {
	switch {
	case mask.IsZero():
		return nil, errors.New("sets no bit")
	case mask == f.full():
		mask = Value{}
		return SetField{Field: f, Value: v}, nil
	}
	return SetField{f, v.And(mask), mask}, nil
}

func parseLoad(s string) (Action, error) {
	value, field, ok := strings.Cut(s, "->")
	if !ok {
		return nil, errors.New(`no "->" to the field`)
	}
	to, err := parseSubfield(field)
	if err != nil {
		return nil, err
	}
	v, err := parseValue(value)
	if err != nil {
		return nil, err
	}
	if v.BitLen() > to.Width() {
		return nil, fmt.Errorf("%s needs more than the %d bits of %s", value, to.Width(), field)
	}
	return newSetField(to.Field, v.Lsh(int(to.Offset)), to.Mask())
}

func parseMove(s string) (Action, error) {
	from, to, ok := strings.Cut(s, "->")
	if !ok {
		return nil, errors.New(`no "->" to the field`)
	}
	source, err := parseSubfield(from)
	if err != nil {
		return nil, err
	}
	target, err := parseSubfield(to)
	return Move{source, target}, err
}

func resubmitPort(p Port) Port {
	if p == PortInPort {
		return 0
	}
	return p
}

func parseResubmit(s string) (Action, error) {
	a := Resubmit{Table: TableAll}
	parts := strings.Split(strings.ReplaceAll(s, " ", ""), ",")
	if len(parts) > 3 || len(parts) == 3 && parts[2] != "ct" {
		return nil, errors.New("want resubmit([port],[table][,ct])")
	}
	a.OriginalTuple = len(parts) == 3
	if parts[0] != "" {
		p, err := parsePort(parts[0])
		if err != nil {
			return nil, err
		}
		a.InPort = resubmitPort(p)
	}
	if len(parts) > 1 && parts[1] != "" {
		n, err := parseNum(parts[1], 8)
		if err != nil {
			return nil, err
		}
		a.Table = uint8(n)
	}
	return a, nil
}

func parseConjunction(s string) (Action, error) {
	id, rest, ok := strings.Cut(strings.ReplaceAll(s, " ", ""), ",")
	clause, clauses, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 {
		return nil, errors.New("want conjunction(id,k/n)")
	}
	n, err := parseNum(id, 32)
	k, err2 := parseNum(clause, 8)
	of, err3 := parseNum(clauses, 8)
	if k == 0 {
		err2 = errors.Join(err2, errors.New("dimensions count from 1"))
	}
	return Conjunction{uint32(n), uint8(k), uint8(of)}, errors.Join(err, err2, err3)
}

func parseCheckPktLarger(s string) (Action, error) {
	length, to, ok := strings.Cut(strings.TrimPrefix(s, "check_pkt_larger("), ")->")
	if !ok {
		return nil, errors.New("want check_pkt_larger(length)->field[bit]")
	}
	n, err := parseNum(length, 16)
	if err != nil {
		return nil, err
	}
	f, err := parseSubfield(to)
	return CheckPktLarger{uint16(n), f}, err
}
