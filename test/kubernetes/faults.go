package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	faultsNamespace = "faults"
	faultsLimit     = time.Hour
)

// What must hold.
const (
	cutBound      = time.Second     // from the policy's acceptance to the last answer
	returnBound   = 5 * time.Second // from the return of agent or API server
	sentenceBound = time.Minute
)

const denyManifest = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: ` + faultsNamespace + `}
spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}
`

// faulty is the cluster while things go wrong in it: two pods of different nodes, and flows
// from a to b.
type faulty struct {
	*cluster
	w        io.Writer
	fairlead string
	a, b     netip.Addr
	failed   int
}

// check prints what was found.
func (f *faulty) check(what string, err error) {
	if err != nil {
		f.failed++
		fmt.Fprintf(f.w, "FAIL %s: %v\n", what, err)
		return
	}
	fmt.Fprintln(f.w, "ok  ", what)
}

// within checks a time against its bound.
func (f *faulty) within(what string, took, bound time.Duration, err error) {
	if err == nil && took > bound {
		err = fmt.Errorf("want at most %s", bound)
	}
	f.check(fmt.Sprintf("%s after %d ms", what, took.Milliseconds()), err)
}

// faultOptions say what is needed to make things go wrong.
type faultOptions struct {
	// away is how long the API server is.
	away time.Duration
	// fairlead is the program that asks the agents.
	fairlead string
}

// fault is something that goes wrong.
type fault struct {
	name, what string
	run        func(context.Context) error
}

// choose returns the faults of these names, or all.
func (f *faulty) choose(away time.Duration, names []string) ([]fault, error) {
	all := []fault{
		{"P1", "pods that start at once, under policies", f.manyStart},
		{"P2", "a policy denies running flows", f.policyCutsFlows},
		{"P4", "a policy is deleted while no agent runs", f.policyDeletedWithoutAgents},
		{"F6", "agents are killed and restarted under many flows", f.agentsDie},
		{"A1", "pods before the agent, and an agent before the API server", func(ctx context.Context) error {
			return errors.Join(f.agentsAreAway(ctx), f.agentWithoutWorld(ctx))
		}},
		{"A2", "a pod is deleted without API server and token", f.deletedBlindly},
		{"A6", "a node vanishes, and what it has lent", f.nodeVanishes},
		{"A8", "the agent dies between ADD and the pod's status", f.agentDiesAfterAdd},
		{"A12", "pods are made again under the same names", f.sameNames},
		{"plugins", "another network plugin is configured", f.foreignConfiguration},
		{"subnets", "a namespace has no Subnet, and a Subnet is the Services' range", f.wrongSubnets},
		{"token", "the agents' tokens expire", f.expiredToken},
		{"node", "a node's network changes, and its runtime asks for a pod that nobody knows", f.nodeChanges},
		{"policies", "ClusterNetworkPolicies are installed, and a policy has a problem", f.policiesAreTold},
		{"lists", "the API server does not stream lists", f.withoutStreaming},
		{"F7", "the API server is away", func(ctx context.Context) error { return f.apiServerAway(ctx, away) }},
	}
	var known []string
	for _, one := range all {
		known = append(known, one.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no fault %q: %s", name, strings.Join(known, ", "))
		}
	}
	if len(names) == 0 {
		return all, nil
	}
	return slices.DeleteFunc(all, func(one fault) bool { return !slices.Contains(names, one.name) }), nil
}

// faults makes things go wrong, and checks what must hold meanwhile and afterwards.
func (c *cluster) faults(ctx context.Context, o faultOptions, names []string, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, faultsLimit)
	defer cancel()
	f := &faulty{cluster: c, w: w, fairlead: o.fairlead}
	chosen, err := f.choose(o.away, names)
	if err != nil {
		return err
	}
	return f.withPods(ctx, func(ctx context.Context) error {
		for _, one := range chosen {
			fmt.Fprintf(w, "%s: %s\n", one.name, one.what)
			if err := one.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
		}
		return nil
	})
}

// withPods runs something with the two pods, and tells whether a check has failed.
func (f *faulty) withPods(ctx context.Context, run func(context.Context) error) (err error) {
	if f.Nodes < 2 || f.CNI != cniFairlead {
		return errors.New("it needs two nodes with Fairlead")
	}
	defer func() {
		_, e := f.kubectl(context.WithoutCancel(ctx), nil, "delete", "namespace", faultsNamespace, "--ignore-not-found", "--timeout=120s")
		err = errors.Join(err, e)
	}()
	if err := f.pods(ctx); err != nil {
		return err
	}
	if err := run(ctx); err != nil {
		return err
	}
	if f.failed > 0 {
		return fmt.Errorf("%d checks failed", f.failed)
	}
	return nil
}

// pods makes a on the first node and b on the second.
func (f *faulty) pods(ctx context.Context) error {
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", faultsNamespace)
	for i, name := range []string{"a", "b"} {
		manifest += podManifest(name, nodeName(i+1))
	}
	// The service account of a new namespace appears a little later.
	if err := poll(ctx, 500*time.Millisecond, func() error { return f.apply(ctx, manifest) }); err != nil {
		return err
	}
	if _, err := f.kubectl(ctx, nil, "-n", faultsNamespace, "wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s"); err != nil {
		return err
	}
	for name, into := range map[string]*netip.Addr{"a": &f.a, "b": &f.b} {
		out, err := f.kubectl(ctx, nil, "-n", faultsNamespace, "get", "pod", name, "-o", "jsonpath={.status.podIP}")
		if err != nil {
			return err
		}
		if *into, err = netip.ParseAddr(out); err != nil {
			return fmt.Errorf("the address of pod %s: %w", name, err)
		}
	}
	return nil
}

// deny and allow return when the API server has accepted the change.
func (f *faulty) deny(ctx context.Context) (time.Time, error) {
	err := f.apply(ctx, denyManifest)
	return time.Now(), err
}

func (f *faulty) allow(ctx context.Context) (time.Time, error) {
	_, err := f.kubectl(ctx, nil, "-n", faultsNamespace, "delete", "networkpolicy", "deny")
	return time.Now(), err
}

// bounded waits for something that takes moments.
func bounded(ctx context.Context, wait func(context.Context, time.Time) (time.Duration, error), since time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return wait(ctx, since)
}

// policyCutsFlows: a policy that denies running flows ends them, and its deletion lets them
// go on.
func (f *faulty) policyCutsFlows(ctx context.Context) error {
	for _, network := range []string{"udp", "tcp"} {
		fl, err := startFlow(ctx, network, f.a, f.b)
		if err != nil {
			return err
		}
		err = f.cutAndResume(ctx, fl)
		fl.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *faulty) cutAndResume(ctx context.Context, fl *flow) error {
	took, err := bounded(ctx, fl.answeredSince, time.Now())
	f.within("the "+fl.network+" flow is answered", took, cutBound, err)
	denied, err := f.deny(ctx)
	if err != nil {
		return err
	}
	took, err = bounded(ctx, fl.cut, denied)
	f.within("a policy cuts the running "+fl.network+" flow: its last answer came", took, cutBound, err)
	allowed, err := f.allow(ctx)
	if err != nil || fl.network == "tcp" { // TCP waits longer each time before it sends again.
		return err
	}
	took, err = bounded(ctx, fl.answeredSince, allowed)
	f.within("the policy is deleted: the flow is answered", took, returnBound, err)
	return nil
}

// policyDeletedWithoutAgents: rules stay while no agent runs, and those of a policy that was
// deleted meanwhile are gone when the agents are back.
func (f *faulty) policyDeletedWithoutAgents(ctx context.Context) error {
	fl, err := startFlow(ctx, "udp", f.a, f.b)
	if err != nil {
		return err
	}
	defer fl.close()
	denied, err := f.deny(ctx)
	if err != nil {
		return err
	}
	if _, err := bounded(ctx, fl.cut, denied); err != nil {
		return err
	}
	err = f.withoutAgents(ctx)
	if err == nil {
		_, err = f.allow(ctx)
	}
	if err == nil && time.Since(fl.lastAnswer()) < flowSilence {
		err = errors.New("packets pass that the policy denies")
	}
	f.check("without agents the rules stay", err)
	f.check("without agents the node's condition tells why it is not ready", f.says(ctx, "fairlead-agent",
		"get", "node", nodeName(1), "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`))
	if err := f.selectNodes(ctx, "null"); err != nil {
		return err
	}
	started := time.Now()
	took, err := bounded(ctx, fl.answeredSince, started)
	f.check(fmt.Sprintf("a policy was deleted without agents: its rules are gone %d ms after the pods of the agents were asked for", took.Milliseconds()), err)
	_, err = f.kubectl(ctx, nil, "-n", "kube-system", "rollout", "status", "daemonset/fairlead-agent", "--timeout=120s")
	if ready := time.Since(started); err == nil && took > ready {
		err = errors.New("the agents were ready before")
	}
	f.check(fmt.Sprintf("the agents are ready after that: %d ms", time.Since(started).Milliseconds()), err)
	return nil
}

