package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	faultsNamespace = "faults"
	faultsLimit     = 10 * time.Minute
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
	w      io.Writer
	a, b   netip.Addr
	failed int
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

// faults makes things go wrong, and checks what must hold meanwhile and afterwards.
func (c *cluster) faults(ctx context.Context, away time.Duration, fairlead string, w io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, faultsLimit)
	defer cancel()
	if c.Nodes < 2 || c.CNI != cniFairlead {
		return errors.New("it needs two nodes with Fairlead")
	}
	f := &faulty{cluster: c, w: w}
	defer func() {
		_, e := c.kubectl(context.WithoutCancel(ctx), nil, "delete", "namespace", faultsNamespace, "--ignore-not-found", "--timeout=120s")
		err = errors.Join(err, e)
	}()
	if err := f.pods(ctx); err != nil {
		return err
	}
	for _, run := range []func(context.Context) error{
		f.policyCutsFlows, f.policyDeletedWithoutAgents, f.foreignConfiguration,
		func(ctx context.Context) error { return f.expiredToken(ctx, fairlead) },
		func(ctx context.Context) error { return f.apiServerAway(ctx, away) },
	} {
		if err := run(ctx); err != nil {
			return err
		}
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
		manifest += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: %[2]s, labels: {app: %[1]s}}
spec:
  nodeName: %[3]s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "registry.k8s.io/pause:3.10", imagePullPolicy: Never}]
`, name, faultsNamespace, nodeName(i+1))
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
	selector := func(value string) error {
		_, err := f.kubectl(ctx, nil, "-n", "kube-system", "patch", "daemonset", "fairlead-agent", "--type=merge",
			"-p", `{"spec": {"template": {"spec": {"nodeSelector": `+value+`}}}}`)
		return err
	}
	if err := selector(`{"fairlead.test/none": "yes"}`); err != nil {
		return err
	}
	_, err = f.kubectl(ctx, nil, "-n", "kube-system", "wait", "pod", "-l", "app=fairlead-agent", "--for=delete", "--timeout=60s")
	if err == nil {
		_, err = f.allow(ctx)
	}
	if err == nil && time.Since(fl.lastAnswer()) < flowSilence {
		err = errors.New("packets pass that the policy denies")
	}
	f.check("without agents the rules stay", err)
	f.check("without agents the node's condition tells why it is not ready", f.nodeSays(ctx, nodeName(1), "fairlead-agent"))
	if err := selector("null"); err != nil {
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

// nodeSays waits until a node is not ready and its condition names what is missing.
func (f *faulty) nodeSays(ctx context.Context, node, want string) error {
	ctx, cancel := context.WithTimeout(ctx, sentenceBound)
	defer cancel()
	return poll(ctx, 500*time.Millisecond, func() error {
		out, err := f.kubectl(ctx, nil, "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("the condition of node %s says %q", node, out)
		} else if err == nil {
			fmt.Fprintf(f.w, "     %s: %s\n", node, out)
		}
		return err
	})
}

// foreignConfiguration: another network's configuration that the runtime prefers is named
// where people look.
func (f *faulty) foreignConfiguration(ctx context.Context) error {
	node := nodeName(f.Nodes)
	r, err := f.find(node)
	if err != nil {
		return err
	}
	path := fmt.Sprintf("/proc/%d/root/etc/cni/net.d/05-other.conflist", r.Pid)
	says := func(ctx context.Context, want string) error {
		ctx, cancel := context.WithTimeout(ctx, sentenceBound)
		defer cancel()
		return poll(ctx, 500*time.Millisecond, func() error {
			out, err := f.kubectl(ctx, nil, "get", "nodenetwork", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`)
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("the condition of NodeNetwork %s says %q", node, out)
			}
			return err
		})
	}
	if err := os.WriteFile(path, []byte(`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "loopback"}]}`), 0o600); err != nil {
		return err
	}
	f.check("a foreign configuration that hides ours is named by the node", says(ctx, "05-other.conflist sorts before"))
	if err := os.Remove(path); err != nil {
		return err
	}
	f.check("it is gone: the node is well", says(ctx, "all components are well"))
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
	pid, err := f.daemon("control", "kube-apiserver")
	if err != nil {
		return err
	}
	sent, answered := fl.counts()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	select {
	case <-time.After(away): // It is away for as long as was asked.
	case <-ctx.Done():
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		return fmt.Errorf("let the API server go on: %w", err)
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
func (f *faulty) expiredToken(ctx context.Context, fairlead string) error {
	node := nodeName(1)
	account, err := f.kubectl(ctx, nil, "-n", "kube-system", "get", "serviceaccount", "fairlead-agent", "-o", "json")
	if err != nil {
		return err
	}
	// Tokens are of one life of an account.
	if _, err := f.kubectl(ctx, strings.NewReader(account), "replace", "--force", "-f", "-"); err != nil {
		return err
	}
	// Watches go on with the token that they began with: they end with the API server.
	pid, err := f.daemon("control", "kube-apiserver")
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill the API server: %w", err)
	}
	says := func(holds func(string) bool) error {
		ctx, cancel := context.WithTimeout(ctx, sentenceBound)
		defer cancel()
		return poll(ctx, 500*time.Millisecond, func() error {
			out, err := f.text(ctx, fairlead, "--kubeconfig", f.kubeconfig("admin"), "node", "status", node)
			if err == nil && !holds(out) {
				err = fmt.Errorf("fairlead node status %s says:\n%s", node, out)
			}
			return err
		})
	}
	const sentence = "the credentials are not accepted"
	f.check("a token that has expired is told by fairlead node status", says(func(out string) bool { return strings.Contains(out, sentence) }))
	if err := f.renewToken(ctx, node); err != nil {
		return err
	}
	f.check("the token is renewed: the agent is well", says(func(out string) bool { return !strings.Contains(out, sentence) && !strings.Contains(out, "lost: ") }))
	// The other agents get theirs from their kubelets, with new pods.
	for _, args := range [][]string{{"restart", "daemonset/fairlead-agent"}, {"status", "daemonset/fairlead-agent", "--timeout=120s"}} {
		if _, err := f.kubectl(ctx, nil, append([]string{"-n", "kube-system", "rollout"}, args...)...); err != nil {
			return err
		}
	}
	return nil
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
func (f *faulty) daemon(machine, name string) (int, error) {
	r, err := f.find(machine)
	if err != nil {
		return 0, err
	}
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", r.Pid))
	if err != nil {
		return 0, err
	}
	paths, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		exe, err := os.Readlink(path)
		if err != nil || exe != f.bin(name) {
			continue
		}
		dir := filepath.Dir(path)
		if got, err := os.Readlink(filepath.Join(dir, "ns/pid")); err == nil && got == space {
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, fmt.Errorf("machine %s runs no %s", machine, name)
}
