package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// policyShare is how much of the performance without policies there must be with them.
const policyShare = 0.9

// benchPolicyCost compares traffic between two pods of a node whose rules come from
// many policies with that of a node without any. The rules are rendered from an intent,
// the links made by hand.
func benchPolicyCost(ctx context.Context, e *environment) ([]figure, error) {
	return policyCost(ctx, e, newPolicyNode)
}

// benchOVSPolicyCost is the same on Open vSwitch, each node with one of its own.
func benchOVSPolicyCost(ctx context.Context, e *environment) ([]figure, error) {
	return policyCost(ctx, e, newOVSPolicyNode)
}

// madeNode is a node whose pods exchange traffic.
type madeNode interface {
	ends() endpoints
	close() error
}

func policyCost[N madeNode](ctx context.Context, e *environment, newNode func(context.Context, intent.Node) (N, error)) (_ []figure, err error) {
	variants := []struct {
		name            string
		selecting, none int
	}{
		{"none", 0, 0},
		{"100 select the pod", 100, 0},
		{"5,000 select the pod", 5000, 0},
		{"100 select others", 0, 100},
		{"5,000 select others", 0, 5000},
		{"none, again", 0, 0},
	}
	var paths []endpoints
	var opened []madeNode
	defer func() {
		for _, n := range opened {
			err = errors.Join(err, n.close())
		}
	}()
	for _, v := range variants {
		n, err := newNode(ctx, policyIntent(v.selecting, v.none))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.name, err)
		}
		opened = append(opened, n)
		paths = append(paths, n.ends())
	}
	var figures []figure
	for _, t := range []pathLoad{
		{"established: request and response", requests, 400, 50},
		{"new flows: connect and close", dials, 200, 20},
	} {
		costs, err := interleave(ctx, t.make, paths, e.rounds(t.batches), t.batchN)
		if err != nil {
			return figures, fmt.Errorf("%s: %w", t.name, err)
		}
		last := len(costs) - 1
		goal := target{limit: policyShare, least: true, ratio: true, noise: true}
		for i := 1; i < last; i++ {
			name := variants[i].name + ", " + t.name
			figures = append(figures,
				figure{name: name + ": wall", ours: costs[i].wall, base: costs[0].wall, again: costs[last].wall, inverse: true, target: goal},
				figure{name: name + ": CPU", ours: costs[i].cpu, base: costs[0].cpu, again: costs[last].cpu, inverse: true, target: goal},
			)
		}
	}
	return figures, nil
}

var policyClient, policyServer = netip.MustParseAddr("10.213.1.10"), netip.MustParseAddr("10.213.1.11")

// policyIntent is a node with two pods. So many policies select the server: each allows
// two peers of its own one range of ports, and the one in the middle also the client.
// As many others select a hundred pods that there are beside.
func policyIntent(selecting, none int) intent.Node {
	const others = 100
	n := intent.Node{
		Name: "bench", MTU: 1450, VTEPMAC: packet.VTEPMAC("bench"), VPCs: []intent.VPC{{Name: "default", VNI: 1}},
		Ports: []intent.Port{
			{ID: "client/eth0", VPC: "default", VNI: 1, HostInterface: "flpclient", Addresses: []netip.Addr{policyClient}},
			{ID: "server/eth0", VPC: "default", VNI: 1, HostInterface: "flpserver", Addresses: []netip.Addr{policyServer}},
		},
	}
	list := func(policies int, name string) string {
		if policies == 0 {
			return ""
		}
		var rules []intent.Rule
		for i := range policies {
			s := intent.AddressSet{VPC: "default", Name: fmt.Sprintf("%s-%05d", name, i)}
			for host := range 2 {
				a := netip.AddrFrom4([4]byte{10, 214 + byte(i>>12), byte(i >> 4), byte(i<<4) + byte(host*2)})
				s.Prefixes = append(s.Prefixes, netip.PrefixFrom(a, 32))
			}
			ports := []intent.PortRange{{First: uint16(i + 1), Last: uint16(i + 1)}}
			if i == policies/2 {
				s.Prefixes = append([]netip.Prefix{netip.PrefixFrom(policyClient, 32)}, s.Prefixes...)
				ports = []intent.PortRange{{First: 1024, Last: 65535}}
			}
			n.AddressSets = append(n.AddressSets, s)
			rules = append(rules, intent.Rule{
				Tier: intent.TierNetworkPolicy, Action: intent.Accept,
				Match:  intent.Match{Sets: []string{s.Name}, Protocol: packet.TCP, Ports: ports},
				Origin: intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "bench", Name: s.Name},
			})
		}
		rules = append(rules, intent.Rule{
			Tier: intent.TierNetworkPolicy, Action: intent.Deny,
			Origin: intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "bench", Name: "p0", Index: -1},
		})
		l := intent.NewRuleList("default", intent.Ingress, rules)
		n.RuleLists = append(n.RuleLists, l)
		return l.ID
	}
	n.Ports[1].Ingress = list(selecting, "server")
	for i := range others {
		n.Ports = append(n.Ports, intent.Port{
			ID: fmt.Sprintf("other%d/eth0", i), VPC: "default", VNI: 1, HostInterface: fmt.Sprintf("flpother%d", i),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 213, 2, byte(i)})}, Ingress: list(none/others, fmt.Sprintf("other%02d", i)),
		})
	}
	return n
}