// selectNodes changes which nodes have agents.
func (f *faulty) selectNodes(ctx context.Context, selector string) error {
	_, err := f.kubectl(ctx, nil, "-n", "kube-system", "patch", "daemonset", "fairlead-agent", "--type=merge",
		"-p", `{"spec": {"template": {"spec": {"nodeSelector": `+selector+`}}}}`)
	return err
}

// withoutAgents takes all agents away.
func (f *faulty) withoutAgents(ctx context.Context) error {
	if err := f.selectNodes(ctx, `{"fairlead.test/none": "yes"}`); err != nil {
		return err
	}
	_, err := f.kubectl(ctx, nil, "-n", "kube-system", "wait", "pod", "-l", "app=fairlead-agent", "--for=delete", "--timeout=60s")
	return err
}

// withAgents brings them back.
func (f *faulty) withAgents(ctx context.Context) error {
	if err := f.selectNodes(ctx, "null"); err != nil {
		return err
	}
	_, err := f.kubectl(ctx, nil, "-n", "kube-system", "rollout", "status", "daemonset/fairlead-agent", "--timeout=120s")
	return err
}

// says waits until kubectl prints something that contains a text, and prints it too.
func (f *faulty) says(ctx context.Context, want string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, sentenceBound)
	defer cancel()
	return poll(ctx, 500*time.Millisecond, func() error {
		out, err := f.kubectl(ctx, nil, args...)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("kubectl %s prints %q", strings.Join(args, " "), out)
		} else if err == nil {
			fmt.Fprintf(f.w, "     %s\n", out)
		}
		return err
	})
}

