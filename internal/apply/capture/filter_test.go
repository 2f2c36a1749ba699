package capture

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"pgregory.net/rapid"
)

// flow is a frame as a person describes it.
type flow struct {
	src, dst     string
	proto        uint8
	sport, dport uint16
	options      int // bytes of IPv4 options
	fragment     bool
	arp          bool
	cut          int // keep only that many bytes
}

// frame makes the bytes.
func (f flow) bytes() []byte {
	src, dst := netip.MustParseAddr(f.src), netip.MustParseAddr(f.dst)
	b := make([]byte, 12)
	switch {
	case f.arp:
		b = binary.BigEndian.AppendUint16(b, etherARP)
		b = append(b, 0, 1, 8, 0, 6, 4, 0, 1)
		b = append(append(b, make([]byte, 6)...), src.AsSlice()...)
		b = append(append(b, make([]byte, 6)...), dst.AsSlice()...)
	case src.Is4():
		b = binary.BigEndian.AppendUint16(b, etherIPv4)
		h := make([]byte, 20+f.options)
		h[0], h[8], h[9] = byte(0x40|len(h)/4), 64, f.proto
		if f.fragment {
			binary.BigEndian.PutUint16(h[6:], 100)
		}
		copy(h[12:], src.AsSlice())
		copy(h[16:], dst.AsSlice())
		b = append(b, h...)
	default:
		b = binary.BigEndian.AppendUint16(b, etherIPv6)
		h := make([]byte, 40)
		h[0], h[6], h[7] = 0x60, f.proto, 64
		copy(h[8:], src.AsSlice())
		copy(h[24:], dst.AsSlice())
		b = append(b, h...)
	}
	if !f.arp {
		b = binary.BigEndian.AppendUint16(b, f.sport)
		b = binary.BigEndian.AppendUint16(b, f.dport)
		b = append(b, "payload."...)
	}
	if f.cut > 0 {
		b = b[:min(f.cut, len(b))]
	}
	return b
}

// keeps runs a filter's program as the kernel would.
func keeps(t interface{ Fatal(...any) }, text string, packet []byte) bool {
	f, err := ParseFilter(text)
	if err != nil {
		t.Fatal(err)
	}
	program, err := f.instructions(1000)
	if err != nil {
		t.Fatal(text, err)
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(text, err)
	}
	n, err := vm.Run(packet)
	if err != nil {
		t.Fatal(text, err)
	}
	return n > 0
}

func TestFilter(t *testing.T) {
	web := flow{src: "10.0.0.1", dst: "10.0.1.2", proto: 6, sport: 40000, dport: 80}
	dns6 := flow{src: "fd00::1", dst: "fd00:1::53", proto: 17, sport: 5353, dport: 53}
	for _, tt := range []struct {
		filter string
		flow   flow
		want   bool
	}{
		{"", web, true},
		{"ip", web, true},
		{"ip6", web, false},
		{"ip6", dns6, true},
		{"arp", web, false},
		{"tcp", web, true},
		{"udp", dns6, true},
		{"tcp", dns6, false},
		{"proto 6", web, true},
		{"proto udp", web, false},
		{"proto 132", flow{src: "10.0.0.1", dst: "10.0.0.2", proto: 132}, true},
		{"icmp", flow{src: "10.0.0.1", dst: "10.0.0.2", proto: 1}, true},
		{"icmp", flow{src: "fd00::1", dst: "fd00::2", proto: 1}, false},
		{"icmp6", flow{src: "fd00::1", dst: "fd00::2", proto: 58}, true},
		{"icmp6", flow{src: "10.0.0.1", dst: "10.0.0.2", proto: 58}, false},
		{"host 10.0.0.1", web, true},
		{"host 10.0.1.2", web, true},
		{"host 10.0.1.3", web, false},
		{"src host 10.0.0.1", web, true},
		{"dst host 10.0.0.1", web, false},
		{"host ::ffff:10.0.0.1", web, true},
		{"host 10.0.0.1", flow{src: "10.0.0.1", dst: "10.0.0.9", arp: true}, true},
		{"dst host 10.0.0.9", flow{src: "10.0.0.1", dst: "10.0.0.9", arp: true}, true},
		{"src host 10.0.0.9", flow{src: "10.0.0.1", dst: "10.0.0.9", arp: true}, false},
		{"net 10.0.0.0/23", flow{src: "192.0.2.1", dst: "10.0.1.9"}, true},
		{"net 10.0.0.0/24", flow{src: "192.0.2.1", dst: "10.0.1.9"}, false},
		{"net 0.0.0.0/0", web, true},
		{"net 0.0.0.0/0", dns6, false},
		{"net ::/0", dns6, true},
		{"host fd00:1::53", dns6, true},
		{"dst net fd00:1::/48", dns6, true},
		{"src net fd00:1::/48", dns6, false},
		{"net fd00::/17", dns6, true},
		{"src net fd00::/64", dns6, true},
		{"src net fd00::/64", flow{src: "fd00:0:0:1::1", dst: "fd00::1"}, false},
		{"port 80", web, true},
		{"src port 80", web, false},
		{"dst port 80", web, true},
		{"port 79-81", web, true},
		{"port 81-90", web, false},
		{"port 0-65535", web, true},
		{"port 53", dns6, true},
		{"src port 53", dns6, false},
		{"port 80", flow{src: "10.0.0.1", dst: "10.0.0.2", proto: 6, dport: 80, options: 12}, true},
		{"port 80", flow{src: "10.0.0.1", dst: "10.0.0.2", proto: 6, dport: 80, fragment: true}, false},
		{"port 80", flow{src: "10.0.0.1", dst: "10.0.0.2", proto: 1, dport: 80}, false},
		{"port 80", flow{src: "10.0.0.1", dst: "10.0.0.2", proto: 6, dport: 80, cut: 36}, false},
		{"not port 80", flow{src: "10.0.0.1", dst: "10.0.0.2", proto: 6, dport: 80, cut: 36}, true},
		{"not host 10.0.0.1", flow{src: "10.0.0.1", dst: "10.0.0.2", cut: 20}, true},
		{"not proto 6", flow{src: "10.0.0.1", dst: "10.0.0.2", proto: 6, cut: 15}, true},
		{"not host fd00::1", flow{src: "fd00::1", dst: "fd00::2", cut: 30}, true},
		{"not port 53", flow{src: "fd00::1", dst: "fd00::2", proto: 17, dport: 53, cut: 56}, true},
		{"not host 10.0.0.1", flow{src: "10.0.0.1", dst: "10.0.0.2", arp: true, cut: 30}, true},
		{"tcp port 80", web, true},
		{"udp port 80", web, false},
		{"tcp and port 80 and host 10.0.0.1", web, true},
		{"udp or tcp", web, true},
		{"not tcp", web, false},
		{"! udp", web, true},
		{"not (tcp and port 80)", web, false},
		{"not(udp||port 81)&&host 10.0.0.1", web, true},
		// "and" binds closer than "or".
		{"tcp or udp and port 99", web, true},
		{"(tcp or udp) and port 99", web, false},
	} {
		if got := keeps(t, tt.filter, tt.flow.bytes()); got != tt.want {
			t.Errorf("%q keeps %+v: %v, want %v", tt.filter, tt.flow, got, tt.want)
		}
	}
}

