package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-sdn/fairlead/lab"
)

// section is a group of figures that are measured together.
type section struct {
	name, about string
	run         func(ctx context.Context, e *environment) ([]figure, error)
}

// sections in the order of the table.
func sections() []section {
	return []section{
		{"plugin", "size and CPU of fairlead-cni against an empty Go program", benchPlugin},
		{"startup", "fairlead lab up from built programs", benchStartup},
		{"cni", "ADD and DEL against bridge + host-local (isGateway, ipMasq), whole calls with exec; CPU is plugins and agent", benchCNI},
		{"path", "pod to pod against the same kernel path built by hand; the ratio is ours as a share of that", benchPath},
		{"policy-cost", "pod to pod on one node with policies against none; the ratio is the first as a share of the second", benchPolicyCost},
		{"ovs-path", "pod to pod on Open vSwitch (netdev) against another bridge of the same one: a conntrack commit and a NORMAL flow; CPU is with ovs-vswitchd", benchOVSPath},
		{"ovs-policy-cost", "policy-cost on Open vSwitch; CPU is with ovs-vswitchd", benchOVSPolicyCost},
		{"ovs-switch", "ports and flows against ovs-vsctl and ovs-ofctl", benchOVSSwitch},
		{"policy-latency", "from writing a policy to its being in force on the last node of a 10-node lab, seen with packets every 4 ms", benchPolicyLatency},
		{"repair", "an outsider's damage until the kernel has it again", benchRepair},
		{"memory", "resident memory of agents", benchMemory},
		{"compile", "decide and render for one of 1,000 nodes with 50,000 pods", benchCompile},
		{"policy-scale", "decide and render for a node with 100 of 10,000 pods, 1,000 policies and 300 namespaces", benchPolicyScale},
		{"peers", "1,000 peers in the kernel: links, routes, nftables and BPF maps", benchPeers},
		{"ipam", "allocations by the node's allocator, durable records apart; the baseline is the memory datastore", benchIPAM},
	}
}

func main() {
	if handled, exit := lab.Main(os.Args[1:]); handled {
		os.Exit(exit)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Exit codes.
const (
	exitOK = iota
	exitNotMeasured
	exitUsage
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == nodeRole {
		if err := driveNode(ctx, args[1:], stdout); err != nil {
			fmt.Fprintln(stderr, "bench: in the node:", err)
			return exitNotMeasured
		}
		return exitOK
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	e := &environment{log: stderr}
	flags.StringVar(&e.bin, "bin", "bin", "directory of the built programs")
	flags.BoolVar(&e.quick, "quick", false, "a tenth of the rounds: whether it works, not how fast")
	only := flags.String("only", "", "comma-separated sections; default all: "+names())
	out := flags.String("o", "", "also write the table to this file")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitOK
	} else if err != nil {
		return exitUsage
	}
	chosen, err := choose(*only)
	if err == nil && os.Geteuid() != 0 {
		err = errors.New("needs root: it makes network namespaces and labs")
	}
	if err == nil {
		err = e.open()
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitUsage
	}
	results, failed := measure(ctx, e, chosen)
	if err := e.close(context.WithoutCancel(ctx)); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		failed = true
	}
	if err := report(results, stdout, *out); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		failed = true
	}
	if failed {
		return exitNotMeasured
	}
	return exitOK
}

func names() string {
	var all []string
	for _, s := range sections() {
		all = append(all, s.name)
	}
	return strings.Join(all, ",")
}

func choose(only string) ([]section, error) {
	if only == "" {
		return sections(), nil
	}
	var chosen []section
	for _, name := range strings.Split(only, ",") {
		i := slices.IndexFunc(sections(), func(s section) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no section %q: there are %s", name, names())
		}
		chosen = append(chosen, sections()[i])
	}
	return chosen, nil
}

// measure runs the sections one after the other. A section that fails does not stop
// the others.
func measure(ctx context.Context, e *environment, chosen []section) (results []result, failed bool) {
	for _, s := range chosen {
		fmt.Fprintf(e.log, "== %s: %s\n", s.name, s.about)
		start := time.Now()
		figures, err := s.run(ctx, e)
		if err != nil {
			failed = true
			fmt.Fprintf(e.log, "%s: not measured: %v\n", s.name, err)
		}
		results = append(results, result{section: s, figures: figures, err: err, took: time.Since(start)})
		if ctx.Err() != nil {
			break
		}
	}
	return results, failed
}

func report(results []result, stdout io.Writer, path string) error {
	if path == "" {
		return print(stdout, results)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return errors.Join(print(io.MultiWriter(stdout, f), results), f.Close())
}
