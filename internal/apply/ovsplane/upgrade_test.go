package ovsplane

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// Pipelines as an agent of another version would have left them, made of the flows of this
// one.
var (
	// fourth is version 4: lists find ports by themselves, and fragments are not gathered.
	fourth = func(flows string) string {
		var out strings.Builder
		for line := range strings.Lines(flows) {
			if !strings.Contains(line, "table=42,") && !strings.Contains(line, "table=52,") && !strings.Contains(line, "reg0=0/0x200") {
				out.WriteString(nextTable.ReplaceAllStringFunc(line, func(s string) string { return s[:len(s)-1] + "2" }))
			}
		}
		return strings.ReplaceAll(out.String(), fmt.Sprintf("reg0=%#x actions=drop", ovs.Version), "reg0=0x4 actions=drop")
	}
	// third is version 3: classes of peers have other numbers.
	third = func(flows string) string {
		flows = peerClass.ReplaceAllStringFunc(flows, func(s string) string {
			return hexNumber.ReplaceAllStringFunc(s, func(s string) string {
				n, _ := strconv.ParseUint(s, 0, 32)
				return fmt.Sprintf("%#x", n^0xffff)
			})
		})
		return strings.ReplaceAll(fourth(flows), "reg0=0x4 actions=drop", "reg0=0x3 actions=drop")
	}
	// second is version 2: no flow tells of the version, and ICMP errors of pods come
	// behind what is part of no flow.
	second = func(flows string) string {
		var out strings.Builder
		for line := range strings.Lines(flows) {
			if !strings.Contains(line, "table=63,") {
				out.WriteString(strings.Replace(line, "table=11, priority=52,", "table=11, priority=40,", 1))
			}
		}
		return out.String()
	}
	// moved has other tables behind the first ten, and other registers for lists and classes.
	moved = func(flows string) string {
		flows = tableNumber.ReplaceAllStringFunc(second(flows), func(s string) string {
			i := strings.IndexAny(s, "=:") + 1
			n, _ := strconv.Atoi(s[i:])
			if n >= 10 {
				n += 100
			}
			return s[:i] + strconv.Itoa(n)
		})
		return listRegister.ReplaceAllStringFunc(flows, func(s string) string {
			return "reg" + map[string]string{"6": "7", "7": "8", "8": "9", "9": "6"}[s[3:]]
		})
	}
	nextTable    = regexp.MustCompile(`(table=|goto_table:)(43|53)\b`)
	tableNumber  = regexp.MustCompile(`(table=|goto_table:)\d+`)
	peerClass    = regexp.MustCompile(`set_field:0x[0-9a-f]+->reg8|reg8=0x[0-9a-f]+`)
	hexNumber    = regexp.MustCompile(`0x[0-9a-f]+`)
	listRegister = regexp.MustCompile(`\breg[6789]\b`)
)

