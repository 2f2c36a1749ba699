package capture

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxFilter bounds a filter's text, in bytes.
	maxFilter = 4096
	// maxNesting bounds parentheses and negations inside of each other.
	maxNesting = 64
)

// Filter says which packets are wanted. The zero Filter wants all.
type Filter struct {
	// root is nil for all packets.
	root node
}

// node is an expression: not, pair, family, protocol, network or ports.
type node any

type (
	not  struct{ of node }
	pair struct {
		or   bool
		a, b node
	}
	// family is an EtherType.
	family uint16
	// protocol is a transport protocol, of IPv4, of IPv6, or of both.
	protocol struct {
		number uint8
		v4, v6 bool
	}
	network struct {
		end    end
		prefix netip.Prefix
	}
	// ports are those from lo to hi.
	ports struct {
		end    end
		lo, hi uint16
	}
)

// end is which end of a packet's flow is meant.
type end uint8

const (
	either end = iota
	source
	destination
)

// The EtherTypes of the language.
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
)

// words are the primitives that stand alone.
func words() map[string]node {
	return map[string]node{
		"ip": family(etherIPv4), "ip6": family(etherIPv6), "arp": family(etherARP),
		"tcp": protocol{6, true, true}, "udp": protocol{17, true, true}, "sctp": protocol{132, true, true},
		"icmp": protocol{1, true, false}, "icmp6": protocol{58, false, true},
	}
}

// ParseFilter reads a filter; an empty text wants everything.
func ParseFilter(text string) (Filter, error) {
	if len(text) > maxFilter {
		return Filter{}, fmt.Errorf("the filter is longer than %d bytes", maxFilter)
	}
	p := &parser{tokens: tokens(text)}
	if len(p.tokens) == 0 {
		return Filter{}, nil
	}
	root, err := p.either(0)
	if err == nil && p.at < len(p.tokens) {
		err = fmt.Errorf("a parenthesis that nothing opens")
	}
	f := Filter{root}
	if err == nil {
		_, err = f.Compile(1)
	}
	if err != nil {
		return Filter{}, fmt.Errorf("the filter %.200q: %w", text, err)
	}
	return f, nil
}

// tokens splits at blanks, and around parentheses and exclamation marks.
func tokens(text string) []string {
	return strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ", "!", " ! ", "&&", " and ", "||", " or ").Replace(text))
}

type parser struct {
	tokens []string
	at     int
}

// next takes the next token if it is one of those; any, if there are none.
func (p *parser) next(want ...string) (string, bool) {
	if p.at == len(p.tokens) || len(want) > 0 && !slices.Contains(want, p.tokens[p.at]) {
		return "", false
	}
	p.at++
	return p.tokens[p.at-1], true
}

func (p *parser) either(depth int) (node, error) {
	a, err := p.both(depth)
	for err == nil {
		if _, ok := p.next("or"); !ok {
			return a, nil
		}
		var b node
		b, err = p.both(depth)
		a = pair{true, a, b}
	}
	return nil, err
}

func (p *parser) both(depth int) (node, error) {
	a, err := p.factor(depth)
	for err == nil {
		_, and := p.next("and")
		if !and && (p.at == len(p.tokens) || slices.Contains([]string{"or", ")"}, p.tokens[p.at])) {
			return a, nil
		}
		var b node
		b, err = p.factor(depth)
		a = pair{false, a, b}
	}
	return nil, err
}

func (p *parser) factor(depth int) (node, error) {
	if depth == maxNesting {
		return nil, fmt.Errorf("nested more than %d deep", maxNesting)
	}
	if _, ok := p.next("not", "!"); ok {
		of, err := p.factor(depth + 1)
		return not{of}, err
	}
	if _, ok := p.next("("); ok {
		inner, err := p.either(depth + 1)
		if err != nil {
			return nil, err
		}
		if _, ok := p.next(")"); !ok {
			return nil, fmt.Errorf("a parenthesis is not closed")
		}
		return inner, nil
	}
	return p.primitive()
}

func (p *parser) primitive() (node, error) {
	word, ok := p.next()
	if !ok {
		return nil, fmt.Errorf("it ends where a condition is due")
	}
	if n, ok := words()[word]; ok {
		return n, nil
	}
	e := either
	switch word {
	case "src":
		e = source
	case "dst":
		e = destination
	case "proto":
		return p.proto()
	}
	if e != either {
		if word, ok = p.next(); !ok {
			return nil, fmt.Errorf("it ends where host, net or port is due")
		}
	}
	switch word {
	case "host":
		return p.host(e)
	case "net":
		return p.net(e)
	case "port":
		return p.ports(e)
	}
	if _, err := netip.ParseAddr(word); err == nil {
		return nil, fmt.Errorf("%q: say what it is: host %s", word, word)
	}
	return nil, fmt.Errorf("%q is no condition: there are host, net, port (with src or dst before them), proto, ip, ip6, arp, tcp, udp, sctp, icmp and icmp6", word)
}

func (p *parser) proto() (node, error) {
	text, _ := p.next()
	if n, ok := words()[text].(protocol); ok {
		return n, nil
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return nil, fmt.Errorf("proto %s: want a number up to 255, or a name such as tcp", text)
	}
	return protocol{uint8(n), true, true}, nil
}

func (p *parser) host(e end) (node, error) {
	text, _ := p.next()
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return nil, fmt.Errorf("host %s: want an address, such as 10.0.0.1 or fd00::1 (names are not resolved)", text)
	}
	a = a.Unmap()
	return network{e, netip.PrefixFrom(a, a.BitLen())}, nil
}

func (p *parser) net(e end) (node, error) {
	text, _ := p.next()
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("net %s: want a prefix, such as 10.0.0.0/8", text)
	case prefix != prefix.Masked():
		return nil, fmt.Errorf("net %s: it has bits behind its length: %s", text, prefix.Masked())
	case prefix.Addr().Is4In6():
		return nil, fmt.Errorf("net %s: write it as IPv4", text)
	}
	return network{e, prefix}, nil
}

func (p *parser) ports(e end) (node, error) {
	text, _ := p.next()
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	lo, err := strconv.ParseUint(first, 10, 16)
	hi, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || lo > hi {
		return nil, fmt.Errorf("port %s: want a number up to 65535, or two such as 8000-8080", text)
	}
	return ports{e, uint16(lo), uint16(hi)}, nil
}
