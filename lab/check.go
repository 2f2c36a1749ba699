package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/lab/topology"
)

// Probe is one question: may From reach the port of To? From and To are pods as
// NAMESPACE/NAME; beyond pairs of pods, From may be "node/NAME" and To "outside".
type Probe struct {
	From, To string
	// Protocol is "TCP" or "UDP".
	Protocol string
	Port     uint16
	// Source is an address of From, Target the address of To that is probed.
	Source, Target netip.Addr
}

// Judge says what ought to become of a probe, and why. known is false where it has
// no opinion: the probe is sent and reported, but not compared.
type Judge func(Probe) (expected bool, why string, known bool)

// Finding is what became of the probes of one pair of pods and one port. With two
// families both are probed: Got says that all went through, and they disagree if one
// does.
type Finding struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Proto    string `json:"proto"`
	Port     int    `json:"port"`
	Expected bool   `json:"expected"`
	Got      bool   `json:"got"`
	// Why is the judge's reason and what the probe met; for disagreements only.
	Why string `json:"why,omitempty"`
}

// Observation is a probe beyond pairs of pods: from a node to a pod of its own, from
// a pod to the outside.
type Observation struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Proto string `json:"proto"`
	Port  int    `json:"port"`
	// Expected is absent where the judge has no opinion.
	Expected *bool      `json:"expected,omitempty"`
	Got      bool       `json:"got"`
	Target   netip.Addr `json:"target"`
	// Seen is the source address that the other end saw.
	Seen netip.Addr `json:"seen,omitzero"`
	Why  string     `json:"why,omitempty"`
}

// CheckResult is the answer of Check.
type CheckResult struct {
	// Probes is the number of ordered pairs of different pods and ports of the
	// second, Agree that of those where all families agree with the judge.
	Probes   int       `json:"probes"`
	Agree    int       `json:"agree"`
	Disagree []Finding `json:"disagree"`
	Results  []Finding `json:"results,omitempty"`
	// Extra are the observations beyond pairs of pods.
	Extra []Observation `json:"extra"`
	// Settled is how many that disagreed at first agreed when they were asked again, a
	// moment later: nodes were taking a change over.
	Settled int `json:"settled,omitempty"`
	// Unready are the objects that were not ready, and so had no part in it.
	Unready []Unready `json:"unready"`
	Seconds float64   `json:"seconds"`
}

// Disagreements is the number of pairs and observations that are not as the judge says.
func (r *CheckResult) Disagreements() int {
	n := len(r.Disagree)
	for _, o := range r.Extra {
		if o.Expected != nil && *o.Expected != o.Got {
			n++
		}
	}
	return n
}

// OK tells whether everything was ready, and all that was compared agrees.
func (r *CheckResult) OK() bool { return len(r.Unready) == 0 && r.Disagreements() == 0 }

// question is a Probe with what is compared afterwards.
type question struct {
	Probe
	// pair is the finding that it belongs to; -1 for an observation.
	pair int
	// server is whose answer is expected; empty if a command may answer anything.
	server string
	answer probe.Answer
	// expected, why and known are what the judge says.
	expected bool
	why      string
	known    bool
}

// How long an answer may take. Where none is expected, a second is enough to find
// one out; where one is expected, a busy machine gets the time it needs.
const (
	shortPatience = time.Second
	longPatience  = 3 * time.Second
)

func (q *question) patience() time.Duration {
	if q.known && q.expected {
		return longPatience
	}
	return shortPatience
}

