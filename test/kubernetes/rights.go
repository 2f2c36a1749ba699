package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Faults in which the accounts use rights that they need seldom.

const (
	clusterPolicies = "clusternetworkpolicies.policy.networking.k8s.io"
	// eventBound is how long an Event may take to change: it does so once a minute.
	eventBound = 2 * time.Minute
)

const clusterPolicyManifest = `apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: faults}
spec:
  tier: Admin
  priority: 900
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: ` + faultsNamespace + `}}}
  egress: [{name: documentation, action: Deny, to: [{networks: ["203.0.113.0/24"]}]}]
`

// namedPort is a policy about a port that no pod has.
func namedPort(port string) string {
	return `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: named, namespace: ` + faultsNamespace + `}
spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{ports: [{port: ` + port + `}]}]}
`
}

// oldEvent is one that an earlier controller has left, on an API server that keeps Events
// for longer than they are of use.
func oldEvent() string {
	long := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
	return `apiVersion: v1
kind: Event
metadata: {name: old, namespace: ` + faultsNamespace + `}
involvedObject: {kind: Pod, namespace: ` + faultsNamespace + `, name: b}
reason: Old
message: long over
type: Warning
source: {component: fairlead-controller}
reportingComponent: fairlead-controller
firstTimestamp: ` + long + `
lastTimestamp: ` + long + `
count: 1
`
}

// policiesAreTold: ClusterNetworkPolicies are installed while all runs, and get their
// conditions; what is wrong with a NetworkPolicy is told by an Event, that changes with it.
func (f *faulty) policiesAreTold(ctx context.Context) error {
	crd := filepath.Join(f.src("network-policy-api"), "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml")
	if _, err := f.kubectl(ctx, nil, "apply", "--server-side", "-f", crd); err != nil {
		return err
	}
	if err := f.soon(ctx, func() error { return f.apply(ctx, clusterPolicyManifest) }); err != nil {
		return err
	}
	f.check("ClusterNetworkPolicies are installed: one has our conditions", f.says(ctx, "True",
		"get", clusterPolicies, "faults", "-o", `jsonpath={.status.conditions[?(@.type=="fairlead.dev/Ready")].status}`))
	if _, err := f.kubectl(ctx, nil, "delete", clusterPolicies, "faults", "--timeout=60s"); err != nil {
		return err
	}
	if err := f.apply(ctx, oldEvent()); err != nil {
		return err
	}
	if err := f.restart(ctx, "deployment/fairlead-controller"); err != nil {
		return err
	}
	f.check("another controller leads: an Event of a problem that is long over is gone", f.soon(ctx, func() error {
		out, err := f.kubectl(ctx, nil, "-n", faultsNamespace, "get", "events", "old", "--ignore-not-found", "-o", "name")
		if err == nil && out != "" {
			err = errors.New("it is still there")
		}
		return err
	}))
	return f.eventChanges(ctx)
}

