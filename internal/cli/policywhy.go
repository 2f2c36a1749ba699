package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// exitDisagree: oracle, rule lists and kernel do not say the same.
const exitDisagree = 3

// firstEphemeral is the source port that judged packets bear (RFC 6335).
const firstEphemeral = 49152

// whyReport is why a packet passes or not (docs/cli.md: fields are added, never renamed).
type whyReport struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Port     string `json:"port"`
	Protocol string `json:"protocol"`
	// Allowed: every one of the flows is.
	Allowed bool      `json:"allowed"`
	Notes   []string  `json:"notes,omitempty"`
	Flows   []whyFlow `json:"flows"`
}

// whyFlow is one pair of addresses.
type whyFlow struct {
	Packet  packet.Packet `json:"packet"`
	From    whyPlace      `json:"from"`
	To      whyPlace      `json:"to"`
	Allowed bool          `json:"allowed"`
	Why     string        `json:"why"`
	// Stages are the oracle's, up to the one that ended the packet's way.
	Stages []whyStage `json:"stages"`
	// Egress and Ingress are what the tiers of policies say in each direction, whatever
	// the other says.
	Egress  []whyStage `json:"egress"`
	Ingress []whyStage `json:"ingress"`
	// Nodes are what the nodes of both ends have decided and hold.
	Nodes []whyNode `json:"nodes"`
	// Disagreements between the three; empty if there are none.
	Disagreements []string `json:"disagreements"`
	// Missing are nodes of which there is no evidence: that nothing disagrees says
	// nothing about them.
	Missing []whyMissing `json:"missing,omitempty"`

	// arrives is the packet as the receiver's node gets it, vni what it bears on the wire.
	arrives packet.Packet
	vni     packet.VNI
}

type whyPlace struct {
	Kind string `json:"kind"` // "pod", "node" or "outside"
	Node string `json:"node,omitempty"`
	Pod  string `json:"pod,omitempty"`
}

type whyStage struct {
	Name   string     `json:"name"`
	Pass   bool       `json:"pass"`
	Why    string     `json:"why"`
	Policy *whyPolicy `json:"policy,omitempty"`
}

// whyPolicy is what decided in a tier.
type whyPolicy struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	Tier string `json:"tier"`
	// Rule is -1: the policy isolates, and no rule allows the packet.
	Rule     int    `json:"rule"`
	RuleName string `json:"ruleName,omitempty"`
	Action   string `json:"action"`
}

// whyNode is the answer of one node, or why there is none.
type whyNode struct {
	Node string `json:"node"`
	// Packet as it was asked about, where it differs from the flow's.
	Packet      packet.Packet      `json:"packet"`
	Explanation *admin.Explanation `json:"explanation,omitempty"`
	Error       string             `json:"error,omitempty"`
}

// whyMissing is a node that was not asked, or did not answer.
type whyMissing struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

func (a *app) policyWhyCommand() *cobra.Command {
	return a.explainCommand(&cobra.Command{
		Use: "why SRC DST:PORT/PROTO", Short: "Tell why a packet passes or not, and by which policy and rule",
		Long: `Tell why the first packet of a flow passes or not.

` + endsHelp + ` The answer is the oracle's; beside it stand the rule lists of the
nodes of both ends, and what their kernels hold: if one says something else, the exit
code is 3.`,
		Example: "  fairlead policy why shop/web shop/db:5432/TCP",
	}, a.printWhyFlow)
}

// endsHelp says how packets are named.
const endsHelp = `SRC and DST are a pod (NAMESPACE/NAME), node/NAME, an address, or, for DST,
svc/NAMESPACE/NAME. PORT is a number or a container port's name; without PROTO it is TCP;
"icmp" stands alone.`

