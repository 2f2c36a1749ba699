package nft_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	n "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// peersTable asks about every datagram that leaves the namespace, rules times over:
// its destination in an interval set (with the port behind it), or destination,
// protocol and port in one concatenated set.
func peersTable(concatenated bool, entries, rules int) n.Table {
	set := n.Set{Name: "peers", Key: []n.Type{n.TypeIPv4Addr}, Interval: true}
	look := []n.Statement{n.Lookup{Key: n.Select(n.IPDaddr), Set: "peers"}, n.Is(n.UDPDport, n.Port(9)), verdict(n.Continue)}
	if concatenated {
		set.Key = []n.Type{n.TypeIPv4Addr, n.TypeInetProto, n.TypeInetService}
		look = []n.Statement{n.Lookup{Key: n.Select(n.IPDaddr, n.MetaL4Proto, n.UDPDport), Set: "peers"}, verdict(n.Continue)}
	}
	for i := range entries {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], 10<<24|uint32(i)*2)
		k := key(n.Addr(netip.AddrFrom4(b)))
		if concatenated {
			k = append(k, n.Proto(17), n.Port(9))
		}
		set.Elements = append(set.Elements, n.Element{Key: k})
	}
	chain := n.Chain{Name: "ask", Base: &n.Base{Hook: n.HookOutput}}
	for range rules {
		chain.Rules = append(chain.Rules, n.Rule{Statements: look})
	}
	return n.Table{Name: "fairlead", Sets: []n.Set{set}, Chains: []n.Chain{chain}}
}

// BenchmarkPeers measures what render/nft chooses between: a datagram that is looked
// up 32 times (compare with none), and one entry more or less.
func BenchmarkPeers(b *testing.B) {
	for _, concatenated := range []bool{false, true} {
		for _, entries := range []int{1, 100, 5000, 50000} {
			name := fmt.Sprintf("concatenated=%v/entries=%d", concatenated, entries)
			ns := testNS(b)
			d := open(b, nft.Config{NetNS: ns})
			run(b, ns, "ip", "link", "add", "sink", "type", "veth", "peer", "name", "drain")
			run(b, ns, "ip", "addr", "add", "192.0.2.1/24", "dev", "sink")
			run(b, ns, "ip", "link", "set", "sink", "arp", "off", "up")
			run(b, ns, "ip", "link", "set", "drain", "up")
			run(b, ns, "ip", "route", "add", "10.0.0.0/8", "dev", "sink")
			for _, rules := range []int{0, 32} {
				apply(b, d, peersTable(concatenated, entries, rules))
				b.Run(fmt.Sprintf("%s/rules=%d", name, rules), func(b *testing.B) {
					conn := inside(b, ns, func() (*net.UDPConn, error) { return net.ListenUDP("udp4", nil) })
					defer func() { _ = conn.Close() }()
					payload := make([]byte, 16)
					for i := 0; b.Loop(); i++ {
						var a [4]byte
						binary.BigEndian.PutUint32(a[:], 10<<24|uint32(i*7919%entries)*2)
						if _, err := conn.WriteToUDPAddrPort(payload, netip.AddrPortFrom(netip.AddrFrom4(a), 9)); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			b.Run(name+"/update", func(b *testing.B) {
				more, less := peersTable(concatenated, entries+1, 1), peersTable(concatenated, entries, 1)
				for i := 0; b.Loop(); i++ {
					table := more
					if i%2 == 0 {
						table = less
					}
					apply(b, d, table)
				}
			})
		}
	}
}
