package openflow

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ParseFlow reads one flow as ovs-ofctl prints it, with or without statistics
// (which are dropped), or as add-flow reads it. What follows a # becomes the
// comment. The match comes out in canonical form; Validate is not called.
func ParseFlow(s string) (Flow, error) {
	text, comment, _ := strings.Cut(s, "#")
	f := Flow{Priority: DefaultPriority, Comment: strings.TrimSpace(comment)}
	match, actions, ok := cutActions(text)
	if !ok {
		return f, fmt.Errorf("openflow: flow %q: no \"actions=\"", clip(s))
	}
	var err error
	if f.Match, err = parseMatch(match, f.parseProperty); err != nil {
		return f, fmt.Errorf("openflow: flow %q: %w", clip(s), err)
	}
	if f.Actions, err = parseActions(actions, 0); err != nil {
		return f, fmt.Errorf("openflow: flow %q: %w", clip(s), err)
	}
	return f, nil
}

// ParseFlows reads one flow a line. Empty lines, lines of comment and the heading
// of a dump are skipped.
func ParseFlows(text string) ([]Flow, error) { return parseLines(text, "FLOW", ParseFlow) }

// ParseGroups reads one group a line, as ParseFlows reads flows.
func ParseGroups(text string) ([]Group, error) { return parseLines(text, "GROUP", ParseGroup) }

// parseLines reads one thing a line. heading is the word that a dump of them begins with,
// behind that of the protocol.
func parseLines[T any](text, heading string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || strings.HasPrefix(line, "OFPST_"+heading) || strings.HasPrefix(line, "NXST_"+heading) {
			continue
		}
		one, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, one)
	}
	return all, nil
}

// cutActions cuts a flow, or a bucket, where its actions begin.
func cutActions(s string) (before, actions string, ok bool) {
	for _, key := range []string{"actions=", "action="} {
		if before, actions, ok = strings.Cut(s, key); ok {
			return before, actions, true
		}
	}
	return s, "", false
}

