package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// Everything here reads what the kernel, or a fuzzer, wrote: nothing may panic.

// Userdata of rules is a list of type, length, value (libnftnl's udata.h).
const (
	udataComment = 0
	// udataDigest is ours: nft leaves types that it does not know alone.
	udataDigest = 0xf1
)

// tableInfo is one table of a dump.
type tableInfo struct {
	name         string
	flags, owner uint32
}

func parseTable(b []byte) (t tableInfo, err error) {
	p, err := parse(b)
	if err != nil {
		return t, err
	}
	t.name = p.str(unix.NFTA_TABLE_NAME)
	if t.flags, err = p.u32(unix.NFTA_TABLE_FLAGS); err != nil {
		return t, err
	}
	t.owner, err = p.u32(tableOwner)
	return t, err
}

// parseChain reads a chain; table is the one it is in.
func parseChain(b []byte) (table string, c *chainState, err error) {
	p, err := parse(b)
	if err != nil {
		return "", nil, err
	}
	c = &chainState{name: p.str(unix.NFTA_CHAIN_NAME)}
	table = p.str(unix.NFTA_CHAIN_TABLE)
	if !p.has(unix.NFTA_CHAIN_HOOK) {
		return table, c, nil
	}
	hook, err := parse(p[unix.NFTA_CHAIN_HOOK])
	if err != nil {
		return table, nil, err
	}
	num, err := hook.u32(unix.NFTA_HOOK_HOOKNUM)
	if err != nil {
		return table, nil, err
	}
	priority, err := hook.u32(unix.NFTA_HOOK_PRIORITY)
	if err != nil {
		return table, nil, err
	}
	policy, err := p.u32(unix.NFTA_CHAIN_POLICY)
	if err != nil {
		return table, nil, err
	}
	c.base = &nftables.Base{Hook: nftables.Hook(min(num, 255)), Priority: int32(priority), Policy: nftables.PolicyAccept}
	if policy == 0 {
		c.base.Policy = nftables.PolicyDrop
	}
	// An unknown type becomes one that no desired chain has.
	c.base.Type = nftables.ChainType(255)
	for _, t := range []nftables.ChainType{nftables.TypeFilter, nftables.TypeNAT, nftables.TypeRoute} {
		if t.String() == p.str(unix.NFTA_CHAIN_TYPE) {
			c.base.Type = t
		}
	}
	return table, c, nil
}

// parseRule reads a rule and the chain and table that it is in.
func parseRule(b []byte) (table, chain string, r ruleState, err error) {
	p, err := parse(b)
	if err != nil {
		return "", "", r, err
	}
	table, chain = p.str(unix.NFTA_RULE_TABLE), p.str(unix.NFTA_RULE_CHAIN)
	if r.handle, err = p.num(unix.NFTA_RULE_HANDLE); err != nil {
		return table, chain, r, err
	}
	r.comment, r.digest = parseUserdata(p[unix.NFTA_RULE_USERDATA])
	err = list(p[unix.NFTA_RULE_EXPRESSIONS], func(data []byte) error { return r.readCounter(data) })
	return table, chain, r, err
}

// parseUserdata reads comment and digest; what is malformed is not ours.
func parseUserdata(b []byte) (comment string, d digest) {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		value := b[2 : 2+int(b[1])]
		switch {
		case b[0] == udataComment:
			comment = string(bytes.TrimRight(value, "\x00"))
		case b[0] == udataDigest && len(value) == len(d):
			d = digest(value)
		}
		b = b[2+len(value):]
	}
	return comment, d
}

// appendUserdata is the inverse of parseUserdata.
func appendUserdata(b []byte, comment string, d digest) []byte {
	if comment != "" {
		b = append(b, udataComment, byte(len(comment)+1))
		b = append(append(b, comment...), 0)
	}
	b = append(b, udataDigest, byte(len(d)))
	return append(b, d[:]...)
}

// readCounter notes the counter if the expression is one.
func (r *ruleState) readCounter(expr []byte) error {
	p, err := parse(expr)
	if err != nil || p.str(unix.NFTA_EXPR_NAME) != "counter" {
		return err
	}
	c, err := parse(p[unix.NFTA_EXPR_DATA])
	if err != nil {
		return err
	}
	packets, err := c.num(unix.NFTA_COUNTER_PACKETS)
	if err != nil {
		return err
	}
	n, err := c.num(unix.NFTA_COUNTER_BYTES)
	if err != nil {
		return err
	}
	r.counted = true
	r.packets += packets
	r.bytes += n
	return nil
}

// parseSet reads the definition of a set.
func parseSet(b []byte) (table string, s *setState, err error) {
	p, err := parse(b)
	if err != nil {
		return "", nil, err
	}
	s = &setState{name: p.str(unix.NFTA_SET_NAME), elements: map[string]string{}}
	table = p.str(unix.NFTA_SET_TABLE)
	for typ, to := range map[int]*uint32{
		unix.NFTA_SET_FLAGS: &s.def.flags, unix.NFTA_SET_KEY_TYPE: &s.def.keyType, unix.NFTA_SET_KEY_LEN: &s.def.keyLen,
		unix.NFTA_SET_DATA_TYPE: &s.def.dataType, unix.NFTA_SET_DATA_LEN: &s.def.dataLen,
	} {
		if *to, err = p.u32(typ); err != nil {
			return table, nil, err
		}
	}
	if s.def.dataType == dataVerdict {
		s.def.dataLen = 0 // the size of a kernel structure
	}
	if p.has(setExpr) {
		expr, err := parse(p[setExpr])
		if err != nil {
			return table, nil, err
		}
		s.def.counter = expr.str(unix.NFTA_EXPR_NAME) == "counter"
	}
	return table, s, nil
}

