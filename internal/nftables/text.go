package nftables

import (
	"fmt"
	"strings"
)

// String is the table as "nft --stateless list table inet NAME" (1.0.6) prints
// it when the kernel holds it, sets and chains in the order of the value.
func (t Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", t.Name)
	for i, s := range t.Sets {
		if i > 0 {
			b.WriteByte('\n')
		}
		s.write(&b)
	}
	for i, c := range t.Chains {
		if i > 0 || len(t.Sets) > 0 {
			b.WriteByte('\n')
		}
		c.write(&b)
	}
	b.WriteString("}\n")
	return b.String()
}

// String is the chain as it stands in the text of its table.
func (c Chain) String() string {
	var b strings.Builder
	c.write(&b)
	return b.String()
}

func (c Chain) write(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if c.Base != nil {
		fmt.Fprintf(b, "\t\t%s\n", c.Base)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(b, "\t\t%s\n", r)
	}
	b.WriteString("\t}\n")
}

// String is nft's line for the base of a chain.
func (b Base) String() string {
	return fmt.Sprintf("type %s hook %s priority %s; policy %s;", b.Type, b.Hook, b.priority(), b.Policy)
}

// priority names a priority within ten of a well-known one, as nft does.
func (b Base) priority() string {
	for _, known := range []struct {
		name  string
		value int32
		only  bool
		hook  Hook
	}{
		{name: "raw", value: -300},
		{name: "mangle", value: -150},
		{name: "dstnat", value: -100, only: true, hook: HookPrerouting},
		{name: "filter", value: 0},
		{name: "security", value: 50},
		{name: "srcnat", value: 100, only: true, hook: HookPostrouting},
	} {
		if known.only && known.hook != b.Hook {
			continue
		}
		switch d := int64(b.Priority) - int64(known.value); {
		case d == 0:
			return known.name
		case d > 0 && d <= 10:
			return fmt.Sprintf("%s + %d", known.name, d)
		case d < 0 && d >= -10:
			return fmt.Sprintf("%s - %d", known.name, -d)
		}
	}
	return fmt.Sprint(b.Priority)
}

// String is the set or map as it stands in the text of its table.
func (s Set) String() string {
	var b strings.Builder
	s.write(&b)
	return b.String()
}

func (s Set) write(b *strings.Builder) {
	kind := "set"
	typ := joinTypes(s.Key)
	if s.IsMap() {
		kind = "map"
		typ += " : " + joinTypes(s.Data)
	}
	fmt.Fprintf(b, "\t%s %s {\n\t\ttype %s\n", kind, s.Name, typ)
	switch {
	case s.Constant && s.Interval:
		b.WriteString("\t\tflags constant,interval\n")
	case s.Constant:
		b.WriteString("\t\tflags constant\n")
	case s.Interval:
		b.WriteString("\t\tflags interval\n")
	}
	if s.Counter {
		b.WriteString("\t\tcounter\n")
	}
	if len(s.Elements) > 0 {
		b.WriteString("\t\telements = { ")
		s.writeElements(b)
		b.WriteString(" }\n")
	}
	b.WriteString("\t}\n")
}

func joinTypes(types []Type) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.String()
	}
	return strings.Join(names, " . ")
}

// perLine is how many elements nft puts on a line.
func (s Set) perLine() int {
	if len(s.Key) != 1 {
		return 1
	}
	switch s.Key[0] {
	case TypeInetProto, TypeInetService, TypeMark:
		return 5
	case TypeIPv4Addr:
		return 2
	}
	return 1
}

func (s Set) writeElements(b *strings.Builder) {
	perLine := s.perLine()
	for i, e := range s.Sorted() {
		switch {
		case i == 0:
		case i%perLine == 0:
			b.WriteString(",\n\t\t\t     ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(joinValues(e.Key))
		if s.Counter {
			b.WriteString(" counter")
		}
		switch {
		case s.IsVerdictMap():
			b.WriteString(" : " + e.Verdict.String())
		case s.IsMap():
			b.WriteString(" : " + joinValues(e.Data))
		}
	}
}

// KeyText is a key, or the data of a map, as nft prints it.
func KeyText(values []Value) string { return joinValues(values) }

func joinValues(values []Value) string {
	if len(values) == 1 {
		return values[0].String()
	}
	parts := make([]string, len(values))
	for i, v := range values {
		parts[i] = v.String()
	}
	return strings.Join(parts, " . ")
}