func isSeparator(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\r' || r == '\n' }

// clip shortens what is quoted in an error.
func clip(s string) string {
	const limit = 120
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}

// parseProperty reads what is neither match nor action.
func (f *Flow) parseProperty(key, value string) (bool, error) {
	var n uint64
	var err error
	switch key {
	case "cookie":
		f.Cookie, err = parseNum(value, 64)
	case "table":
		n, err = parseNum(value, 8)
		f.Table = uint8(n)
	case "priority":
		n, err = parseNum(value, 16)
		f.Priority = uint16(n)
	case "idle_timeout":
		n, err = parseNum(value, 16)
		f.IdleTimeout = uint16(n)
	case "hard_timeout":
		n, err = parseNum(value, 16)
		f.HardTimeout = uint16(n)
	case "duration", "n_packets", "n_bytes", "idle_age", "hard_age":
	default:
		return false, nil
	}
	return true, err
}

// ParseMatch reads a match alone.
func ParseMatch(s string) (Match, error) {
	m, err := parseMatch(s, func(string, string) (bool, error) { return false, nil })
	if err != nil {
		return nil, fmt.Errorf("openflow: match %q: %w", clip(s), err)
	}
	return m, nil
}

// parseMatch reads the items of a match, but those that other takes.
func parseMatch(s string, other func(key, value string) (bool, error)) (Match, error) {
	var p matchParser
	for _, item := range strings.FieldsFunc(s, isSeparator) {
		key, value, _ := strings.Cut(item, "=")
		taken, err := other(key, value)
		if err == nil && !taken {
			err = p.item(key, value)
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
	}
	return p.match()
}

// ParseActions reads actions alone.
func ParseActions(s string) ([]Action, error) {
	a, err := parseActions(s, 0)
	if err != nil {
		return nil, fmt.Errorf("openflow: %w", err)
	}
	return a, nil
}

// ParseGroup reads a group as ovs-ofctl prints it or as add-group reads it.
func ParseGroup(s string) (Group, error) {
	text, comment, _ := strings.Cut(s, "#")
	g := Group{Comment: strings.TrimSpace(comment)}
	head, buckets := text, []string(nil)
	if i := strings.Index(text, "bucket="); i >= 0 {
		head = text[:i]
		buckets = strings.Split(text[i+len("bucket="):], "bucket=")
	}
	items, err := splitList(head)
	if err != nil {
		return g, fmt.Errorf("openflow: group %q: %w", clip(s), err)
	}
	for _, item := range items {
		if err := g.parseItem(item); err != nil {
			return g, fmt.Errorf("openflow: group %q: %q: %w", clip(s), item, err)
		}
	}
	for i, text := range buckets {
		b, err := parseBucket(text, i, g.Type)
		if err != nil {
			return g, fmt.Errorf("openflow: group %q: bucket %d: %w", clip(s), i, err)
		}
		g.Buckets = append(g.Buckets, b)
	}
	return g, nil
}

func (g *Group) parseItem(item string) error {
	key, value, _ := strings.Cut(item, "=")
	var n uint64
	var err error
	switch key {
	case "group_id":
		n, err = parseNum(value, 32)
		g.ID = uint32(n)
		return err
	case "type":
		for t := GroupAll; t <= GroupIndirect; t++ {
			if t.String() == value {
				g.Type = t
				return nil
			}
		}
		return fmt.Errorf("type %q is not one of all, select, indirect", value)
	case "selection_method":
		g.Method = value
		return nil
	case "selection_method_param":
		g.MethodParam, err = parseNum(value, 64)
		return err
	case "fields":
		return g.parseFields(value)
	}
	if list, ok := parens(item, "fields"); ok {
		return g.parseFields(list)
	}
	return fmt.Errorf("not a property of a group")
}

func (g *Group) parseFields(list string) error {
	for _, name := range strings.FieldsFunc(list, isSeparator) {
		f, ok := fieldByName(name)
		if !ok {
			return fmt.Errorf("%q is not a known field", name)
		}
		g.Fields = append(g.Fields, f)
	}
	return nil
}

func parseBucket(text string, index int, t GroupType) (Bucket, error) {
	b := Bucket{ID: uint32(index)}
	if t == GroupSelect {
		b.Weight = 1
	}
	head, actions, ok := cutActions(text)
	if !ok {
		// The older spelling has the actions at once, which may follow a weight.
		items, err := splitList(text)
		if err != nil {
			return b, err
		}
		i := slices.IndexFunc(items, func(item string) bool {
			return !strings.HasPrefix(item, "weight") && !strings.HasPrefix(item, "bucket_id")
		})
		if i < 0 {
			i = len(items)
		}
		head, actions = strings.Join(items[:i], ","), strings.Join(items[i:], ",")
	}
	for _, item := range strings.FieldsFunc(head, isSeparator) {
		i := strings.IndexAny(item, ":=")
		if i < 0 {
			return b, fmt.Errorf("%q is not a property of a bucket", item)
		}
		n, err := parseNum(item[i+1:], 32)
		if err != nil {
			return b, fmt.Errorf("%q: %w", item, err)
		}
		switch item[:i] {
		case "bucket_id":
			b.ID = uint32(n)
		case "weight":
			if n > 0xffff {
				return b, fmt.Errorf("%q: more than 65535", item)
			}
			b.Weight = uint16(n)
		default:
			return b, fmt.Errorf("%q is not a property of a bucket", item)
		}
	}
	var err error
	b.Actions, err = parseActions(strings.TrimRight(actions, ", \t\r\n"), 0)
	return b, err
}

// ParseMeter reads a meter as ovs-ofctl prints it or as add-meter reads it.
func ParseMeter(s string) (Meter, error) {
	text, comment, _ := strings.Cut(s, "#")
	m := Meter{Comment: strings.TrimSpace(comment)}
	bands := 0
	for _, item := range strings.FieldsFunc(text, isSeparator) {
		item, isBands := strings.CutPrefix(item, "bands=")
		if isBands && item == "" {
			continue
		}
		key, value, _ := strings.Cut(item, "=")
		var n uint64
		var err error
		switch key {
		case "meter":
			n, err = parseNum(value, 32)
			m.ID = uint32(n)
		case "kbps", "burst":
		case "pktps":
			m.PerPacket = true
		case "type":
			if bands++; value != "drop" || bands > 1 {
				err = fmt.Errorf("only one band, of type drop, is known")
			}
		case "rate":
			n, err = parseNum(value, 32)
			m.Rate = uint32(n)
		case "burst_size":
			n, err = parseNum(value, 32)
			m.Burst = uint32(n)
		default:
			err = fmt.Errorf("not a property of a meter")
		}
		if err != nil {
			return m, fmt.Errorf("openflow: meter %q: %q: %w", clip(s), item, err)
		}
	}
	return m, nil
}

// parseNum reads an unsigned number, decimal or 0x…, of at most that many bits.
func parseNum(s string, bits int) (uint64, error) {
	v, err := parseValue(s)
	if err != nil {
		return 0, err
	}
	if v.BitLen() > bits {
		return 0, fmt.Errorf("%s needs more than %d bits", clip(s), bits)
	}
	return v.Lo, nil
}

// parseValue reads an unsigned number of up to 128 bits if it is 0x…, 64 otherwise.
func parseValue(s string) (Value, error) {
	digits, isHex := strings.CutPrefix(s, "0x")
	if !isHex {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return Value{}, fmt.Errorf("%q is not a number", clip(s))
		}
		return Value{Lo: n}, nil
	}
	digits = strings.TrimLeft(digits[:max(0, len(digits)-1)], "0") + digits[max(0, len(digits)-1):]
	split := max(0, len(digits)-16)
	var v Value
	var err, err2 error
	if split > 0 {
		v.Hi, err = strconv.ParseUint(digits[:split], 16, 64)
	}
	v.Lo, err2 = strconv.ParseUint(digits[split:], 16, 64)
	if err != nil || err2 != nil {
		return Value{}, fmt.Errorf("%q is not a number of up to 128 bits", clip(s))
	}
	return v, nil
}