// policyNode is a node with two pods, made by hand but for its rules.
type policyNode struct {
	spaces map[string]*os.File
	rules  *nft.Driver
}

func newPolicyNode(ctx context.Context, n intent.Node) (_ *policyNode, err error) {
	p := &policyNode{spaces: map[string]*os.File{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	var names []string
	for _, name := range []string{"node", "client", "server"} {
		if p.spaces[name], err = netspace.New(); err != nil {
			return nil, err
		}
		names = append(names, "%"+name+"%", path(p.spaces[name]))
	}
	err = netspace.Do(p.spaces["node"], func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	if err != nil {
		return nil, fmt.Errorf("forward in the node: %w", err)
	}
	for _, s := range []struct{ space, input string }{
		{"node", `link set lo up
link add flpclient mtu 1450 address 02:77:01:00:00:01 type veth peer name eth0 address 02:77:01:00:01:10 mtu 1450 netns %client%
link add flpserver mtu 1450 address 02:77:01:00:00:01 type veth peer name eth0 address 02:77:01:00:01:11 mtu 1450 netns %server%
link set flpclient up
link set flpserver up
neigh add 10.213.1.10 lladdr 02:77:01:00:01:10 dev flpclient nud permanent
neigh add 10.213.1.11 lladdr 02:77:01:00:01:11 dev flpserver nud permanent
route add 10.213.1.10/32 dev flpclient
route add 10.213.1.11/32 dev flpserver`},
		{"client", handPod(policyClient.String())},
		{"server", handPod(policyServer.String())},
	} {
		if err := typed(ctx, p.spaces[s.space], "ip", strings.NewReplacer(names...).Replace(s.input)); err != nil {
			return nil, fmt.Errorf("build the node, in %s: %w", s.space, err)
		}
	}
	// The programs on the ports are not there: this is what they put into the mark.
	checked := fmt.Sprintf(`table inet hand {
	chain prerouting {
		type filter hook prerouting priority raw - 20;
		iifname "flp*" meta mark set %#x
	}
}`, claims.MarkChecked|claims.Mark(n.VPCs[0].VNI))
	if err := typed(ctx, p.spaces["node"], "nft", checked); err != nil {
		return nil, fmt.Errorf("mark what the pods send: %w", err)
	}
	if p.rules, err = nft.Open(ctx, nft.Config{Table: claims.NFTTable, NetNS: path(p.spaces["node"])}); err != nil {
		return nil, err
	}
	_, err = p.rules.Apply(ctx, rendernft.Render(n, rendernft.Options{}))
	return p, err
}

func (p *policyNode) ends() endpoints {
	return endpoints{client: p.spaces["client"], server: p.spaces["server"], addr: policyServer}
}

// path leads to a namespace that is open here.
func path(ns *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd()) }

func (p *policyNode) close() (err error) {
	if p.rules != nil {
		err = p.rules.Close()
	}
	for _, ns := range p.spaces {
		err = errors.Join(err, ns.Close())
	}
	return err
}
