package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// maxElementBytes keeps a list of elements below the 64 KiB of an attribute.
const maxElementBytes = maxAttrData - 2048

// batch is one transaction under construction. Messages are numbered from zero,
// the first being the begin of the batch.
type batch struct {
	table string
	buf   []byte
	// labels names the object of each message, for errors.
	labels []label
	// last is where the last message begins.
	last int
	base uint32
}

// label says what a message does to which object.
type label struct {
	verb, object string
	// elements is where each element of a list begins in the message, with its key.
	elements []elementPlace
	set      string
}

type elementPlace struct {
	offset int
	key    string
}

// newBatch begins a batch whose messages get the numbers from base on. If
// generation is not zero, the kernel refuses the batch (ERESTART) when the
// ruleset has another one by then.
func newBatch(table string, base, generation uint32) *batch {
	b := &batch{table: table, base: base, labels: []label{{verb: "commit", object: "the transaction"}}}
	b.buf = appendRaw(nil, unix.NFNL_MSG_BATCH_BEGIN, 0, base, 0, unix.NFNL_SUBSYS_NFTABLES, func(a *attrs) {
		if generation != 0 {
			a.u32(unix.NFNL_BATCH_GENID, generation)
		}
	})
	return b
}

// empty says whether the batch does nothing.
func (b *batch) empty() bool { return len(b.labels) == 1 }

// add appends a message about an object of our table.
func (b *batch) add(typ, flags uint16, l label, fill func(*attrs)) {
	b.last = len(b.buf)
	b.buf = appendMessage(b.buf, typ, flags, b.base+uint32(len(b.labels)), unix.NFPROTO_INET, fill)
	b.labels = append(b.labels, l)
}

// finish asks for an acknowledgement of the last message and ends the batch.
func (b *batch) finish() []byte {
	flags := binary.NativeEndian.Uint16(b.buf[b.last+6:])
	binary.NativeEndian.PutUint16(b.buf[b.last+6:], flags|unix.NLM_F_ACK)
	return appendRaw(b.buf, unix.NFNL_MSG_BATCH_END, 0, b.base+uint32(len(b.labels)), 0, unix.NFNL_SUBSYS_NFTABLES, nil)
}

func (b *batch) newTable(flags uint32, create bool) {
	var how uint16
	if create {
		how = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	b.add(unix.NFT_MSG_NEWTABLE, how, label{verb: "claim", object: "table inet " + b.table}, func(a *attrs) {
		a.str(unix.NFTA_TABLE_NAME, b.table)
		a.u32(unix.NFTA_TABLE_FLAGS, flags)
	})
}

func (b *batch) deleteTable() {
	b.add(unix.NFT_MSG_DELTABLE, 0, label{verb: "delete", object: "table inet " + b.table}, func(a *attrs) {
		a.str(unix.NFTA_TABLE_NAME, b.table)
	})
}

func (b *batch) newChain(c *chainState) {
	b.add(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, label{verb: "add", object: "chain " + c.name}, func(a *attrs) {
		a.str(unix.NFTA_CHAIN_TABLE, b.table)
		a.str(unix.NFTA_CHAIN_NAME, c.name)
		if c.base == nil {
			return
		}
		a.nest(unix.NFTA_CHAIN_HOOK, func() {
			a.u32(unix.NFTA_HOOK_HOOKNUM, uint32(c.base.Hook))
			a.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.base.Priority))
		})
		a.str(unix.NFTA_CHAIN_TYPE, c.base.Type.String())
		a.u32(unix.NFTA_CHAIN_POLICY, policyCode(c.base.Policy))
	})
}

func policyCode(p nftables.Policy) uint32 {
	if p == nftables.PolicyDrop {
		return 0 // NF_DROP
	}
	return 1 // NF_ACCEPT
}

func (b *batch) setPolicy(c *chainState) {
	b.add(unix.NFT_MSG_NEWCHAIN, 0, label{verb: "change", object: "policy of chain " + c.name}, func(a *attrs) {
		a.str(unix.NFTA_CHAIN_TABLE, b.table)
		a.str(unix.NFTA_CHAIN_NAME, c.name)
		a.u32(unix.NFTA_CHAIN_POLICY, policyCode(c.base.Policy))
	})
}

func (b *batch) deleteChain(name string) {
	b.add(unix.NFT_MSG_DELCHAIN, 0, label{verb: "delete", object: "chain " + name}, func(a *attrs) {
		a.str(unix.NFTA_CHAIN_TABLE, b.table)
		a.str(unix.NFTA_CHAIN_NAME, name)
	})
}

