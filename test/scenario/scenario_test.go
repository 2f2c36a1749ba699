package scenario

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/memplane"
	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

var update = flag.Bool("update", false, "write what is answered into the scenarios")

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, archive)
			want := &archive.Files[len(archive.Files)-1]
			if want.Name != "want" {
				archive.Files = append(archive.Files, txtar.File{Name: "want"})
				want = &archive.Files[len(archive.Files)-1]
			}
			if *update {
				want.Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want.Data), got); diff != "" {
				t.Errorf("answers differ (-want +got); go test -update writes them:\n%s", diff)
			}
		})
	}
}

// scene is one scenario being played.
type scene struct {
	*testing.T
	builder
	compilers map[string]*decide.Compiler
	states    map[string]*decide.State
	intents   map[string]intent.Node
	problems  map[string][]world.Problem
	fabric    *memplane.Fabric
	out       strings.Builder
}

func play(t *testing.T, archive *txtar.Archive) string {
	p := &scene{
		T: t, builder: builder{store: world.NewStore(nil)},
		compilers: map[string]*decide.Compiler{}, states: map[string]*decide.State{},
		intents: map[string]intent.Node{}, problems: map[string][]world.Problem{}, fabric: memplane.NewFabric(),
	}
	for _, f := range archive.Files {
		switch f.Name {
		case "world", "change":
			if err := p.builder.apply(string(f.Data)); err != nil {
				t.Fatalf("file %s: %v", f.Name, err)
			}
			p.compile()
		case "policies":
			if err := p.policies(f.Data); err != nil {
				t.Fatalf("file %s: %v", f.Name, err)
			}
			p.compile()
		case "ask":
			for line := range strings.Lines(string(f.Data)) {
				if line = strings.TrimSpace(line); line != "" {
					p.ask(line)
				}
			}
		case "want":
		default:
			t.Fatalf("unknown file %s", f.Name)
		}
	}
	return p.out.String()
}

// compile compiles for every node, from the cache and anew, and applies.
func (p *scene) compile() {
	p.Helper()
	for n := range p.snapshot().NodeNetworks.Values() {
		if p.compilers[n.Name] == nil {
			p.compilers[n.Name] = decide.New(decide.Config{Node: n.Name})
		}
		local := worldtest.Local(p.snapshot(), n.Name)
		got, state, problems := p.compilers[n.Name].Compile(p.states[n.Name], local)
		want, _, _ := p.compilers[n.Name].Compile(nil, local)
		if !got.Equal(want) {
			p.Errorf("node %s: from the cache:\n%s\nanew:\n%s", n.Name, got, want)
		}
		for _, fault := range intent.Validate(got) {
			p.Errorf("node %s: %v", n.Name, fault)
		}
		p.states[n.Name], p.intents[n.Name], p.problems[n.Name] = state, got, problems
		if _, err := p.fabric.Node(n.Name).Apply(p.Context(), got, apply.Options{}); err != nil {
			p.Error(err)
		}
	}
}

// ask writes the answer to one question.
func (p *scene) ask(line string) {
	p.Helper()
	fmt.Fprintf(&p.out, "> %s\n", line)
	words := strings.Fields(line)
	switch words[0] {
	case "intent":
		p.out.WriteString(p.intents[words[1]].String())
	case "routes":
		for _, r := range p.intents[words[1]].Routes {
			fmt.Fprintf(&p.out, "%s: %s\n", r.Ref(), r)
		}
	case "lists":
		p.lists(p.intents[words[1]])
	case "flow":
		p.flow(words[1], words[2], words[3])
	case "problems":
		for _, problem := range p.problems[words[1]] {
			fmt.Fprintf(&p.out, "%s %s: %s: %s\n", problem.Kind, problem.Key, problem.Reason, problem.Message)
		}
	case "probe":
		family := oracle.IPv4
		if len(words) > 3 && words[3] == "6" {
			family = oracle.IPv6
		}
		p.verdict(oracle.JudgeProbe(p.snapshot(), key(words[1]), key(words[2]), packet.TCP, 80, family))
	case "packet":
		probe := oracle.Probe{From: p.place(words[1]), Packet: packet.Packet{
			Src: netip.MustParseAddr(words[2]), Dst: netip.MustParseAddr(words[3]), Protocol: packet.UDP, SrcPort: 40000, DstPort: 80,
		}}
		v := oracle.Judge(p.snapshot(), nil, probe)
		p.verdict(v)
		p.send(probe, v)
	default:
		p.Fatalf("unknown question %q", line)
	}
	p.out.WriteByte('\n')
}

func key(s string) world.Key {
	ns, name, _ := strings.Cut(s, "/")
	return world.Key{Namespace: ns, Name: name}
}

// place reads "node/NAME", "outside/ENTRY" or a pod's key.
func (p *scene) place(s string) oracle.Place {
	p.Helper()
	switch kind, name, _ := strings.Cut(s, "/"); kind {
	case "node":
		return oracle.Place{Kind: oracle.Node, Node: name}
	case "outside":
		return oracle.Place{Kind: oracle.Outside, Node: name}
	}
	pod, ok := p.snapshot().Pods.Get(key(s))
	if !ok {
		p.Fatalf("there is no pod %s", s)
	}
	return oracle.Place{Kind: oracle.Pod, Node: pod.Node, Pod: key(s)}
}