// eventChanges: somebody else has changed the Event meanwhile.
func (f *faulty) eventChanges(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, eventBound)
	defer cancel()
	ours := func(path string) []string {
		return []string{"-n", faultsNamespace, "get", "events", "--field-selector", "involvedObject.name=named,reason=UnresolvedPort", "-o", "jsonpath={.items[*]." + path + "}"}
	}
	if err := f.apply(ctx, namedPort("nosuch")); err != nil {
		return err
	}
	f.check("a policy is about a port that no pod has: an Event tells", f.says(ctx, "nosuch", ours("message")...))
	name, err := f.kubectl(ctx, nil, ours("metadata.name")...)
	if err != nil {
		return err
	}
	if _, err := f.kubectl(ctx, nil, "-n", faultsNamespace, "annotate", "event", strings.TrimSpace(name), "seen=yes"); err != nil {
		return err
	}
	if err := f.apply(ctx, namedPort("another")); err != nil {
		return err
	}
	err = poll(ctx, time.Second, func() error {
		out, err := f.kubectl(ctx, nil, ours("message")...)
		if err == nil && !strings.Contains(out, "another") {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
	f.check("the policy is changed: so is the Event, which somebody has annotated meanwhile", err)
	_, err = f.kubectl(ctx, nil, "-n", faultsNamespace, "delete", "networkpolicy", "named")
	return err
}

// nodeChanges: the MTU of a node changes, and a runtime asks for a pod that nobody knows.
func (f *faulty) nodeChanges(ctx context.Context) error {
	node := nodeName(2)
	mtu := func() (string, error) {
		return f.kubectl(ctx, nil, "get", "nodenetwork", node, "-o", "jsonpath={.spec.mtu}")
	}
	before, err := mtu()
	if err != nil {
		return err
	}
	for _, want := range []string{"1400", before} {
		if _, err := f.inside(node, "", "ip", "link", "set", "dev", "eth0", "mtu", want); err != nil {
			return err
		}
		f.check("the MTU of a node's network changes: its NodeNetwork says "+want, f.soon(ctx, func() error {
			now, err := mtu()
			if err == nil && now != want {
				err = fmt.Errorf("it says %s", now)
			}
			return err
		}))
	}
	if _, err := f.inside(node, "", "ip", "netns", "add", "nobody"); err != nil {
		return err
	}
	nobody := attachment{Container: strings.Repeat("d0", 32), Interface: "eth0", Netns: "/run/netns/nobody"}
	nobody.Owner.Namespace, nobody.Owner.Name, nobody.Owner.UID = faultsNamespace, "nobody", "00000000-0000-4000-8000-000000000000"
	got, err := f.cni(node, "ADD", nobody)
	if err == nil && (got.Code != 11 || !strings.Contains(got.Msg+got.Details, "no such pod")) {
		err = errors.New("want code 11 and that there is no such pod")
	}
	f.check(fmt.Sprintf("ADD of a pod that does not exist is refused with code %d: %s %s", got.Code, got.Msg, got.Details), err)
	_, err = f.inside(node, "", "ip", "netns", "del", "nobody")
	return err
}

// withoutStreaming: the API server does not stream lists, as those of 1.33 do by default.
func (f *faulty) withoutStreaming(ctx context.Context) error {
	// Whatever fails, an API server that is started again later is as before.
	defer func() { _ = os.WriteFile(f.apiServerExtra(), nil, 0o600) }()
	for _, flags := range []string{"--feature-gates=WatchList=false", ""} {
		if err := os.WriteFile(f.apiServerExtra(), []byte(flags), 0o600); err != nil {
			return err
		}
		if err := f.restartAPIServer(ctx); err != nil {
			return err
		}
		if err := errors.Join(f.restartAgents(ctx), f.restart(ctx, "deployment/fairlead-controller")); err != nil {
			return err
		}
		if flags == "" {
			break
		}
		err := f.apply(ctx, podManifest("listed", nodeName(1)))
		if err == nil {
			err = f.podReady(ctx, "listed")
		}
		f.check("the API server streams no lists: new agents and a new controller read them, and a pod is Ready", err)
		if err := f.deletePod(ctx, "listed"); err != nil {
			return err
		}
	}
	return nil
}

// restartAPIServer kills it, and waits for the one that its machine starts again.
func (f *faulty) restartAPIServer(ctx context.Context) error {
	pid, err := f.daemon("control", "kube-apiserver")
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill the API server: %w", err)
	}
	return poll(ctx, 500*time.Millisecond, func() error {
		_, err := f.kubectl(ctx, nil, "get", "--raw", "/readyz")
		return err
	})
}

// restart replaces the pods of a DaemonSet or Deployment of ours.
func (f *faulty) restart(ctx context.Context, what string) error {
	for _, args := range [][]string{{"restart", what}, {"status", what, "--timeout=120s"}} {
		if _, err := f.kubectl(ctx, nil, append([]string{"-n", "kube-system", "rollout"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}
