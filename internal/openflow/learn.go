package openflow

import (
	"encoding/binary"
	"fmt"
)

// Learn adds a flow, or refreshes the one with the same key, made from the packet.
type Learn struct {
	Table    uint8
	Priority uint16
	Cookie   uint64
	// IdleTimeout and HardTimeout are those of the learned flow, in seconds;
	// FinIdle and FinHard replace them when a TCP FIN or RST passes, if not 0.
	IdleTimeout, HardTimeout uint16
	FinIdle, FinHard         uint16
	// DeleteLearned deletes the learned flows when the last flow that learns with
	// this cookie and table is deleted.
	DeleteLearned bool
	// Limit bounds the flows that one Learn makes; 0 is no bound.
	Limit uint32
	Specs []LearnSpec
}

// LearnKind is what a LearnSpec adds to the learned flow.
type LearnKind uint8

const (
	// LearnMatch adds a term to its match.
	LearnMatch LearnKind = iota
	// LearnLoad adds an action that sets a field.
	LearnLoad
	// LearnOutput adds an output to the port that From holds.
	LearnOutput
)

// LearnSpec makes a part of the learned flow.
type LearnSpec struct {
	Kind LearnKind
	// To is matched or loaded, except for LearnOutput.
	To Subfield
	// From is what the packet has there now; without one, Value is used.
	From  Subfield
	Value Value
}

// width is the number of bits that are matched, loaded or put out.
func (s LearnSpec) width() int {
	if s.Kind == LearnOutput {
		return s.From.Width()
	}
	return s.To.Width()
}

func (s LearnSpec) immediate() bool { return s.From.Field == fieldNone }

const (
	learnDelete    = 2
	learnImmediate = 1 << 13
	learnKindShift = 11
	learnBits      = 1<<11 - 1
)

func (a Learn) appendWire(b []byte) []byte {
	subtype := uint16(nxLearn)
	if a.Limit != 0 {
		subtype = nxLearn2
	}
	b, start := beginNicira(b, subtype)
	b = be16(b, a.IdleTimeout)
	b = be16(b, a.HardTimeout)
	b = be16(b, a.Priority)
	b = be64(b, a.Cookie)
	var flags uint16
	if a.DeleteLearned {
		flags = learnDelete
	}
	b = be16(b, flags)
	b = append(b, a.Table, 0)
	b = be16(b, a.FinIdle)
	b = be16(b, a.FinHard)
	if a.Limit != 0 {
		b = be32(b, a.Limit)
		b = be32(b, 0)
	}
	for _, s := range a.Specs {
		n := s.width()
		head := uint16(n)&learnBits | uint16(s.Kind)<<learnKindShift
		if s.immediate() {
			b = be16(b, head|learnImmediate)
			b = s.Value.appendBytes(b, min(16, (n+15)/16*2))
		} else {
			b = be16(b, head)
			b = be32(b, s.From.Field.header32())
			b = be16(b, uint16(s.From.Offset))
		}
		if s.Kind != LearnOutput {
			b = be32(b, s.To.Field.header32())
			b = be16(b, uint16(s.To.Offset))
		}
	}
	return endAction(b, start)
}

// learn reads what follows the subtype.
func (r *reader) learn(second bool) Action {
	a := Learn{IdleTimeout: r.u16(), HardTimeout: r.u16(), Priority: r.u16(), Cookie: r.u64()}
	flags := r.u16()
	a.Table = r.u8()
	r.u8()
	a.FinIdle, a.FinHard = r.u16(), r.u16()
	if second {
		a.Limit = r.u32()
		r.u32()
	}
	a.DeleteLearned = flags&learnDelete != 0
	if flags&^learnDelete != 0 {
		return nil // tells of removals, or writes a result: not ours
	}
	for r.left() >= 2 && binary.BigEndian.Uint16(r.b) != 0 {
		s := r.learnSpec()
		if r.err != nil {
			return nil
		}
		a.Specs = append(a.Specs, s)
	}
	return a
}

func (r *reader) learnSpec() LearnSpec {
	head := r.u16()
	n := int(head & learnBits)
	s := LearnSpec{Kind: LearnKind(head >> learnKindShift & 3)}
	if n > 128 || s.Kind > LearnOutput || head>>14 != 0 {
		r.fail("learn: a part with head %#x", head)
		return s
	}
	if head&learnImmediate != 0 {
		s.Value = r.value((n + 15) / 16 * 2)
	} else {
		s.From = Subfield{r.source(), uint8(r.u16()), uint8(n)}
	}
	if s.Kind != LearnOutput {
		s.To = Subfield{r.source(), uint8(r.u16()), uint8(n)}
	}
	return s
}

func (a Learn) appendText(b []byte) []byte {
	b = fmt.Appendf(b, "learn(table=%d", a.Table)
	for _, p := range []struct {
		name  string
		value uint16
	}{
		{"idle_timeout", a.IdleTimeout},
		{"hard_timeout", a.HardTimeout},
		{"fin_idle_timeout", a.FinIdle},
		{"fin_hard_timeout", a.FinHard},
	} {
		if p.value != 0 {
			b = fmt.Appendf(b, ",%s=%d", p.name, p.value)
		}
	}
	if a.Priority != DefaultPriority {
		b = fmt.Appendf(b, ",priority=%d", a.Priority)
	}
	if a.DeleteLearned {
		b = append(b, ",delete_learned"...)
	}
	if a.Cookie != 0 {
		b = fmt.Appendf(b, ",cookie=%#x", a.Cookie)
	}
	if a.Limit != 0 {
		b = fmt.Appendf(b, ",limit=%d", a.Limit)
	}
	for _, s := range a.Specs {
		b = s.appendText(append(b, ','))
	}
	return append(b, ')')
}

func (s LearnSpec) appendText(b []byte) []byte {
	switch {
	case s.Kind == LearnOutput:
		return s.From.appendText(append(b, "output:"...))
	case s.Kind == LearnLoad:
		b = append(b, "load:"...)
		if s.immediate() {
			b = appendHex(b, s.Value)
		} else {
			b = s.From.appendText(b)
		}
		return s.To.appendText(append(b, "->"...))
	case !s.immediate():
		b = s.To.appendText(b)
		if s.From.Field != s.To.Field || s.From.Offset != s.To.Offset {
			b = s.From.appendText(append(b, '='))
		}
		return b
	case s.To.Offset == 0 && s.To.Width() == s.To.Field.Bits():
		b = append(append(b, s.To.Field.String()...), '=')
		return appendSetValue(b, s.To.Field, s.Value, s.To.Field.full())
	}
	return appendHex(append(s.To.appendText(b), '='), s.Value)
}
