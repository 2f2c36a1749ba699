package cli

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab"
)

func (a *app) labCommand() *cobra.Command {
	return group("lab", "A whole cluster's network on this machine, made of namespaces",
		a.labUp(), a.labDown(), a.labStatus(), a.labExec(), a.labShell(), a.labFault(), a.labCheck(), a.labList())
}

// words maps what the flag takes to the API's word.
var encapsulations = map[string]string{"vxlan": "VXLAN", "none": "None", "crosssubnet": "CrossSubnet"}

func (a *app) labUp() *cobra.Command {
	var o lab.Options
	var encap string
	var subnets, underlay []string
	var noNAT bool
	cmd := &cobra.Command{
		Use: "up", Short: "Start a lab", Args: usage.Arguments(0, 0),
		Long: `Start a lab: nodes, routers, an outside host and a control plane, each a namespace of
this machine, with the real agent on every node. It needs root and nothing else, and
nothing of it is visible in the host's own network namespace.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Name, o.Root = a.flags.lab, a.flags.root
			var known bool
			if o.Encapsulation, known = encapsulations[strings.ToLower(encap)]; !known {
				return usagef("--encap %q: want vxlan, none or crosssubnet", encap)
			}
			// To package lab nothing means the default; here somebody has asked for it.
			for _, f := range []struct {
				name  string
				value int
			}{{"nodes", o.Nodes}, {"segments", o.Segments}, {"mtu", o.MTU}} {
				if f.value <= 0 {
					return usagef("--%s %d: want a positive number", f.name, f.value)
				}
			}
			if o.Wait <= 0 {
				return usagef("--wait %s: want a positive duration, such as 1m", o.Wait)
			}
			var err error
			if o.Subnets, err = prefixes("--subnet", "10.128.0.0/14 or fd00:10::/64", subnets); err != nil {
				return err
			}
			if o.Underlay, err = prefixes("--underlay", "172.30.0.0/16 (IPv4 /16) or fd00:30::/32 (IPv6 /32)", underlay); err != nil {
				return err
			}
			if noNAT {
				nat := false
				o.NATOutgoing = &nat
			}
			return a.up(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", 3, "number of nodes")
	f.IntVar(&o.Segments, "segments", 1, "number of L2 segments that the nodes are spread over, with a router between them")
	f.StringVar(&o.Plane, "plane", "linux", "data plane of the nodes: linux or ovs; of a list, such as ovs,linux, the nodes take one each in turns")
	f.StringVar(&encap, "encap", "vxlan", "encapsulation of the default Subnet: vxlan, crosssubnet or none")
	f.StringSliceVar(&subnets, "subnet", nil, "CIDRs of the default Subnet, one of each family at least for dual stack (default 10.128.0.0/14)")
	f.StringSliceVar(&underlay, "underlay", nil, "prefixes of the nodes' own addresses: an IPv4 /16, an IPv6 /32, or both")
	f.BoolVar(&noNAT, "no-nat", false, "do not masquerade what pods send to the outside")
	f.IntVar(&o.MTU, "mtu", 1500, "MTU of the underlay in bytes")
	f.StringVar(&o.Etcd, "etcd-binary", "", "run this etcd program instead of the one that is built in")
	f.StringVar(&o.LogLevel, "log-level", "info", "log level of the daemons")
	f.DurationVar(&o.Wait, "wait", time.Minute, "how long to wait for the nodes")
	for flag, words := range map[string][]string{
		"plane": {"linux", "ovs"}, "encap": slices.Sorted(maps.Keys(encapsulations)), "log-level": {"debug", "info", "warn", "error"},
	} {
		// The only mistake is a flag that does not exist.
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	return cmd
}

func prefixes(flag, example string, values []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, v := range values {
		p, err := netip.ParsePrefix(v)
		if err != nil {
			return nil, usagef("%s %q is not a CIDR such as %s", flag, v, example)
		}
		out = append(out, p)
	}
	return out, nil
}

func (a *app) up(ctx context.Context, o lab.Options) error {
	began := time.Now()
	l, err := lab.Up(ctx, o, a.progress())
	if err != nil {
		return err
	}
	if a.terminal {
		fmt.Fprint(a.out, "\r\033[K")
	}
	if err := a.say("lab %s is ready: %s in %.1f s", l.Name(), count(o.Nodes, "node", "nodes"), time.Since(began).Seconds()); err != nil {
		return err
	}
	return a.say("next: fairlead apply -f FILE, fairlead get pods, fairlead lab check, fairlead lab down")
}

// progress shows the steps of up: on a terminal in one line that changes, else a
// line for each step.
func (a *app) progress() func(lab.Step) {
	last := ""
	return func(s lab.Step) {
		switch {
		case s.Ready || s.Err != "":
		case a.terminal:
			line := fmt.Sprintf("%4.1fs  %s", s.Elapsed.Seconds(), s.Name)
			if s.Total > 0 {
				line += fmt.Sprintf(" %d/%d", s.Done, s.Total)
			}
			if s.Detail != "" {
				line += "  " + s.Detail
			}
			// A line that the terminal breaks could not be taken back.
			if r := []rune(oneLine(line)); a.columns > 1 && len(r) >= a.columns {
				line = string(r[:a.columns-1])
			}
			fmt.Fprintf(a.out, "\r\033[K%s", oneLine(line))
		case s.Name != last:
			fmt.Fprintf(a.out, "%4.1fs  %s\n", s.Elapsed.Seconds(), oneLine(s.Name))
			last = s.Name
		}
	}
}

func (a *app) labDown() *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "End a lab and leave nothing behind", Args: usage.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := lab.Down(cmd.Context(), a.flags.root, a.flags.lab); err != nil {
				return err
			}
			return a.say("the lab is gone")
		},
	}
}

func (a *app) labList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List labs", Args: usage.Arguments(0, 0)}
	format := outputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		labs, err := lab.List(a.flags.root)
		if err != nil {
			return err
		}
		return a.print(format, labs, func(bool) table {
			t := table{header: []string{"NAME", "RUNNING"}}
			for _, l := range labs {
				t.add(l.Name, fmt.Sprint(l.Running))
			}
			return t
		})
	}
	return cmd
}

func (a *app) labStatus() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show a lab: its nodes, agents and datastore", Args: usage.Arguments(0, 0)}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := a.openLab()
		if err != nil {
			return err
		}
		s, err := l.Status(cmd.Context())
		if err != nil {
			return err
		}
		for _, p := range s.Problems {
			fmt.Fprintln(a.err, "problem:", p)
		}
		return a.print(format, s, func(bool) table {
			t := table{header: []string{"NODE", "ADDRESSES", "SEGMENT", "POWER", "LINK", "AGENT", "READY", "PODS"}}
			for _, n := range s.Nodes {
				var addrs []string
				for _, p := range n.Addresses {
					addrs = append(addrs, p.Addr().String())
				}
				state := "yes"
				if !n.State.Ready {
					state = "no: " + n.State.Reason
				}
				t.add(n.Name, strings.Join(addrs, ","), n.Segment, n.Power, n.Link, string(n.State.Agent.State), state, fmt.Sprint(len(n.State.Pods)))
			}
			t.add("control", "", "", "", "", "etcd "+string(s.Datastore.Process.State), "controller "+string(s.Controller.State), "")
			return t
		})
	}
	return cmd
}

// where turns an argument into a place: a pod NAMESPACE/NAME (or NAME in default),
// node/NAME, or one of the lab's other hosts.
func where(arg string) lab.ExecRequest {
	switch arg {
	case "outside", "router", "control", "fabric":
		return lab.ExecRequest{Space: arg}
	}
	if name, found := strings.CutPrefix(arg, "node/"); found {
		return lab.ExecRequest{Node: name}
	}
	if !strings.Contains(arg, "/") {
		arg = "default/" + arg
	}
	return lab.ExecRequest{Pod: arg}
}

const placeHelp = `POD is NAMESPACE/NAME (or NAME, in the namespace default); node/NAME is a node, and
outside, router, control and fabric are the lab's other hosts.`

func (a *app) labExec() *cobra.Command {
	var container string
	cmd := &cobra.Command{
		Use: "exec POD -- COMMAND [ARG…]", Short: "Run a command in a pod, on a node, or on the outside host", Args: usage.Arguments(2, -1),
		Long:    "Run a command, and exit with its status. " + placeHelp,
		Example: "  fairlead lab exec shop/web -- ip addr\n  fairlead lab exec node/node-1 -- ip route", ValidArgsFunction: a.completePlaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			r := where(args[0])
			r.Container, r.Command = container, commandOf(args[1:])
			return a.exec(cmd.Context(), r)
		},
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "container of the pod (default: the first that has a process)")
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// commandOf is the command behind the place: flags end there, with or without a "--".
func commandOf(args []string) []string {
	if args[0] == "--" {
		return args[1:]
	}
	return args
}

func (a *app) labShell() *cobra.Command {
	return &cobra.Command{
		Use: "shell POD", Short: "Open a shell in a pod, on a node, or on the outside host", Args: usage.Arguments(1, 1),
		Long: "Open a shell. " + placeHelp, Example: "  fairlead lab shell shop/web", ValidArgsFunction: a.completePlaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			r := where(args[0])
			r.Command = []string{"/bin/bash"}
			if _, err := os.Stat(r.Command[0]); err != nil {
				r.Command[0] = "/bin/sh"
			}
			r.Env = []string{"PS1=[" + args[0] + "] \\w # ", "TERM=" + os.Getenv("TERM")}
			return a.exec(cmd.Context(), r)
		},
	}
}

func (a *app) exec(ctx context.Context, r lab.ExecRequest) error {
	l, err := a.openLab()
	if err != nil {
		return err
	}
	r.Stdin, r.Stdout, r.Stderr = os.Stdin, os.Stdout, os.Stderr
	status, err := l.Exec(ctx, r)
	if err != nil {
		return err
	}
	if status != 0 {
		return exitError(status)
	}
	return nil
}

func (a *app) completePlaces(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	out, directive := a.completeNames(cmd.Context(), datastore.KindPod)
	nodes, _ := a.completeNames(cmd.Context(), datastore.KindNode)
	for _, n := range nodes {
		out = append(out, "node/"+n)
	}
	return append(out, "outside", "router", "control", "fabric"), directive
}

func (a *app) labFault() *cobra.Command {
	var lines []string
	for _, f := range lab.Faults() {
		node := ""
		if f.OnNode {
			node = "NODE"
		}
		lines = append(lines, fmt.Sprintf("  %-22s %-5s %s", f.Kind, node, f.About))
	}
	return &cobra.Command{
		Use: "fault KIND [NODE]", Short: "Break something, or mend it", Args: usage.Arguments(1, 2),
		Long:    "Break something, or mend it:\n\n" + strings.Join(lines, "\n"),
		Example: "  fairlead lab fault agent-kill node-2",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return a.completeNames(cmd.Context(), datastore.KindNode)
			}
			var out []string
			for _, f := range lab.Faults() {
				out = append(out, string(f.Kind))
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := faultOf(args)
			if err != nil {
				return err
			}
			l, err := a.openLab()
			if err != nil {
				return err
			}
			if err := l.Fault(cmd.Context(), f); err != nil {
				return err
			}
			note, err := l.AwaitStart(cmd.Context(), f)
			switch {
			case err != nil:
				return err
			case note != "":
				return a.say("%s: done, and %s", strings.Join(args, " "), note)
			}
			return a.say("%s: done", strings.Join(args, " "))
		},
	}
}

