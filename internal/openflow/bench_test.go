package openflow

import "testing"

var benchFlow = Flow{
	Table: 20, Priority: 100, Cookie: 1,
	Match:   NewMatch(Eq(EthType, EthTypeIPv4), Eq(IPProto, ProtoTCP), Masked(IPSrc, 0x0a000000, 0xff000000), Eq(TCPDst, 80)),
	Actions: []Action{Set(Reg1, 5), CT{Commit: true, Recirc: true, Table: 30, Zone: 4}},
}

func BenchmarkAppendFlowMod(b *testing.B) {
	var buf []byte
	for b.Loop() {
		buf = AppendFlowMod(buf[:0], 1, FlowMod{Flow: benchFlow})
	}
}

func BenchmarkDecodeFlowDesc(b *testing.B) {
	msg := appendFlowDescReply(nil, []Flow{benchFlow})
	for b.Loop() {
		if _, err := Decode(msg); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkText(b *testing.B) {
	var buf []byte
	for b.Loop() {
		buf = benchFlow.appendText(buf[:0])
	}
}

func BenchmarkParseFlow(b *testing.B) {
	text := benchFlow.String()
	for b.Loop() {
		if _, err := ParseFlow(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValidate(b *testing.B) {
	for b.Loop() {
		if err := benchFlow.Validate(); err != nil {
			b.Fatal(err)
		}
	}
}