func (p *scene) verdict(v oracle.Verdict) {
	word := "refused"
	if v.Allowed {
		word = "allowed"
	}
	fmt.Fprintln(&p.out, word)
	for _, s := range v.Stages {
		fmt.Fprintf(&p.out, "  %s\n", s)
	}
}

// lists writes what policies come to on a node.
func (p *scene) lists(n intent.Node) {
	for _, port := range n.Ports {
		if port.Ingress+port.Egress != "" {
			fmt.Fprintf(&p.out, "pod %s: %s\n", port.Pod, strings.Join(strings.Fields(port.Ingress+" "+port.Egress), ", "))
		}
	}
	used := map[string]bool{}
	for _, l := range n.RuleLists {
		fmt.Fprintf(&p.out, "%s: %s\n", l.Ref(), l)
		for _, r := range l.Rules {
			for _, s := range r.Match.Sets {
				used[s] = true
			}
		}
	}
	for _, s := range n.AddressSets {
		if used[s.Name] {
			fmt.Fprintf(&p.out, "%s: %s\n", s.Ref(), s)
		}
	}
}

// flow writes whether a flow may begin, and what each end's policies say of it.
func (p *scene) flow(from, to, port string) {
	p.Helper()
	listens, err := parsePort(port)
	if err != nil {
		p.Fatalf("%q is no port: %v", port, err)
	}
	dst, err := netip.ParseAddr(to)
	if err != nil {
		dst = p.address(to, true)
	}
	probe := oracle.Probe{From: p.place(from), Packet: packet.Packet{
		Dst: dst, Protocol: listens.Protocol, SrcPort: 40000, DstPort: listens.Port, SYN: listens.Protocol == packet.TCP,
	}}
	switch probe.From.Kind {
	case oracle.Pod:
		probe.Packet.Src = p.address(from, dst.Is4())
	case oracle.Node:
		n, _ := p.snapshot().NodeNetworks.Get(world.Key{Name: probe.From.Node})
		i := slices.IndexFunc(n.Addresses, func(a netip.Prefix) bool { return a.Addr().Is4() == dst.Is4() })
		probe.Packet.Src = n.Addresses[i].Addr()
	default:
		probe.Packet.Src = netip.MustParseAddr("203.0.113.7")
		if dst.Is6() {
			probe.Packet.Src = netip.MustParseAddr("2001:db8::7")
		}
	}
	v := oracle.Judge(p.snapshot(), nil, probe)
	word := "refused"
	if v.Allowed {
		word = "allowed"
	}
	fmt.Fprintln(&p.out, word)
	for i, s := range v.Stages {
		if s.Name == "egress" || s.Name == "ingress" || !v.Allowed && i == len(v.Stages)-1 {
			fmt.Fprintf(&p.out, "  %s\n", s)
		}
	}
	p.carry(probe, v)
}

// address is a pod's own, of a family.
func (p *scene) address(pod string, is4 bool) netip.Addr {
	p.Helper()
	for b := range p.snapshot().Blocks.Values() {
		for _, a := range b.Allocations {
			if (world.Key{Namespace: a.Owner.Namespace, Name: a.Owner.Name}) == key(pod) && a.Addr.Is4() == is4 {
				return a.Addr
			}
		}
	}
	p.Fatalf("the pod %s has no address of that family", pod)
	return netip.Addr{}
}

// send lets the plane in memory carry the packet, and writes how it looked on the
// underlay.
func (p *scene) send(probe oracle.Probe, v oracle.Verdict) {
	p.Helper()
	for _, f := range p.carry(probe, v).Frames {
		if f.Encapsulated() {
			fmt.Fprintf(&p.out, "  frame: %s > %s VNI %d [%s]\n", f.OuterSrc, f.OuterDst, f.VNI, f.Inner)
		} else {
			fmt.Fprintf(&p.out, "  frame: %s\n", f.Inner)
		}
	}
}

// carry lets the plane in memory carry the packet, and wants what the oracle permits.
func (p *scene) carry(probe oracle.Probe, v oracle.Verdict) memplane.Delivery {
	p.Helper()
	from := memplane.Place{Node: probe.From.Node, Outside: probe.From.Kind == oracle.Outside}
	if probe.From.Kind == oracle.Pod {
		from.Port = portID(probe.From.Pod)
	}
	d := p.fabric.Send(from, probe.Packet)
	observed := oracle.Outcome{Dropped: d.Dropped, Packet: d.Packet}
	if !d.Dropped {
		observed.At = oracle.Place{Kind: oracle.Node, Node: d.At.Node}
		if d.At.Outside {
			observed.At.Kind = oracle.Outside
		}
		for pod := range p.snapshot().Pods.Values() {
			k := world.Key{Namespace: pod.Namespace, Name: pod.Name}
			if d.At.Port != "" && d.At.Port == portID(k) {
				observed.At = oracle.Place{Kind: oracle.Pod, Node: d.At.Node, Pod: k}
			}
		}
	}
	if !v.Permits(observed) {
		p.Errorf("%s: the plane: %s (%s); the oracle permits %v", probe.Packet, observed, d.Why, v.Outcomes)
	}
	return d
}

// portID is the ID that worldtest.Local gives to the attachment of a pod.
func portID(pod world.Key) string { return pod.Namespace + "." + pod.Name + "/eth0" }