func faultOf(args []string) (lab.Fault, error) {
	all := lab.Faults()
	i := slices.IndexFunc(all, func(f lab.FaultInfo) bool { return string(f.Kind) == args[0] })
	if i < 0 {
		return lab.Fault{}, usagef("there is no fault %q; fairlead lab fault --help lists them", args[0])
	}
	f := lab.Fault{Kind: all[i].Kind}
	switch {
	case all[i].OnNode && len(args) != 2:
		return lab.Fault{}, usagef("fault %s is done to a node: name one, such as fairlead lab fault %s node-1", args[0], args[0])
	case !all[i].OnNode && len(args) != 1:
		return lab.Fault{}, usagef("fault %s is done to no node: leave out %s", args[0], args[1])
	case len(args) == 2:
		f.Node = args[1]
	}
	return f, nil
}

func (a *app) labCheck() *cobra.Command {
	var all bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "check", Short: "Probe every pair of pods for real, and compare with the oracle", Args: usage.Arguments(0, 0),
		Long: `Probe every containerPort of every pod from every other pod, over every family that
both have, and compare what happened with what the oracle says ought to happen. Exits
with 1 if anything disagrees.`,
	}
	format := outputFlag(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "list every pair, not only what disagrees")
	cmd.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait for pods to be ready; 0 takes them as they are")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if wait < 0 {
			return usagef("--wait %s: want no negative duration", wait)
		}
		l, err := a.openLab()
		if err != nil {
			return err
		}
		var result *lab.CheckResult
		err = a.useStore(cmd.Context(), func(ctx context.Context, s datastore.Store) (err error) {
			result, err = check(ctx, l, s, wait, all)
			return err
		})
		if err != nil {
			return err
		}
		if err := a.printCheck(format, result, all); err != nil {
			return err
		}
		if !result.OK() {
			return exitError(exitFailed)
		}
		return nil
	}
	return cmd
}
