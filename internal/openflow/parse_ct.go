package openflow

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

func parseCT(s string, depth int) (Action, error) {
	var a CT
	items, err := splitList(s)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		if err := a.parseItem(item, depth); err != nil {
			return nil, fmt.Errorf("%q: %w", clip(item), err)
		}
	}
	return a, nil
}

func (a *CT) parseItem(item string, depth int) error {
	if inner, ok := parens(item, "exec"); ok {
		var err error
		a.Exec, err = parseActions(inner, depth+1)
		return err
	}
	if inner, ok := parens(item, "nat"); ok {
		var err error
		a.NAT, err = parseNAT(inner)
		return err
	}
	key, value, _ := strings.Cut(item, "=")
	switch key {
	case "commit":
		a.Commit = true
	case "force":
		a.Force = true
	case "nat":
		a.NAT = &NAT{}
	case "table":
		n, err := parseNum(value, 8)
		if err == nil && n == ctNoRecirc {
			err = errors.New("table 255 is none")
		}
		a.Recirc, a.Table = true, uint8(n)
		return err
	case "zone":
		if n, err := parseNum(value, 16); err == nil {
			a.Zone = uint16(n)
			return nil
		}
		var err error
		a.ZoneSource, err = parseSubfield(value)
		return err
	case "alg":
		for _, alg := range algNames {
			if alg.name == value {
				a.ALG = alg.port
				return nil
			}
		}
		n, err := parseNum(value, 16)
		a.ALG = uint16(n)
		return err
	default:
		return errors.New("not an argument of ct")
	}
	return nil
}

func parseNAT(s string) (*NAT, error) {
	n := &NAT{}
	for item := range strings.SplitSeq(s, ",") {
		key, value, hasRange := strings.Cut(strings.TrimSpace(item), "=")
		switch key {
		case "src":
			n.Kind = NATSource
		case "dst":
			n.Kind = NATDestination
		case "persistent":
			n.Persistent = true
			continue
		case "hash":
			n.Hash = true
			continue
		case "random":
			n.Random = true
			continue
		default:
			return nil, fmt.Errorf("%q is not an argument of nat", clip(item))
		}
		if hasRange {
			if err := n.parseRange(value); err != nil {
				return nil, fmt.Errorf("%q: %w", clip(value), err)
			}
		}
	}
	return n, nil
}

// parseRange reads address[-address][:port[-port]]. An IPv6 address is in
// brackets if ports follow.
func (n *NAT) parseRange(s string) error {
	addrs, ports := s, ""
	if strings.HasPrefix(s, "[") {
		if i := strings.LastIndex(s, "]"); i >= 0 {
			addrs, ports = s[:i+1], s[i+1:]
		}
	} else if strings.Count(s, ":") == 1 {
		i := strings.Index(s, ":")
		addrs, ports = s[:i], s[i:]
	}
	from, to, isRange := strings.Cut(addrs, "-")
	var err error
	if n.Min, err = parseNATAddr(from); err != nil {
		return err
	}
	if isRange {
		if n.Max, err = parseNATAddr(to); err != nil {
			return err
		}
	}
	if ports == "" {
		return nil
	}
	ports, ok := strings.CutPrefix(ports, ":")
	if !ok {
		return errors.New("no colon before the port")
	}
	first, last, isRange := strings.Cut(ports, "-")
	p, err := parseNum(first, 16)
	if err != nil {
		return err
	}
	n.PortMin = uint16(p)
	if isRange {
		if p, err = parseNum(last, 16); err != nil {
			return err
		}
		n.PortMax = uint16(p)
	}
	return nil
}

func parseNATAddr(s string) (netip.Addr, error) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		s, ok = strings.CutSuffix(inner, "]")
		if !ok {
			return netip.Addr{}, errors.New("no ] at the end of the address")
		}
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an address", clip(s))
	}
	return a, nil
}

func parseLearn(s string) (Action, error) {
	a := Learn{Table: 1, Priority: DefaultPriority}
	items, err := splitList(s)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		if err := a.parseItem(item); err != nil {
			return nil, fmt.Errorf("%q: %w", clip(item), err)
		}
	}
	return a, nil
}

func (a *Learn) parseItem(item string) error {
	key, value, hasValue := strings.Cut(item, "=")
	for _, p := range []struct {
		name string
		to   *uint16
	}{
		{"idle_timeout", &a.IdleTimeout},
		{"hard_timeout", &a.HardTimeout},
		{"fin_idle_timeout", &a.FinIdle},
		{"fin_hard_timeout", &a.FinHard},
		{"priority", &a.Priority},
	} {
		if p.name == key {
			n, err := parseNum(value, 16)
			*p.to = uint16(n)
			return err
		}
	}
	var n uint64
	var err error
	switch key {
	case "table":
		n, err = parseNum(value, 8)
		a.Table = uint8(n)
		return err
	case "cookie":
		a.Cookie, err = parseNum(value, 64)
		return err
	case "limit":
		n, err = parseNum(value, 32)
		a.Limit = uint32(n)
		return err
	case "delete_learned":
		a.DeleteLearned = true
		return nil
	}
	spec, err := parseLearnSpec(item, key, value, hasValue)
	a.Specs = append(a.Specs, spec)
	return err
}

func parseLearnSpec(item, key, value string, hasValue bool) (s LearnSpec, err error) {
	if text, ok := strings.CutPrefix(item, "output:"); ok {
		s.Kind = LearnOutput
		s.From, err = parseSubfield(text)
		return s, err
	}
	if text, ok := strings.CutPrefix(item, "load:"); ok {
		s.Kind = LearnLoad
		from, to, ok := strings.Cut(text, "->")
		if !ok {
			return s, errors.New(`no "->" to the field`)
		}
		if s.To, err = parseSubfield(to); err != nil {
			return s, err
		}
		return s, s.parseSource(from)
	}
	if s.To, err = parseSubfield(key); err != nil {
		return s, err
	}
	if !hasValue {
		s.From = s.To
		return s, nil
	}
	if s.To.Width() == s.To.Field.Bits() {
		var mask Value
		if s.Value, mask, err = parseFieldValue(s.To.Field, value); err == nil && mask == s.To.Field.full() {
			return s, nil
		}
		s.Value = Value{}
	}
	return s, s.parseSource(value)
}

// parseSource reads a number or a part of a field.
func (s *LearnSpec) parseSource(text string) error {
	v, err := parseValue(text)
	if err != nil {
		s.From, err = parseSubfield(text)
		return err
	}
	if v.BitLen() > s.To.Width() {
		return fmt.Errorf("%s needs more than %d bits", text, s.To.Width())
	}
	s.Value = v
	return nil
}