// foreignConfiguration: another network's configuration is named where people look,
// whether the runtime prefers it or not.
func (f *faulty) foreignConfiguration(ctx context.Context) error {
	node := nodeName(f.Nodes)
	r, err := f.find(node)
	if err != nil {
		return err
	}
	condition := []string{"get", "nodenetwork", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].message}`}
	for _, other := range []struct{ name, what, says string }{
		{"05-other.conflist", "that hides ours", "05-other.conflist sorts before"},
		{"20-other.conflist", "that sorts after ours", "True cni configuration: 20-other.conflist is also in"},
	} {
		path := fmt.Sprintf("/proc/%d/root/etc/cni/net.d/%s", r.Pid, other.name)
		if err := os.WriteFile(path, []byte(`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "bridge"}]}`), 0o600); err != nil {
			return err
		}
		f.check("a foreign configuration "+other.what+" is named by the node", f.says(ctx, other.says, condition...))
		if err := os.Remove(path); err != nil {
			return err
		}
		f.check("it is gone: the node is well", f.says(ctx, "True all components are well", condition...))
	}
	return nil
}

// apiServerAway: the API server does not answer for a while. Traffic does not notice, and
// what changes afterwards takes effect as soon as ever.
func (f *faulty) apiServerAway(ctx context.Context, away time.Duration) error {
	fl, err := startFlow(ctx, "udp", f.a, f.b)
	if err != nil {
		return err
	}
	defer fl.close()
	sent, answered := fl.counts()
	thaw, err := f.freeze()
	if err != nil {
		return err
	}
	select {
	case <-time.After(away): // It is away for as long as was asked.
	case <-ctx.Done():
	}
	if err := thaw(); err != nil {
		return err
	}
	back := time.Now()
	nowSent, nowAnswered := fl.counts()
	lost := (nowSent - sent) - (nowAnswered - answered)
	if lost > 1 { // one may be on its way
		err = errors.New("want none")
	}
	f.check(fmt.Sprintf("API server away for %.0f s: %d of %d packets lost", away.Seconds(), max(0, lost), nowSent-sent), err)
	var denied time.Time
	err = poll(ctx, 100*time.Millisecond, func() (err error) {
		denied, err = f.deny(ctx)
		return err
	})
	if err != nil {
		return err
	}
	took, err := bounded(ctx, fl.cut, denied)
	f.within(fmt.Sprintf("a policy that it accepts %d ms after its return cuts the flow", denied.Sub(back).Milliseconds()), took, returnBound, err)
	_, err = f.allow(ctx)
	return err
}

// expiredToken: the API server does not accept the agents' tokens any more. An agent says so,
// and is well as soon as its file holds one that is accepted.
func (f *faulty) expiredToken(ctx context.Context) error {
	node := nodeName(1)
	if err := f.invalidateTokens(ctx); err != nil {
		return err
	}
	says := func(holds func(string) bool) error {
		ctx, cancel := context.WithTimeout(ctx, sentenceBound)
		defer cancel()
		return poll(ctx, 500*time.Millisecond, func() error {
			out, err := f.text(ctx, f.fairlead, "--kubeconfig", f.kubeconfig("admin"), "node", "status", node)
			if err == nil && !holds(out) {
				err = fmt.Errorf("fairlead node status %s says:\n%s", node, out)
			}
			return err
		})
	}
	const sentence = "the credentials are not accepted"
	f.check("a token that has expired is told by fairlead status", f.statusSays(ctx, sentence))
	f.check("a token that has expired is told by fairlead node status", says(func(out string) bool { return strings.Contains(out, sentence) }))
	if err := f.renewToken(ctx, node); err != nil {
		return err
	}
	f.check("the token is renewed: the agent is well", says(func(out string) bool { return !strings.Contains(out, sentence) && !strings.Contains(out, "lost: ") }))
	// The other agents get theirs from their kubelets, with new pods.
	return f.restartAgents(ctx)
}

// invalidateTokens makes every token of the agents one that the API server does not accept.
func (f *faulty) invalidateTokens(ctx context.Context) error {
	account, err := f.kubectl(ctx, nil, "-n", "kube-system", "get", "serviceaccount", "fairlead-agent", "-o", "json")
	if err != nil {
		return err
	}
	// Tokens are of one life of an account.
	if _, err := f.kubectl(ctx, strings.NewReader(account), "replace", "--force", "-f", "-"); err != nil {
		return err
	}
	// Watches go on with the token that they began with: they end with the API server.
	return f.restartAPIServer(ctx)
}

// renewToken gives the agent's pod of a node a token, as its kubelet would in time.
func (f *faulty) renewToken(ctx context.Context, node string) error {
	r, err := f.find(node)
	if err != nil {
		return err
	}
	out, err := f.kubectl(ctx, nil, "-n", "kube-system", "get", "pod", "-l", "app=fairlead-agent", "--field-selector", "spec.nodeName="+node, "-o", "jsonpath={.items[*].metadata.name} {.items[*].metadata.uid}")
	if err != nil {
		return err
	}
	pod := strings.Fields(out)
	if len(pod) != 2 {
		return fmt.Errorf("node %s has not one pod of an agent: %q", node, out)
	}
	token, err := f.kubectl(ctx, nil, "-n", "kube-system", "create", "token", "fairlead-agent", "--bound-object-kind=Pod", "--bound-object-name="+pod[0], "--bound-object-uid="+pod[1])
	if err != nil {
		return err
	}
	pattern := fmt.Sprintf("/proc/%d/root/var/lib/kubelet/pods/%s/volumes/kubernetes.io~projected/*/..data/token", r.Pid, pod[1])
	paths, err := filepath.Glob(pattern)
	if err == nil && len(paths) != 1 {
		err = fmt.Errorf("%d files are like %s, want one", len(paths), pattern)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(paths[0], []byte(strings.TrimSpace(token)), 0o600)
}

// daemon finds the process of a machine's daemon.
func (c *cluster) daemon(machine, name string) (int, error) {
	r, err := c.find(machine)
	if err != nil {
		return 0, err
	}
	return c.process(r, "pid", c.bin(name))
}

// process finds one that runs a program, and shares a namespace with a machine.
func (c *cluster) process(r running, kind, program string) (int, error) {
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", r.Pid, kind))
	if err != nil {
		return 0, err
	}
	paths, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		exe, err := os.Readlink(path)
		if err != nil || exe != program {
			continue
		}
		dir := filepath.Dir(path)
		if got, err := os.Readlink(filepath.Join(dir, "ns", kind)); err == nil && got == space {
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, fmt.Errorf("machine %s runs no %s", r.Name, program)
}