// element is one element of a dump.
type element struct {
	key, keyEnd []byte
	data        string
	end         bool
}

// parseElements reads one message of elements and calls fn for each.
func parseElements(b []byte, fn func(element)) error {
	p, err := parse(b)
	if err != nil {
		return err
	}
	return list(p[unix.NFTA_SET_ELEM_LIST_ELEMENTS], func(data []byte) error {
		e, err := parseElement(data)
		if err == nil {
			fn(e)
		}
		return err
	})
}

func parseElement(b []byte) (e element, err error) {
	p, err := parse(b)
	if err != nil {
		return e, err
	}
	if e.key, err = dataValue(p[unix.NFTA_SET_ELEM_KEY]); err != nil {
		return e, err
	}
	if p.has(elemKeyEnd) {
		if e.keyEnd, err = dataValue(p[elemKeyEnd]); err != nil {
			return e, err
		}
	}
	flags, err := p.u32(unix.NFTA_SET_ELEM_FLAGS)
	if err != nil {
		return e, err
	}
	e.end = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0
	if !p.has(unix.NFTA_SET_ELEM_DATA) {
		return e, nil
	}
	d, err := parse(p[unix.NFTA_SET_ELEM_DATA])
	if err != nil {
		return e, err
	}
	if !d.has(unix.NFTA_DATA_VERDICT) {
		e.data = string(d[unix.NFTA_DATA_VALUE])
		return e, nil
	}
	v, err := parse(d[unix.NFTA_DATA_VERDICT])
	if err != nil {
		return e, err
	}
	code, err := v.u32(unix.NFTA_VERDICT_CODE)
	e.data = verdictData(code, v.str(unix.NFTA_VERDICT_CHAIN))
	return e, err
}

func dataValue(b []byte) ([]byte, error) {
	p, err := parse(b)
	if err != nil {
		return nil, err
	}
	return p[unix.NFTA_DATA_VALUE], nil
}

// fill puts the dumped elements into the set. Bounds of intervals come as two
// elements each, the upper one excluded and flagged, in no certain order.
func (s *setState) fill(elements []element) {
	if s.def.flags&unix.NFT_SET_INTERVAL == 0 {
		for _, e := range elements {
			s.elements[string(e.key)] = e.data
		}
		return
	}
	if s.def.flags&setFlagConcat != 0 {
		for _, e := range elements {
			to := e.keyEnd
			if to == nil {
				to = e.key
			}
			s.elements[string(e.key)+string(to)] = e.data
		}
		return
	}
	s.broken = s.fillIntervals(elements) != nil
}

var errIntervals = errors.New("bounds of intervals do not pair")

func (s *setState) fillIntervals(elements []element) error {
	sortElements(elements)
	for i := 0; i < len(elements); i++ {
		from := elements[i]
		if len(from.key) != int(s.def.keyLen) {
			return fmt.Errorf("key of %d bytes, want %d", len(from.key), s.def.keyLen)
		}
		if from.end {
			// nft marks the space before the first interval.
			if bytes.Equal(from.key, make([]byte, len(from.key))) {
				continue
			}
			return errIntervals
		}
		var to []byte
		switch {
		case i+1 == len(elements): // open: up to the last value
			to = bytes.Repeat([]byte{0xff}, len(from.key))
		case !elements[i+1].end:
			return errIntervals
		default:
			i++
			to = before(elements[i].key)
		}
		s.elements[string(from.key)+string(to)] = from.data
	}
	return nil
}

// before is the number before a big-endian one.
func before(b []byte) []byte {
	b = bytes.Clone(b)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]--
		if b[i] != 0xff {
			break
		}
	}
	return b
}

// after is the number after a big-endian one, and whether there is one.
func after(b []byte) ([]byte, bool) {
	b = bytes.Clone(b)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]++
		if b[i] != 0 {
			return b, true
		}
	}
	return nil, false
}

// parseGen reads the generation and the process that made it.
func parseGen(b []byte) (generation uint32, pid uint32, process string, err error) {
	p, err := parse(b)
	if err != nil {
		return 0, 0, "", err
	}
	if generation, err = p.u32(unix.NFTA_GEN_ID); err != nil {
		return 0, 0, "", err
	}
	pid, err = p.u32(unix.NFTA_GEN_PROC_PID)
	return generation, pid, p.str(unix.NFTA_GEN_PROC_NAME), err
}

// extended is the kernel's explanation of an error.
type extended struct {
	code unix.Errno
	text string
	// offset of the bad attribute in the message, zero if unknown.
	offset uint32
}

// parseError reads an NLMSG_ERROR with extended acknowledgement. The header of
// the refused message follows the code; its content is left out (CAP_ACK).
func parseError(m message) (x extended) {
	x.code = errorCode(m)
	const (
		ackTLVs   = 0x200 // NLM_F_ACK_TLVS
		errHeader = 4 + msgHeader
	)
	if m.flags&ackTLVs == 0 || len(m.body) < errHeader {
		return x
	}
	p, err := parse(m.body[errHeader:])
	if err != nil {
		return x
	}
	x.text = p.str(unix.NLMSGERR_ATTR_MSG)
	if off := p[unix.NLMSGERR_ATTR_OFFS]; len(off) == 4 {
		x.offset = binary.NativeEndian.Uint32(off)
	}
	return x
}

// sortElements orders by key; at the same key the end of one interval comes
// before the start of the next.
func sortElements(elements []element) {
	slices.SortFunc(elements, func(a, b element) int {
		if c := bytes.Compare(a.key, b.key); c != 0 || a.end == b.end {
			return c
		}
		if a.end {
			return -1
		}
		return 1
	})
}
