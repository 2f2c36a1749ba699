package capture

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
)

const (
	// maxInstructions is BPF_MAXINSNS.
	maxInstructions = 4096
	// scratch is how many words a program may put aside (BPF_MEMWORDS).
	scratch = 16
)

// Offsets in an Ethernet frame, in bytes.
const (
	offEtherType = 12
	offARPType   = 16 // protocol type
	offARPSender = 28
	offARPTarget = 38
	lenARP       = 42

	offIPv4         = 14
	offIPv4Fragment = 20
	offIPv4Proto    = 23
	offIPv4Src      = 26
	offIPv4Dst      = 30
	lenIPv4         = 34

	offIPv6Next = 20
	offIPv6Src  = 22
	offIPv6Dst  = 38
	lenIPv6     = 54
)

// Compile makes a program that keeps the first snap bytes of what the filter wants.
func (f Filter) Compile(snap uint32) ([]bpf.RawInstruction, error) {
	program, err := f.instructions(snap)
	if err != nil {
		return nil, err
	}
	return bpf.Assemble(program)
}

func (f Filter) instructions(snap uint32) ([]bpf.Instruction, error) {
	if f.root == nil {
		return []bpf.Instruction{bpf.RetConstant{Val: snap}}, nil
	}
	out, err := compile(f.root, 0)
	if err != nil {
		return nil, err
	}
	out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipFalse: 1}, bpf.RetConstant{}, bpf.RetConstant{Val: snap})
	if len(out) > maxInstructions {
		return nil, fmt.Errorf("too long for the kernel: %d instructions, at most %d are possible", len(out), maxInstructions)
	}
	return out, nil
}

// compile leaves 1 in the accumulator for a packet that the expression wants, else 0.
// Nothing is skipped, so that every jump stays inside of its primitive: jumps reach 255
// instructions, and filters are long where people generate them.
func compile(n node, depth int) ([]bpf.Instruction, error) {
	switch n := n.(type) {
	case not:
		out, err := compile(n.of, depth)
		return append(out, bpf.ALUOpConstant{Op: bpf.ALUOpXor, Val: 1}), err
	case pair:
		return compileBoth(n, depth)
	}
	p := &assembler{places: map[label]int{}, labels: firstLabel}
	switch n := n.(type) {
	case family:
		p.emit(bpf.LoadAbsolute{Off: offEtherType, Size: 2})
		p.jump(bpf.JumpEqual, uint32(n), yes, no)
	case protocol:
		p.protocol(n)
	case network:
		p.network(n)
	case ports:
		p.ports(n)
	default:
		return nil, fmt.Errorf("a condition that cannot be compiled: %T", n)
	}
	return p.finish(), nil
}

func compileBoth(n pair, depth int) ([]bpf.Instruction, error) {
	if depth == scratch {
		return nil, fmt.Errorf("too many parentheses inside of each other")
	}
	a, err := compile(n.a, depth)
	if err != nil {
		return nil, err
	}
	b, err := compile(n.b, depth+1)
	if err != nil {
		return nil, err
	}
	op := bpf.ALUOpAnd
	if n.or {
		op = bpf.ALUOpOr
	}
	out := append(a, bpf.StoreScratch{Src: bpf.RegA, N: depth})
	out = append(out, b...)
	return append(out, bpf.LoadScratch{Dst: bpf.RegX, N: depth}, bpf.ALUOpX{Op: op}), nil
}

// label is a place in a primitive's instructions.
type label int

const (
	next label = iota // the instruction that follows
	yes
	no
	firstLabel
)

// assembler gathers the instructions of one primitive.
type assembler struct {
	code   []bpf.Instruction
	jumps  []jump
	places map[label]int
	labels label
}

// jump is a conditional one whose distances are not known yet.
type jump struct {
	at              int
	then, otherwise label
}

func (p *assembler) emit(i ...bpf.Instruction) { p.code = append(p.code, i...) }

func (p *assembler) label() label {
	p.labels++
	return p.labels - 1
}

func (p *assembler) place(l label) { p.places[l] = len(p.code) }

func (p *assembler) jump(c bpf.JumpTest, v uint32, then, otherwise label) {
	p.jumps = append(p.jumps, jump{len(p.code), then, otherwise})
	p.emit(bpf.JumpIf{Cond: c, Val: v})
}

// jumpX compares with X.
func (p *assembler) jumpX(c bpf.JumpTest, then, otherwise label) {
	p.jumps = append(p.jumps, jump{len(p.code), then, otherwise})
	p.emit(bpf.JumpIfX{Cond: c})
}

// finish puts yes and no at the end and fills in the distances.
func (p *assembler) finish() []bpf.Instruction {
	p.place(yes)
	p.emit(bpf.LoadConstant{Dst: bpf.RegA, Val: 1}, bpf.Jump{Skip: 1})
	p.place(no)
	p.emit(bpf.LoadConstant{Dst: bpf.RegA, Val: 0})
	for _, j := range p.jumps {
		p.places[next] = j.at + 1
		then, otherwise := uint8(p.places[j.then]-j.at-1), uint8(p.places[j.otherwise]-j.at-1)
		switch i := p.code[j.at].(type) {
		case bpf.JumpIf:
			i.SkipTrue, i.SkipFalse = then, otherwise
			p.code[j.at] = i
		case bpf.JumpIfX:
			i.SkipTrue, i.SkipFalse = then, otherwise
			p.code[j.at] = i
		}
	}
	return p.code
}

// long asks whether the packet has n bytes: a load behind its end would end the program.
func (p *assembler) long(n uint32) {
	p.emit(bpf.LoadExtension{Num: bpf.ExtLen})
	p.jump(bpf.JumpGreaterOrEqual, n, next, no)
}