// TestUpgrade: a switch that holds the flows of another version of the pipeline gets those
// of this one while traffic runs, and nothing is lost.
func TestUpgrade(t *testing.T) {
	for name, earlier := range map[string]func(string) string{"version 4": fourth, "version 3": third, "version 2": second, "other tables and registers": moved} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p := n.open(t)
			desired := n.intentOf(t, 2)
			a, b := desired.Ports[0], desired.Ports[1]
			// Only the first may talk to the second.
			desired.AddressSets = []intent.AddressSet{{VPC: packet.DefaultVPC, Name: "first"}}
			for _, addr := range a.Addresses {
				desired.AddressSets[0].Prefixes = append(desired.AddressSets[0].Prefixes, netip.PrefixFrom(addr, addr.BitLen()))
			}
			slices.SortFunc(desired.AddressSets[0].Prefixes, intent.ComparePrefix)
			desired.RuleLists = []intent.RuleList{{ID: "list", Direction: intent.Ingress, VPC: packet.DefaultVPC, Rules: []intent.Rule{
				{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Sets: []string{"first"}}},
				{Tier: intent.TierNetworkPolicy, Action: intent.Deny},
			}}}
			desired.Ports[1].Ingress = "list"
			applied(t, p, desired, apply.Options{})
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			now := n.flows()
			n.replaceFlows(t, earlier(now))
			before := n.flows()
			if before == now {
				t.Fatal("the flows of the other version are those of this one")
			}
			udp, tcp := n.converse(t, a, b, b.Addresses[0], packet.UDP), n.converse(t, a, b, b.Addresses[0], packet.TCP)
			ends, err := n.datagrams(a, b, b.Addresses[0])
			if err != nil {
				t.Fatal(err)
			}
			s := stream(t, ends)
			s.more(t, 300)

			p = n.open(t)
			t.Cleanup(func() { _ = p.Close() })
			if _, err := p.Apply(t.Context(), desired, apply.Options{AddOnly: true}); err == nil || !strings.Contains(err.Error(), "another version of the pipeline") {
				t.Errorf("an agent that may only add says: %v", err)
			}
			if got := n.flows(); got != before {
				t.Error("an agent that may only add has mixed two versions of the pipeline")
			}
			began := time.Now()
			applied(t, p, desired, apply.Options{})
			took := time.Since(began)
			s.more(t, 1000)
			lost := s.lost(t)
			t.Logf("upgraded in %s; %d of %d datagrams lost", took.Round(time.Millisecond), lost, s.sent.Load())
			if lost > 0 {
				t.Errorf("%d of %d datagrams are lost", lost, s.sent.Load())
			}
			for _, back := range []bool{false, true} {
				if !udp(back) || !tcp(back) {
					t.Errorf("a conversation of before does not go on, back %t", back)
				}
			}
			if diffs := p.differences(t, desired); len(diffs) > 0 {
				t.Errorf("%d differences afterwards, the first: %+v", len(diffs), diffs[0])
			}
		})
	}
}

// flows are those in the bridge, as ovs-ofctl prints them, without counters.
func (n *node) flows() string {
	var out strings.Builder
	for line := range strings.Lines(n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "--no-names", "dump-flows", claims.OVSBridge)) {
		if strings.Contains(line, "actions=") {
			out.WriteString(strings.TrimSpace(line) + "\n")
		}
	}
	return out.String()
}

func (n *node) replaceFlows(t *testing.T, flows string) {
	t.Helper()
	if out, err := n.ovs.Try([]byte(flows), "ovs-ofctl", "-O", "OpenFlow15", "--bundle", "replace-flows", claims.OVSBridge, "-"); err != nil {
		t.Fatalf("ovs-ofctl: %v\n%s", err, out)
	}
}

// numbered sends a datagram every millisecond and counts what arrives.
type numbered struct {
	sent, arrived atomic.Int64
	stop          context.CancelFunc
}

func stream(t *testing.T, ends [2]net.Conn) *numbered {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := &numbered{stop: stop}
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if _, err := ends[0].Write([]byte("numbered")); err == nil {
					s.sent.Add(1)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	running.Go(func() {
		b := make([]byte, 64)
		for {
			_ = ends[1].SetReadDeadline(time.Now().Add(time.Second))
			size, err := ends[1].Read(b)
			if err == nil && string(b[:size]) == "numbered" {
				s.arrived.Add(1)
			}
			if err != nil && ctx.Err() != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		stop()
		ends[0].Close()
		ends[1].Close()
		running.Wait()
	})
	return s
}

// more waits until so many more have arrived.
func (s *numbered) more(t *testing.T, n int64) {
	t.Helper()
	until(t, fmt.Sprintf("%d datagrams", n), func(from int64) func() bool {
		return func() bool { return s.arrived.Load() >= from+n }
	}(s.arrived.Load()))
}

// lost ends the sending, and counts what does not arrive.
func (s *numbered) lost(t *testing.T) int64 {
	t.Helper()
	s.stop()
	deadline := time.Now().Add(time.Second)
	for s.arrived.Load() < s.sent.Load() && time.Now().Before(deadline) {
		<-time.After(time.Millisecond)
	}
	return s.sent.Load() - s.arrived.Load()
}

// until waits for something that the test's own senders, or its daemons, bring about.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !is(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