// Check probes every port of every pod from every other pod, over every family that
// both have, and compares with judge; all asks for the Results of every pair.
func (l *Lab) Check(ctx context.Context, pods []*corev1.Pod, judge Judge, all bool) (*CheckResult, error) {
	began := time.Now()
	s, err := l.Status(ctx)
	if err != nil {
		return nil, err
	}
	pairs, questions := pairsOf(pods)
	extra := extraOf(pods, &s)
	// Sources: the pods' own, and the nodes.
	sources := map[string][]*question{}
	for _, list := range [][]*question{questions, extra} {
		for _, q := range list {
			q.expected, q.why, q.known = judge(q.Probe)
			sources[q.From] = append(sources[q.From], q)
		}
	}
	if err := l.ask(ctx, pods, sources); err != nil {
		return nil, fmt.Errorf("lab %s: %w", l.name, err)
	}
	r := &CheckResult{Probes: len(pairs), Disagree: []Finding{}, Extra: observe(extra), Unready: []Unready{}}
	disagree := compare(pairs, questions)
	for i, f := range pairs {
		if d, ok := disagree[i]; ok {
			r.Disagree = append(r.Disagree, d)
		} else {
			r.Agree++
		}
		if all {
			r.Results = append(r.Results, f)
		}
	}
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// pairsOf lists the findings to make, sorted, and their questions.
func pairsOf(pods []*corev1.Pod) ([]Finding, []*question) {
	sorted := slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int { return cmp.Compare(podName(a), podName(b)) })
	var pairs []Finding
	var questions []*question
	for _, from := range sorted {
		for _, to := range sorted {
			if from == to {
				continue
			}
			for _, port := range portsOf(to) {
				pairs = append(pairs, Finding{From: podName(from), To: podName(to), Proto: port.Protocol, Port: int(port.Number)})
				for _, target := range addressesOf(to) {
					source, ok := sameFamily(addressesOf(from), target)
					if !ok {
						continue
					}
					questions = append(questions, &question{
						Probe: Probe{From: podName(from), To: podName(to), Protocol: port.Protocol, Port: port.Number, Source: source, Target: target},
						pair:  len(pairs) - 1, server: port.server,
					})
				}
			}
		}
	}
	return pairs, questions
}

// extraOf are the questions beyond pairs: every pod's first port from its own node,
// and the outside host from every pod.
func extraOf(pods []*corev1.Pod, s *Status) []*question {
	nodes := map[string][]netip.Addr{}
	for _, n := range s.Nodes {
		for _, a := range n.Addresses {
			nodes[n.Name] = append(nodes[n.Name], a.Addr())
		}
	}
	var out []*question
	for _, p := range pods {
		for _, addr := range addressesOf(p) {
			ports := portsOf(p)
			if source, ok := sameFamily(nodes[p.Spec.NodeName], addr); ok && len(ports) > 0 && !p.Spec.HostNetwork {
				out = append(out, &question{pair: -1, server: ports[0].server, Probe: Probe{
					From: "node/" + p.Spec.NodeName, To: podName(p), Protocol: ports[0].Protocol, Port: ports[0].Number,
					Source: source, Target: addr,
				}})
			}
			for _, i := range topology.Internet() {
				// The outside host has a family's address if the underlay has it.
				if _, ok := sameFamily(s.Outside, i.Addr()); ok && i.Addr().Is4() == addr.Is4() {
					out = append(out, &question{pair: -1, server: "outside", Probe: Probe{
						From: podName(p), To: "outside", Protocol: "TCP", Port: 80, Source: addr, Target: i.Addr(),
					}})
				}
			}
		}
	}
	return out
}