// families branches by EtherType; what is neither is not wanted.
func (p *assembler) families(v4, v6 label) {
	p.emit(bpf.LoadAbsolute{Off: offEtherType, Size: 2})
	p.jump(bpf.JumpEqual, etherIPv4, v4, next)
	p.jump(bpf.JumpEqual, etherIPv6, v6, no)
}

func (p *assembler) protocol(n protocol) {
	v4, v6 := no, no
	if n.v4 {
		v4 = p.label()
	}
	if n.v6 {
		v6 = p.label()
	}
	p.families(v4, v6)
	for _, x := range []struct {
		at     label
		offset uint32
	}{{v4, offIPv4Proto}, {v6, offIPv6Next}} {
		if x.at != no {
			p.place(x.at)
			p.long(x.offset + 1)
			p.emit(bpf.LoadAbsolute{Off: x.offset, Size: 1})
			p.jump(bpf.JumpEqual, uint32(n.number), yes, no)
		}
	}
}

func (p *assembler) network(n network) {
	if n.prefix.Addr().Is6() {
		p.emit(bpf.LoadAbsolute{Off: offEtherType, Size: 2})
		p.jump(bpf.JumpEqual, etherIPv6, next, no)
		p.long(lenIPv6)
		p.addresses(n, offIPv6Src, offIPv6Dst)
		return
	}
	ip, arp := p.label(), p.label()
	p.emit(bpf.LoadAbsolute{Off: offEtherType, Size: 2})
	p.jump(bpf.JumpEqual, etherIPv4, ip, next)
	p.jump(bpf.JumpEqual, etherARP, arp, no)
	p.place(ip)
	p.long(lenIPv4)
	p.addresses(n, offIPv4Src, offIPv4Dst)
	p.place(arp)
	p.long(lenARP)
	p.emit(bpf.LoadAbsolute{Off: offARPType, Size: 2})
	p.jump(bpf.JumpEqual, etherIPv4, next, no)
	p.addresses(n, offARPSender, offARPTarget)
}

// addresses compares the addresses at two offsets.
func (p *assembler) addresses(n network, src, dst uint32) {
	offsets := []uint32{src, dst}
	switch n.end {
	case source:
		offsets = offsets[:1]
	case destination:
		offsets = offsets[1:]
	}
	want := n.prefix.Addr().AsSlice()
	for i, off := range offsets {
		other := no
		if i < len(offsets)-1 {
			other = p.label()
		}
		for word, left := 0, n.prefix.Bits(); left > 0; word, left = word+1, left-32 {
			mask := ^uint32(0)
			if left < 32 {
				mask <<= 32 - left
			}
			then := next
			if left <= 32 {
				then = yes
			}
			p.emit(bpf.LoadAbsolute{Off: off + uint32(4*word), Size: 4}, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask})
			p.jump(bpf.JumpEqual, binary.BigEndian.Uint32(want[4*word:]), then, other)
		}
		if n.prefix.Bits() == 0 {
			p.emit(bpf.LoadConstant{Dst: bpf.RegA})
			p.jump(bpf.JumpEqual, 0, yes, no)
		}
		if other != no {
			p.place(other)
		}
	}
}

func (p *assembler) ports(n ports) {
	v4, v6 := p.label(), p.label()
	p.families(v4, v6)

	p.place(v4)
	p.long(lenIPv4)
	p.emit(bpf.LoadAbsolute{Off: offIPv4Proto, Size: 1})
	p.withPorts()
	p.emit(bpf.LoadAbsolute{Off: offIPv4Fragment, Size: 2}, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0x1fff})
	p.jump(bpf.JumpEqual, 0, next, no)
	// X is the header's length; both ports must be there.
	header := bpf.LoadMemShift{Off: offIPv4}
	p.emit(header, bpf.TXA{}, bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: offIPv4 + 4}, bpf.TAX{}, bpf.LoadExtension{Num: bpf.ExtLen})
	p.jumpX(bpf.JumpGreaterOrEqual, next, no)
	p.emit(header)
	p.inRange(n, bpf.LoadIndirect{Off: offIPv4, Size: 2}, bpf.LoadIndirect{Off: offIPv4 + 2, Size: 2})

	p.place(v6)
	p.long(lenIPv6 + 4)
	p.emit(bpf.LoadAbsolute{Off: offIPv6Next, Size: 1})
	p.withPorts()
	p.inRange(n, bpf.LoadAbsolute{Off: lenIPv6, Size: 2}, bpf.LoadAbsolute{Off: lenIPv6 + 2, Size: 2})
}

// withPorts goes on if the accumulator is a protocol that has ports.
func (p *assembler) withPorts() {
	on := p.label()
	p.jump(bpf.JumpEqual, 6, on, next)
	p.jump(bpf.JumpEqual, 17, on, next)
	p.jump(bpf.JumpEqual, 132, on, no)
	p.place(on)
}

func (p *assembler) inRange(n ports, src, dst bpf.Instruction) {
	loads := []bpf.Instruction{src, dst}
	switch n.end {
	case source:
		loads = loads[:1]
	case destination:
		loads = loads[1:]
	}
	for i, load := range loads {
		other := no
		if i < len(loads)-1 {
			other = p.label()
		}
		p.emit(load)
		p.jump(bpf.JumpGreaterOrEqual, uint32(n.lo), next, other)
		p.jump(bpf.JumpGreaterThan, uint32(n.hi), other, yes)
		if other != no {
			p.place(other)
		}
	}
}