// newRule adds a rule before the one with the handle next, or at the end.
func (b *batch) newRule(chain string, i int, r ruleState, next uint64) {
	flags := uint16(unix.NLM_F_CREATE)
	if next == 0 {
		flags |= unix.NLM_F_APPEND
	}
	b.add(unix.NFT_MSG_NEWRULE, flags, label{verb: "add", object: describe(chain, i, r)}, func(a *attrs) {
		a.str(unix.NFTA_RULE_TABLE, b.table)
		a.str(unix.NFTA_RULE_CHAIN, chain)
		if next != 0 {
			a.u64(unix.NFTA_RULE_POSITION, next)
		}
		a.nest(unix.NFTA_RULE_EXPRESSIONS, func() { a.b = append(a.b, r.exprs...) })
		a.bytes(unix.NFTA_RULE_USERDATA, appendUserdata(nil, r.comment, r.digest))
	})
}

// deleteRule deletes a rule, or all the rules of a chain if the handle is zero.
func (b *batch) deleteRule(chain string, handle uint64, object string) {
	b.add(unix.NFT_MSG_DELRULE, 0, label{verb: "delete", object: object}, func(a *attrs) {
		a.str(unix.NFTA_RULE_TABLE, b.table)
		a.str(unix.NFTA_RULE_CHAIN, chain)
		if handle != 0 {
			a.u64(unix.NFTA_RULE_HANDLE, handle)
		}
	})
}

// Byte orders in the userdata of sets (nft's enum byteorder), which nft needs to
// print numbers that the kernel keeps in the machine's order.
const (
	udataKeyOrder  = 0
	udataDataOrder = 1
	orderHost      = 1
	orderBig       = 2
)

func (b *batch) newSet(set nftables.Set, s *setState, id uint32) {
	b.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, label{verb: "add", object: "set " + s.name}, func(a *attrs) {
		a.str(unix.NFTA_SET_TABLE, b.table)
		a.str(unix.NFTA_SET_NAME, s.name)
		a.u32(unix.NFTA_SET_FLAGS, s.def.flags)
		a.u32(unix.NFTA_SET_KEY_TYPE, s.def.keyType)
		a.u32(unix.NFTA_SET_KEY_LEN, s.def.keyLen)
		if set.IsMap() {
			a.u32(unix.NFTA_SET_DATA_TYPE, s.def.dataType)
			a.u32(unix.NFTA_SET_DATA_LEN, s.def.dataLen)
		}
		a.u32(unix.NFTA_SET_ID, id)
		if s.def.flags&setFlagConcat != 0 {
			a.nest(unix.NFTA_SET_DESC, func() {
				a.nest(setDescConcat, func() {
					for _, t := range set.Key {
						a.nest(unix.NFTA_LIST_ELEM, func() { a.u32(setFieldLen, uint32(t.Size())) })
					}
				})
			})
		}
		a.bytes(unix.NFTA_SET_USERDATA, setUserdata(set))
		if set.Counter {
			a.nest(setExpr, func() {
				a.str(unix.NFTA_EXPR_NAME, "counter")
				a.nest(unix.NFTA_EXPR_DATA, func() {
					a.u64(unix.NFTA_COUNTER_BYTES, 0)
					a.u64(unix.NFTA_COUNTER_PACKETS, 0)
				})
			})
		}
	})
}

func setUserdata(set nftables.Set) []byte {
	order := func(types []nftables.Type, interval bool) uint32 {
		if len(types) == 1 && !interval && (types[0].HostOrder() || types[0] == nftables.TypeIfName) {
			return orderHost
		}
		return orderBig
	}
	put := func(b []byte, typ byte, n uint32) []byte {
		return binary.NativeEndian.AppendUint32(append(b, typ, 4), n)
	}
	b := put(nil, udataKeyOrder, order(set.Key, set.Interval))
	if set.IsMap() && !set.IsVerdictMap() {
		b = put(b, udataDataOrder, order(set.Data, false))
	}
	return b
}

func (b *batch) deleteSet(name string) {
	b.add(unix.NFT_MSG_DELSET, 0, label{verb: "delete", object: "set " + name}, func(a *attrs) {
		a.str(unix.NFTA_SET_TABLE, b.table)
		a.str(unix.NFTA_SET_NAME, name)
	})
}

// elements adds or deletes elements, in as many messages as are needed.
func (b *batch) elements(s *setState, keys []string, remove bool) {
	typ, flags, verb := uint16(unix.NFT_MSG_NEWSETELEM), uint16(unix.NLM_F_CREATE), "add"
	if remove {
		typ, flags, verb = unix.NFT_MSG_DELSETELEM, 0, "delete"
	}
	for len(keys) > 0 {
		l := label{verb: verb, set: s.name}
		start, n := len(b.buf), 0
		b.add(typ, flags, l, func(a *attrs) {
			a.str(unix.NFTA_SET_ELEM_LIST_TABLE, b.table)
			a.str(unix.NFTA_SET_ELEM_LIST_SET, s.name)
			list := len(a.b)
			a.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
				for n < len(keys) && len(a.b)-list < maxElementBytes {
					l.elements = append(l.elements, elementPlace{len(a.b) - start, keys[n]})
					s.element(a, keys[n], s.elements[keys[n]], remove)
					n++
				}
			})
		})
		l.object = fmt.Sprintf("%d elements of set %s", n, s.name)
		b.labels[len(b.labels)-1] = l
		keys = keys[n:]
	}
}