// ask sends all questions from where they start, all nodes at the same time.
func (l *Lab) ask(ctx context.Context, pods []*corev1.Pod, sources map[string][]*question) error {
	perNode := map[string][]machine.ProbeSource{}
	asked := map[string][][]*question{}
	add := func(node, uid string, questions []*question) {
		if len(questions) == 0 {
			return
		}
		r := machine.ProbeSource{UID: uid}
		for _, q := range questions {
			r.Questions = append(r.Questions, probe.Question{Protocol: q.Protocol, To: netip.AddrPortFrom(q.Target, q.Port), Timeout: q.patience()})
		}
		perNode[node] = append(perNode[node], r)
		asked[node] = append(asked[node], questions)
	}
	nodes := map[string]bool{}
	for _, p := range pods {
		add(p.Spec.NodeName, string(p.UID), sources[podName(p)])
		if n := p.Spec.NodeName; !nodes[n] {
			nodes[n] = true
			add(n, "", sources["node/"+n])
		}
	}
	var group errgroup.Group
	var mu sync.Mutex
	for node, sources := range perNode {
		group.Go(func() error {
			client := machine.NewClient(node, l.path(spec.DirNodes, node, spec.SocketNode))
			defer client.Close()
			answers, err := client.Ask(ctx, machine.ProbeRequest{AtOnce: probe.AtOnce / len(perNode), Sources: sources})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for i, list := range asked[node] {
				if i >= len(answers) || len(answers[i]) != len(list) {
					return errors.New("a node answered fewer questions than it was asked")
				}
				for j, q := range list {
					q.answer = answers[i][j]
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// compare fills in the pairs' findings and returns those that disagree.
func compare(pairs []Finding, questions []*question) map[int]Finding {
	disagree := map[int]Finding{}
	seen := map[int]bool{}
	for _, q := range questions {
		f := &pairs[q.pair]
		got, met := q.outcome()
		expected := q.expected
		if !q.known {
			expected = got
		}
		if first := !seen[q.pair]; first {
			seen[q.pair] = true
			f.Expected, f.Got = expected, got
		} else {
			f.Expected, f.Got = f.Expected && expected, f.Got && got
		}
		if expected != got {
			if _, already := disagree[q.pair]; !already {
				d := *f
				d.Expected, d.Got = expected, got
				d.Why = fmt.Sprintf("%s: expected %s (%s), but %s", q.Target, word(expected), q.why, met)
				disagree[q.pair] = d
			}
		}
	}
	return disagree
}

func word(allowed bool) string {
	if allowed {
		return "an answer"
	}
	return "no answer"
}

// outcome tells whether a probe reached whom it was for, and what it met.
func (q *question) outcome() (bool, string) {
	switch a := q.answer; {
	case !a.Connected:
		return false, cmp.Or(a.Err, "no connection")
	case q.server != "" && a.Err != "":
		return false, "connected, but " + a.Err
	case q.server != "" && a.Server != q.server:
		return false, fmt.Sprintf("%q answered", cmp.Or(a.Server, "somebody else"))
	default:
		return true, "it was answered"
	}
}

// observe turns the answers beyond pairs into observations.
func observe(extra []*question) []Observation {
	out := []Observation{}
	for _, q := range extra {
		got, met := q.outcome()
		o := Observation{From: q.From, To: q.To, Proto: q.Protocol, Port: int(q.Port), Got: got, Target: q.Target, Seen: q.answer.Seen.Addr()}
		if q.known {
			o.Expected = &q.expected
			if q.expected != got {
				o.Why = fmt.Sprintf("expected %s (%s), but %s", word(q.expected), q.why, met)
			}
		} else if !got {
			o.Why = met
		}
		out = append(out, o)
	}
	slices.SortStableFunc(out, func(a, b Observation) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), a.Target.Compare(b.Target))
	})
	return out
}

func podName(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

// servedPort is a port of a pod with the name of the built-in server behind it, if it
// is that.
type servedPort struct {
	probe.Port
	server string
}

func portsOf(p *corev1.Pod) []servedPort {
	var out []servedPort
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			s := servedPort{Port: probe.Port{Protocol: cmp.Or(string(port.Protocol), "TCP"), Number: uint16(port.ContainerPort)}}
			if len(c.Command) == 0 && len(c.Args) == 0 {
				s.server = podName(p)
			}
			known := slices.ContainsFunc(out, func(o servedPort) bool { return o.Port == s.Port })
			if !known && (s.Protocol == "TCP" || s.Protocol == "UDP") {
				out = append(out, s)
			}
		}
	}
	return out
}

func addressesOf(p *corev1.Pod) []netip.Addr {
	var out []netip.Addr
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, a)
		}
	}
	return out
}

func sameFamily(addrs []netip.Addr, as netip.Addr) (netip.Addr, bool) {
	for _, a := range addrs {
		if a.Is4() == as.Is4() {
			return a, true
		}
	}
	return netip.Addr{}, false
}
