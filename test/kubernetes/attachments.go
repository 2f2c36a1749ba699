package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	agentProgram = "/usr/bin/fairlead-agent"
	recordsDir   = "/var/lib/fairlead/attachments"
	// addBound is how long an ADD may take while pods of the same names come and go.
	addBound = 5 * time.Second
)

// attachment is what is read of a record of the agent's.
type attachment struct {
	Container, Interface, Netns string
	Owner                       struct{ Namespace, Name, UID string }
	Addresses                   []netip.Addr
}

// records are the attachments that a node's agent has on disk.
func (c *cluster) records(node string) ([]attachment, error) {
	r, err := c.find(node)
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/root%s/*.json", r.Pid, recordsDir))
	if err != nil {
		return nil, err
	}
	var out []attachment
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		} else if err != nil {
			return nil, err
		}
		var file struct{ Record attachment }
		if err := json.Unmarshal(raw, &file); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, file.Record)
	}
	return out, nil
}

// recordOf is the record of a pod in the namespace of faults.
func (c *cluster) recordOf(node, pod string) (attachment, error) {
	all, err := c.records(node)
	if err != nil {
		return attachment{}, err
	}
	for _, a := range all {
		if a.Owner.Namespace == faultsNamespace && a.Owner.Name == pod {
			return a, nil
		}
	}
	return attachment{}, fmt.Errorf("node %s has no record of pod %s", node, pod)
}

// allocated tells to which pod an address is allocated, by its UID; empty if it is free.
func (f *faulty) allocated(ctx context.Context, a netip.Addr) (uid string, err error) {
	var blocks struct {
		Items []struct {
			Spec struct {
				Allocations map[string]struct{ UID string }
			}
		}
	}
	if err := f.get(ctx, &blocks, "ipblocks"); err != nil {
		return "", err
	}
	for _, b := range blocks.Items {
		if owner, ok := b.Spec.Allocations[a.String()]; ok {
			return owner.UID, nil
		}
	}
	return "", nil
}

// freeze stops the API server; the function that it returns lets it go on.
func (f *faulty) freeze() (func() error, error) {
	pid, err := f.daemon("control", "kube-apiserver")
	if err != nil {
		return nil, err
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return nil, fmt.Errorf("stop the API server: %w", err)
	}
	return sync.OnceValue(func() error {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			return fmt.Errorf("let the API server go on: %w", err)
		}
		return nil
	}), nil
}

// soon waits for what must come to hold by itself.
func (f *faulty) soon(ctx context.Context, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, sentenceBound)
	defer cancel()
	return poll(ctx, 100*time.Millisecond, holds)
}

// podManifest is a pod that does nothing.
func podManifest(name, node string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: %[2]s, labels: {app: %[1]s}}
spec:
  nodeName: %[3]s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "registry.k8s.io/pause:3.10", imagePullPolicy: Never}]
`, name, faultsNamespace, node)
}

func (f *faulty) podReady(ctx context.Context, name string) error {
	_, err := f.kubectl(ctx, nil, "-n", faultsNamespace, "wait", "pod", name, "--for=condition=Ready", "--timeout=120s")
	return err
}

func (f *faulty) deletePod(ctx context.Context, name string) error {
	_, err := f.kubectl(ctx, nil, "-n", faultsNamespace, "delete", "pod", name, "--timeout=60s")
	return err
}

// agentsAreAway: the kubelet wants a pod of a node without an agent (A1). The pod's events
// say what it waits for, and it runs when the agent is there.
func (f *faulty) agentsAreAway(ctx context.Context) error {
	if err := f.withoutAgents(ctx); err != nil {
		return err
	}
	if err := f.apply(ctx, podManifest("early", nodeName(1))); err != nil {
		return err
	}
	f.check("a pod without an agent: its events tell why it waits", f.says(ctx, "fairlead-agent",
		"-n", faultsNamespace, "get", "events", "--field-selector", "involvedObject.name=early", "-o", "jsonpath={.items[*].message}"))
	if err := f.withAgents(ctx); err != nil {
		return err
	}
	back := time.Now()
	err := f.podReady(ctx, "early")
	f.check(fmt.Sprintf("it is Ready %d ms after the agents, by itself", time.Since(back).Milliseconds()), err)
	return f.deletePod(ctx, "early")
}

// agentWithoutWorld: an agent that starts with no checkpoint while the API server is away
// knows nothing: it gives no address (A1).
func (f *faulty) agentWithoutWorld(ctx context.Context) error {
	node := nodeName(1)
	r, err := f.find(node)
	if err != nil {
		return err
	}
	pid, err := f.agent(node)
	if err != nil {
		return err
	}
	if _, err := f.inside(node, "", "ip", "netns", "add", "a1"); err != nil {
		return err
	}
	pod := attachment{Container: strings.Repeat("a1", 32), Interface: "eth0", Netns: "/run/netns/a1"}
	thaw, err := f.freeze()
	if err != nil {
		return err
	}
	defer func() { _ = thaw() }() // Whoever has done so hears about it.
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	if err := os.Remove(fmt.Sprintf("/proc/%d/root/var/lib/fairlead/world.checkpoint", r.Pid)); err != nil {
		return err
	}
	refused := func(command string, code int, thing string) {
		ctx, cancel := context.WithTimeout(ctx, sentenceBound)
		defer cancel()
		var got cniAnswer
		err := poll(ctx, 200*time.Millisecond, func() (err error) {
			got, err = f.cni(node, command, pod)
			if now, e := f.agent(node); e != nil || now == pid {
				return errors.Join(e, errors.New("the agent has not been started again"))
			}
			if err == nil && (got.Code != code || strings.Contains(got.Msg+got.Details, "is not running")) {
				err = fmt.Errorf("%s is answered with code %d: %s %s", command, got.Code, got.Msg, got.Details)
			}
			return err
		})
		f.check(fmt.Sprintf("%s of %s is refused with code %d: %s %s", command, thing, code, got.Msg, got.Details), err)
	}
	refused("STATUS", 50, "an agent without a world")
	refused("ADD", 11, "an agent without a world")
	if err := thaw(); err != nil {
		return err
	}
	back := time.Now()
	for _, command := range []string{"STATUS", "ADD", "DEL"} {
		err := f.soon(ctx, func() error {
			got, err := f.cni(node, command, pod)
			if err == nil && got.Code != 0 {
				err = fmt.Errorf("code %d: %s %s", got.Code, got.Msg, got.Details)
			}
			return err
		})
		f.check(fmt.Sprintf("the API server is back: %s succeeds after %d ms", command, time.Since(back).Milliseconds()), err)
	}
	_, err = f.inside(node, "", "ip", "netns", "del", "a1")
	return err
}

// deletedBlindly: DEL comes while the API server is away and the agent's token has expired
// (A2). It succeeds from the local record, as often as it is asked for, and the address is
// free when the agent may write again.
func (f *faulty) deletedBlindly(ctx context.Context) error {
	node := nodeName(1)
	if err := f.apply(ctx, podManifest("blind", node)); err != nil {
		return err
	}
	if err := f.podReady(ctx, "blind"); err != nil {
		return err
	}
	pod, err := f.recordOf(node, "blind")
	if err != nil {
		return err
	}
	if err := f.invalidateTokens(ctx); err != nil {
		return err
	}
	thaw, err := f.freeze()
	if err != nil {
		return err
	}
	defer func() { _ = thaw() }() // Whoever has done so hears about it.
	for _, what := range []string{"the local record", "nothing, once more"} {
		start := time.Now()
		got, err := f.cni(node, "DEL", pod)
		if err == nil && got.Code != 0 {
			err = fmt.Errorf("code %d: %s %s", got.Code, got.Msg, got.Details)
		}
		f.check(fmt.Sprintf("API server away, token expired: DEL of %s succeeds after %d ms", what, time.Since(start).Milliseconds()), err)
	}
	if err := thaw(); err != nil {
		return err
	}
	uid, err := f.settledAllocation(ctx, pod.Addresses[0])
	if err == nil && uid != pod.Owner.UID {
		err = fmt.Errorf("it is allocated to %q", uid)
	}
	f.check("the address stays allocated while the agent may not write", err)
	if err := f.deletePod(ctx, "blind"); err != nil {
		return err
	}
	renewed := time.Now()
	if err := f.renewToken(ctx, node); err != nil {
		return err
	}
	err = f.soon(ctx, func() error {
		uid, err := f.allocated(ctx, pod.Addresses[0])
		if err == nil && uid != "" {
			err = fmt.Errorf("%s is allocated to %s", pod.Addresses[0], uid)
		}
		return err
	})
	f.check(fmt.Sprintf("the token is renewed: the address is free after %d ms", time.Since(renewed).Milliseconds()), err)
	return f.restartAgents(ctx)
}

// settledAllocation asks an API server that has just been let go on.
func (f *faulty) settledAllocation(ctx context.Context, a netip.Addr) (uid string, err error) {
	err = poll(ctx, 200*time.Millisecond, func() error {
		uid, err = f.allocated(ctx, a)
		return err
	})
	return uid, err
}

// restartAgents gives every node a new agent, whose kubelet has no reason to wait with it.
func (f *faulty) restartAgents(ctx context.Context) error {
	return f.restart(ctx, "daemonset/fairlead-agent")
}

// agentDiesAfterAdd: ADD is answered, the pod's status is not written yet, and the agent is
// restarted (A8). The address stays the pod's.
func (f *faulty) agentDiesAfterAdd(ctx context.Context) error {
	node := nodeName(1)
	pid, err := f.agent(node)
	if err != nil {
		return err
	}
	before, err := f.records(node)
	if err != nil {
		return err
	}
	if err := f.apply(ctx, podManifest("answered", node)); err != nil {
		return err
	}
	var pod attachment
	err = poll(ctx, time.Millisecond, func() (err error) {
		pod, err = f.recordOf(node, "answered")
		return err
	})
	if err != nil {
		return err
	}
	thaw, err := f.freeze()
	if err != nil {
		return err
	}
	defer func() { _ = thaw() }() // Whoever has done so hears about it.
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	if err := poll(ctx, 100*time.Millisecond, func() error {
		if now, err := f.agent(node); err != nil || now == pid {
			return errors.Join(err, errors.New("the agent has not been started again"))
		}
		return nil
	}); err != nil {
		return err
	}
	if err := thaw(); err != nil {
		return err
	}
	if err := f.agentIsBack(ctx, node, pid); err != nil {
		return err
	}
	// Others would take an address that was freed: the lowest free one is given.
	others := ""
	for i := range 5 {
		others += podManifest(fmt.Sprintf("other%d", i), node)
	}
	if err := poll(ctx, time.Second, func() error { return f.apply(ctx, others) }); err != nil {
		return err
	}
	if _, err := f.kubectl(ctx, nil, "-n", faultsNamespace, "wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s"); err != nil {
		return err
	}
	uid, err := f.allocated(ctx, pod.Addresses[0])
	if err == nil && uid != pod.Owner.UID {
		err = fmt.Errorf("%s is allocated to %q, not to the pod", pod.Addresses[0], uid)
	}
	f.check("the agent dies between ADD's answer and the pod's status: the address stays allocated", err)
	ip, err := f.kubectl(ctx, nil, "-n", faultsNamespace, "get", "pod", "answered", "-o", "jsonpath={.status.podIP}")
	if err == nil && ip != pod.Addresses[0].String() {
		err = fmt.Errorf("the pod has %s, ADD answered %s", ip, pod.Addresses[0])
	}
	f.check("and the pod is Ready with it", err)
	if _, err := f.kubectl(ctx, nil, "-n", faultsNamespace, "delete", "pod", "answered", "other0", "other1", "other2", "other3", "other4", "--timeout=60s"); err != nil {
		return err
	}
	err = f.soon(ctx, func() error {
		now, err := f.records(node)
		if err == nil && len(now) > len(before) {
			err = fmt.Errorf("%d records, before there were %d", len(now), len(before))
		}
		return err
	})
	f.check("deleted, they leave no record", err)
	return nil
}

// sameNames: fifty pods are deleted and made again under the same names at once (A12).
func (f *faulty) sameNames(ctx context.Context) error {
	const pods, rounds = 50, 3
	a, err := f.api()
	if err != nil {
		return err
	}
	all := func(do func(ctx context.Context, name, node string) error) error {
		g, ctx := errgroup.WithContext(ctx)
		for i := range pods {
			g.Go(func() error { return do(ctx, fmt.Sprintf("same%d", i), nodeName(i%f.Nodes+1)) })
		}
		return g.Wait()
	}
	create := func(ctx context.Context, name, node string) error {
		return a.createPod(ctx, faultsNamespace, name, node, "registry.k8s.io/pause:3.10")
	}
	if err := all(create); err != nil {
		return err
	}
	before, err := f.addTimes(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	for range rounds {
		// Some of the last round are not Ready yet, or have not even been begun.
		if err := all(func(ctx context.Context, name, node string) error {
			resp, err := a.do(ctx, http.MethodDelete, "namespaces/"+faultsNamespace+"/pods/"+name+"?gracePeriodSeconds=0", nil)
			if err != nil {
				return err
			}
			return errors.Join(resp.Body.Close(), create(ctx, name, node))
		}); err != nil {
			return err
		}
	}
	_, err = f.kubectl(ctx, nil, "-n", faultsNamespace, "wait", "pod", "--all", "--for=condition=Ready", "--timeout=180s")
	f.check(fmt.Sprintf("%d pods deleted and made again %d times under the same names: all Ready after %.1f s", pods, rounds, time.Since(start).Seconds()), err)
	after, err := f.addTimes(ctx)
	if err != nil {
		return err
	}
	add := after.minus(before)
	slowest := time.Duration(add.quantile(1) * float64(time.Second))
	if slowest > addBound {
		err = fmt.Errorf("want at most %s", addBound)
	}
	f.check(fmt.Sprintf("%.0f ADDs: p50 ≤ %.0f ms, p99 ≤ %.0f ms, the slowest ≤ %.0f ms", add.count, 1000*add.quantile(0.5), 1000*add.quantile(0.99), 1000*add.quantile(1)), err)
	f.check("each has the attachment of its own UID, and nothing else is left", f.soon(ctx, func() error { return f.attachedOnce(ctx) }))
	return all(func(ctx context.Context, name, _ string) error {
		resp, err := a.do(ctx, http.MethodDelete, "namespaces/"+faultsNamespace+"/pods/"+name+"?gracePeriodSeconds=0", nil)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
}

// attachedOnce compares the pods that are there with the records and the blocks.
func (f *faulty) attachedOnce(ctx context.Context) error {
	var pods struct {
		Items []struct {
			Metadata struct{ Name, UID string }
			Status   struct{ PodIP string }
		}
	}
	if err := f.get(ctx, &pods, "-n", faultsNamespace, "pods"); err != nil {
		return err
	}
	have := map[string]attachment{}
	for i := 1; i <= f.Nodes; i++ {
		all, err := f.records(nodeName(i))
		if err != nil {
			return err
		}
		for _, r := range all {
			if r.Owner.Namespace == faultsNamespace {
				have[r.Owner.UID] = r
			}
		}
	}
	var errs []error
	for _, p := range pods.Items {
		r, ok := have[p.Metadata.UID]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("pod %s has no record", p.Metadata.Name))
		case r.Addresses[0].String() != p.Status.PodIP:
			errs = append(errs, fmt.Errorf("pod %s has %s, its record %s", p.Metadata.Name, p.Status.PodIP, r.Addresses[0]))
		}
	}
	if len(have) > len(pods.Items) {
		errs = append(errs, fmt.Errorf("there are %d records of %d pods", len(have), len(pods.Items)))
	}
	return errors.Join(errs...)
}