// element writes one element: for intervals two, the second of which is the first
// value behind the interval.
func (s *setState) element(a *attrs, key, data string, remove bool) {
	size := len(key)
	interval := s.def.flags&unix.NFT_SET_INTERVAL != 0
	if interval {
		size /= 2
	}
	from, to := []byte(key[:size]), []byte(key[size:])
	var next []byte
	bounded := false
	if interval && s.def.flags&setFlagConcat == 0 {
		next, bounded = after(to)
	}
	a.nest(unix.NFTA_LIST_ELEM, func() {
		a.data(unix.NFTA_SET_ELEM_KEY, from)
		if s.def.flags&setFlagConcat != 0 {
			a.data(elemKeyEnd, to)
		}
		if s.def.flags&unix.NFT_SET_MAP != 0 && !remove {
			s.elementData(a, data)
		}
		if interval && s.def.flags&setFlagConcat == 0 && !bounded {
			// nft's mark of an interval that has no end.
			a.bytes(unix.NFTA_SET_ELEM_USERDATA, binary.NativeEndian.AppendUint32([]byte{1, 4}, 1))
		}
	})
	if bounded {
		a.nest(unix.NFTA_LIST_ELEM, func() {
			a.data(unix.NFTA_SET_ELEM_KEY, next)
			a.u32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		})
	}
}

// elementData writes what a map holds for a key.
func (s *setState) elementData(a *attrs, data string) {
	if s.def.dataType != dataVerdict {
		a.data(unix.NFTA_SET_ELEM_DATA, []byte(data))
		return
	}
	a.nest(unix.NFTA_SET_ELEM_DATA, func() {
		a.nest(unix.NFTA_DATA_VERDICT, func() {
			a.bytes(unix.NFTA_VERDICT_CODE, []byte(data[:4]))
			if len(data) > 4 {
				a.str(unix.NFTA_VERDICT_CHAIN, data[4:])
			}
		})
	})
}

// ObjectError is the kernel's refusal of one object of a batch. It unwraps to the
// error number.
type ObjectError struct {
	// Verb and Object say what was tried: "add", "rule 3 of chain forward".
	Verb, Object string
	Errno        unix.Errno
	// Detail is the kernel's own words, where it has any.
	Detail string
}

// Error implements error.
func (e *ObjectError) Error() string {
	text := fmt.Sprintf("%s %s: %s", e.Verb, e.Object, e.Errno.Error())
	if e.Detail != "" {
		text += " (" + e.Detail + ")"
	}
	return text
}

// Unwrap is the error number.
func (e *ObjectError) Unwrap() error { return e.Errno }

// maxErrors bounds how many refusals of one batch are reported.
const maxErrors = 5

// commit sends the batch and reads what became of it.
func (s *socket) commit(b *batch, describeKey func(set, key string) string) error {
	defer s.seq.Add(uint32(len(b.labels)) + 1)
	if err := s.send(b.finish()); err != nil {
		return fmt.Errorf("send nftables transaction of %d messages, %d bytes: %w", len(b.labels), len(b.buf), err)
	}
	var errs []error
	acked := false
	err := s.receive(func(m message) error {
		i := m.seq - b.base
		if m.typ != unix.NLMSG_ERROR || i >= uint32(len(b.labels)) {
			return nil
		}
		x := parseError(m)
		if x.code == 0 {
			acked = acked || int(i) == len(b.labels)-1
			return nil
		}
		if len(errs) < maxErrors {
			errs = append(errs, b.labels[i].refused(x, describeKey))
		}
		return nil
	})
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err == nil && !acked {
		err = errors.New("the kernel did not say what became of the nftables transaction")
	}
	return err
}

// refused makes the error of a message; the extended acknowledgement may point at
// the element that was refused.
func (l label) refused(x extended, describeKey func(set, key string) string) error {
	e := &ObjectError{Verb: l.verb, Object: l.object, Errno: x.code, Detail: x.text}
	if x.offset > 0 && len(l.elements) > 0 {
		i, found := slices.BinarySearchFunc(l.elements, int(x.offset), func(p elementPlace, at int) int { return p.offset - at })
		if !found {
			i--
		}
		if i >= 0 {
			e.Object = strings.TrimSpace(fmt.Sprintf("element %s of set %s", describeKey(l.set, l.elements[i].key), l.set))
		}
	}
	return e
}