// explainCommand completes a command that explains a packet, and draws each pair of
// addresses with draw.
func (a *app) explainCommand(cmd *cobra.Command, draw func(f whyFlow, wide bool) error) *cobra.Command {
	var namespace string
	cmd.Args = usage.Arguments(2, 2)
	format := outputFlag(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of names that say none (default: the context's, or \"default\")")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeNames(cmd.Context(), datastore.KindPod)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text, t, err := splitTarget(args[1])
		if err != nil {
			return err
		}
		if namespace, err = a.namespace(namespace); err != nil {
			return err
		}
		var r *whyReport
		err = a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) (err error) {
			r, err = a.whyUntilSettled(ctx, s, namespace, args[0], text, t)
			return err
		})
		if err != nil {
			return err
		}
		if err := a.printWhy(format, r, draw); err != nil {
			return err
		}
		return r.exit()
	}
	return cmd
}

// exit is the error that makes the exit code.
func (r *whyReport) exit() error {
	code := 0
	for _, f := range r.Flows {
		if len(f.Disagreements) > 0 {
			return exitError(exitDisagree)
		}
		if len(f.Missing) > 0 {
			code = exitFailed
		}
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}

// whyUntilSettled asks again while the sources disagree, up to a moment: a change takes
// some milliseconds to arrive on the nodes.
func (a *app) whyUntilSettled(ctx context.Context, s datastore.Store, namespace, from, to string, t portTarget) (*whyReport, error) {
	const pause = 250 * time.Millisecond
	w := witnesses{app: a}
	defer w.close()
	for waited := time.Duration(0); ; waited += pause {
		r, err := w.why(ctx, s, namespace, from, to, t)
		if err != nil || waited >= a.settle {
			return r, err
		}
		if code := exitError(0); !errors.As(r.exit(), &code) || code != exitDisagree {
			return r, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return r, nil
		}
	}
}

func (w *witnesses) why(ctx context.Context, s datastore.Store, namespace, from, to string, t portTarget) (*whyReport, error) {
	v, err := viewCluster(ctx, s, namespace)
	if err != nil {
		return nil, err
	}
	r, err := v.ask(ctx, from, to, t)
	if err != nil {
		return nil, err
	}
	w.askAll(ctx, r.Flows)
	for i := range r.Flows {
		r.Flows[i].compare()
	}
	return r, nil
}

// ask judges every pair of addresses of two ends.
func (v *clusterView) ask(ctx context.Context, from, to string, t portTarget) (*whyReport, error) {
	src, err := v.find(from)
	if err != nil {
		return nil, err
	}
	if src.service != nil {
		return nil, usagef("a Service sends nothing: name one of its pods%s", v.podsOfService(src.service))
	}
	dst, err := v.find(to)
	if err != nil {
		return nil, err
	}
	r := &whyReport{From: src.name, To: dst.name, Flows: []whyFlow{}}
	for _, note := range []string{src.note, dst.note} {
		if note != "" {
			r.Notes = append(r.Notes, note)
		}
	}
	backends, err := v.receivers(ctx, dst, t)
	if err != nil {
		return nil, err
	}
	if dst.service != nil {
		r.Notes = append(r.Notes, noServices)
	}
	r.Port, r.Protocol = portText(t, backends[0].port), backends[0].port.protocol.String()
	backends, left := pairs(src, backends)
	if len(backends) == 0 {
		return nil, fmt.Errorf("%s and %s have no address family in common: %s, %s", src.name, dst.name, addressText(src.ends), addressText(dst.ends))
	}
	if left > 0 {
		r.Notes = append(r.Notes, count(left, "more endpoint was", "more endpoints were")+" not looked at")
	}
	r.Allowed = true
	for _, b := range backends {
		for _, s := range src.ends {
			if s.Addr.BitLen() == b.end.Addr.BitLen() {
				f := v.judge(s, b)
				r.Allowed = r.Allowed && f.Allowed
				r.Flows = append(r.Flows, f)
			}
		}
	}
	return r, nil
}

// portText is what was asked for: a name stays one.
func portText(asked, found portTarget) string {
	if asked.name != "" {
		return asked.name
	}
	if asked.number != 0 {
		return fmt.Sprint(asked.number)
	}
	return ""
}

func addressText(ends []oracle.End) string {
	out := ""
	for i, e := range ends {
		if i > 0 {
			out += " and "
		}
		out += e.Addr.String()
	}
	return out
}

// pairs keeps the receivers of a family that the sender has, and bounds them.
func pairs(src endpoint, all []backend) (kept []backend, left int) {
	for _, b := range all {
		if slices.ContainsFunc(src.ends, func(e oracle.End) bool { return e.Addr.BitLen() == b.end.Addr.BitLen() }) {
			kept = append(kept, b)
		}
	}
	if len(kept) > maxBackends {
		kept, left = kept[:maxBackends], len(kept)-maxBackends
	}
	return kept, left
}

// receivers are the addresses and ports that a destination stands for.
func (v *clusterView) receivers(ctx context.Context, dst endpoint, t portTarget) ([]backend, error) {
	if dst.service != nil {
		return v.backends(ctx, dst.service, t)
	}
	var out []backend
	for _, e := range dst.ends {
		at := t
		if t.name != "" {
			pod, ok := v.snap.Pods.Get(e.Place.Pod)
			if e.Place.Kind != oracle.Pod || !ok {
				return nil, usagef("%s is no pod whose ports are known: name the port by number", dst.name)
			}
			var err error
			if at, err = t.onPod(pod); err != nil {
				return nil, err
			}
		}
		out = append(out, backend{e, at})
	}
	return out, nil
}

// judge asks the oracle about one pair of addresses.
func (v *clusterView) judge(s oracle.End, b backend) whyFlow {
	p := packet.Packet{Src: s.Addr, Dst: b.end.Addr, Protocol: b.port.protocol, SrcPort: firstEphemeral, DstPort: b.port.number}
	switch p.Protocol {
	case packet.TCP:
		p.SYN = true
	case packet.ICMP, packet.ICMPv6:
		p.SrcPort, p.Protocol = 0, packet.ICMP
		if p.Dst.Is6() {
			p.Protocol = packet.ICMPv6
		}
	}
	from := s.Place
	if from.Kind == oracle.Outside {
		from.Node = b.end.Place.Node // Where a router that knows the way would send it.
	}
	probe := oracle.Probe{From: from, Packet: p}
	verdict, policies := v.model.Judge(nil, probe), v.model.Policies(probe)
	f := whyFlow{Packet: p, Nodes: []whyNode{}, Disagreements: []string{}, arrives: policies.Arrives, vni: v.model.VNI(probe)}
	if !f.arrives.Src.IsValid() {
		f.arrives = p
	}
	f.Allowed, f.Why = verdict.Allowed, verdict.Why()
	f.Stages, f.Egress, f.Ingress = stagesOf(verdict.Stages), stagesOf(policies.Egress), stagesOf(policies.Ingress)
	f.From, f.To = placeOf(from), placeOf(b.end.Place)
	return f
}

func placeOf(p oracle.Place) whyPlace {
	switch p.Kind {
	case oracle.Pod:
		return whyPlace{Kind: "pod", Node: p.Node, Pod: p.Pod.String()}
	case oracle.Node:
		return whyPlace{Kind: "node", Node: p.Node}
	}
	return whyPlace{Kind: "outside", Node: p.Node}
}

func stagesOf(list []oracle.Stage) []whyStage {
	out := []whyStage{}
	for _, s := range list {
		w := whyStage{Name: s.Name, Pass: s.Pass, Why: s.Why}
		if m := s.Match; m != nil {
			w.Policy = &whyPolicy{Kind: string(m.Kind), Name: m.Policy.String(), Tier: m.Tier, Rule: m.Rule, RuleName: m.Name, Action: m.Action}
		}
		out = append(out, w)
	}
	return out
}