func TestFilterMistakes(t *testing.T) {
	deep := strings.Repeat("tcp or (udp and (", 12) + "arp" + strings.Repeat("))", 12)
	for _, tt := range []struct{ filter, want string }{
		{"host", "want an address"},
		{"host example.com", "names are not resolved"},
		{"host fe80::1%eth0", "want an address"},
		{"net 10.0.0.1/8", "bits behind its length: 10.0.0.0/8"},
		{"net 10.0.0.0", "want a prefix"},
		{"port 80-", "want a number"},
		{"port 90-80", "want a number"},
		{"port 70000", "want a number"},
		{"port http", "want a number"},
		{"proto 256", "up to 255"},
		{"proto ip", "up to 255"},
		{"10.0.0.1", "host 10.0.0.1"},
		{"src", "is due"},
		{"src tcp", "is no condition"},
		{"tcp and", "it ends where"},
		{"tcp or or udp", `"or" is no condition`},
		{"(tcp", "not closed"},
		{"tcp)", "nothing opens"},
		{"()", "is no condition"},
		{"vlan", "there are host, net, port"},
		{strings.Repeat("(", 100), "nested more than 64"},
		{deep, "too many parentheses"},
		{strings.Repeat("tcp ", 1025), "longer than 4096"},
		{strings.Repeat("port 1 ", 500), "too long for the kernel"},
	} {
		if _, err := ParseFilter(tt.filter); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.60q: %v, want %q", tt.filter, err, tt.want)
		}
	}
}

// The program agrees with the expression that it was made from, whatever the shape.
func TestFilterAgreesWithItsParts(t *testing.T) {
	leaves := []string{"tcp", "udp", "ip6", "port 80", "src port 53", "host 10.0.0.1", "net fd00::/16", "dst net 10.0.0.0/8", "arp"}
	rapid.Check(t, func(t *rapid.T) {
		var grow func(depth int) (string, func([]byte) bool)
		grow = func(depth int) (string, func([]byte) bool) {
			kind := rapid.IntRange(0, 3).Draw(t, "kind")
			if depth == 5 || kind == 0 {
				leaf := rapid.SampledFrom(leaves).Draw(t, "leaf")
				return leaf, func(b []byte) bool { return keeps(t, leaf, b) }
			}
			a, av := grow(depth + 1)
			if kind == 1 {
				return "not (" + a + ")", func(b []byte) bool { return !av(b) }
			}
			c, cv := grow(depth + 1)
			if kind == 2 {
				return fmt.Sprintf("(%s) and (%s)", a, c), func(b []byte) bool { return av(b) && cv(b) }
			}
			return fmt.Sprintf("(%s) or (%s)", a, c), func(b []byte) bool { return av(b) || cv(b) }
		}
		text, want := grow(0)
		v4 := rapid.Bool().Draw(t, "v4")
		f := flow{
			src: rapid.SampledFrom([]string{"10.0.0.1", "192.0.2.1"}).Draw(t, "src"), dst: "10.0.0.2",
			proto: rapid.SampledFrom([]uint8{1, 6, 17}).Draw(t, "proto"),
			sport: rapid.SampledFrom([]uint16{53, 80, 4000}).Draw(t, "sport"), dport: rapid.SampledFrom([]uint16{53, 80}).Draw(t, "dport"),
			options: 4 * rapid.IntRange(0, 10).Draw(t, "options"), cut: rapid.IntRange(0, 70).Draw(t, "cut"),
			arp: v4 && rapid.Bool().Draw(t, "arp"), fragment: rapid.Bool().Draw(t, "fragment"),
		}
		if !v4 {
			f.src, f.dst = "fd00::1", "fe80::2"
		}
		if b := f.bytes(); len(b) >= 14 && keeps(t, text, b) != want(b) {
			t.Fatalf("%q: %v for %+v", text, keeps(t, text, b), f)
		}
	})
}

func FuzzParseFilter(f *testing.F) {
	for _, s := range []string{"tcp port 80", "not (host 10.0.0.1 or net fd00::/8)", "port 1-2", "((", "! !"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := ParseFilter(text)
		if err != nil {
			return
		}
		program, err := filter.instructions(100)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bpf.NewVM(program); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	})
}
