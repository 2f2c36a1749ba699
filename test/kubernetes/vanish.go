package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const lenderNamespace = "lender"

// vanishBound is how long what a vanished node has left may stay: the kubelet's pods are
// collected first, and then there is the controller's grace of a minute and a half.
const vanishBound = 4 * time.Minute

// lenderManifest is a VPC whose Subnet is one block: nodes that come later borrow of it. And
// there is a NetNamespace that belongs to nothing.
const lenderManifest = `apiVersion: v1
kind: Namespace
metadata: {name: ` + lenderNamespace + `, labels: {lender: "yes"}}
---
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: ` + lenderNamespace + `}
spec: {namespaces: {matchLabels: {lender: "yes"}}}
---
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: ` + lenderNamespace + `}
spec: {vpc: ` + lenderNamespace + `, cidrs: [10.251.0.0/29], blockSize: {v4: 29}, transport: Routed}
---
apiVersion: fairlead.dev/v1alpha1
kind: NetNamespace
metadata: {name: of-nothing}
spec: {vni: 9000001}
`

// ipBlock is what is read of an IPBlock.
type ipBlock struct {
	Metadata struct{ Name string }
	Spec     struct {
		Subnet, Node string
		Lent         map[string]string
	}
}

func (f *faulty) blocks(ctx context.Context) ([]ipBlock, error) {
	var all struct{ Items []ipBlock }
	err := f.get(ctx, &all, "ipblocks")
	return all.Items, err
}

// lentTo waits until the lender's block has lent an address to a node, or with an empty name
// to none.
func (f *faulty) lentTo(ctx context.Context, node string) error {
	return f.soon(ctx, func() error {
		all, err := f.blocks(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(b ipBlock) bool { return b.Spec.Subnet == lenderNamespace })
		if i < 0 {
			return errors.New("the Subnet has no block")
		}
		for _, to := range all[i].Spec.Lent {
			if to == node {
				return nil
			}
		}
		if node != "" || len(all[i].Spec.Lent) > 0 {
			return fmt.Errorf("block %s has lent %v", all[i].Metadata.Name, all[i].Spec.Lent)
		}
		return nil
	})
}

// lenderPod makes a pod of the lender's VPC, and waits for it.
func (f *faulty) lenderPod(ctx context.Context, name, node string) error {
	pod := strings.ReplaceAll(podManifest(name, node), "namespace: "+faultsNamespace, "namespace: "+lenderNamespace)
	if err := f.soon(ctx, func() error { return f.apply(ctx, pod) }); err != nil {
		return err
	}
	_, err := f.kubectl(ctx, nil, "-n", lenderNamespace, "wait", "pod", name, "--for=condition=Ready", "--timeout=120s")
	return err
}

// nodeVanishes: a node lends an address, gets it back, lends one again, and its Node object
// is deleted (A6). What it has left is freed, but not what a living pod has of it.
func (f *faulty) nodeVanishes(ctx context.Context) (err error) {
	if f.Nodes < 3 {
		return errors.New("it needs three nodes")
	}
	lender, borrower := nodeName(f.Nodes), nodeName(1)
	defer func() {
		for _, what := range []string{"namespace/" + lenderNamespace, "subnet/" + lenderNamespace, "vpc/" + lenderNamespace, "netnamespace/of-nothing"} {
			_, e := f.kubectl(context.WithoutCancel(ctx), nil, "delete", what, "--ignore-not-found", "--timeout=60s")
			err = errors.Join(err, e)
		}
	}()
	if err := f.apply(ctx, lenderManifest); err != nil {
		return err
	}
	if err := f.lenderPod(ctx, "owner", lender); err != nil {
		return err
	}
	for _, guest := range []string{"guest", "last"} {
		err := f.lenderPod(ctx, guest, borrower)
		f.check("a node that finds no free block borrows an address: pod "+guest, errors.Join(err, f.lentTo(ctx, borrower)))
		if guest == "last" {
			break
		}
		if _, err := f.kubectl(ctx, nil, "-n", lenderNamespace, "delete", "pod", guest, "--timeout=60s"); err != nil {
			return err
		}
		deleted := time.Now()
		err = f.lentTo(ctx, "")
		f.check(fmt.Sprintf("its pod is deleted: the address is taken back after %.0f s", time.Since(deleted).Seconds()), err)
	}
	if _, err := f.kubectl(ctx, nil, "delete", "node", lender); err != nil {
		return err
	}
	if err := f.collected(ctx, lender); err != nil {
		return err
	}
	return f.nodeReturns(ctx, lender)
}

// collected waits until nothing is left of a node that has vanished.
func (f *faulty) collected(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, vanishBound)
	defer cancel()
	vanished := time.Now()
	left := func(want ...string) func() error {
		return func() error {
			all, err := f.blocks(ctx)
			if err != nil {
				return err
			}
			var have []string
			for _, b := range all {
				if b.Spec.Node == node {
					have = append(have, b.Spec.Subnet)
				}
			}
			networks, err := f.kubectl(ctx, nil, "get", "nodenetworks", "-o", "jsonpath={.items[*].metadata.name}")
			if err == nil && (!slices.Equal(have, want) || slices.Contains(strings.Fields(networks), node)) {
				err = fmt.Errorf("it has blocks of the Subnets %q; there are the NodeNetworks %s", have, networks)
			}
			return err
		}
	}
	err := poll(ctx, time.Second, left(lenderNamespace))
	f.check(fmt.Sprintf("a node has vanished: after %.0f s its NodeNetwork is gone, and its blocks but that of which a living pod has an address", time.Since(vanished).Seconds()), err)
	f.check("an Event tells why that is kept", f.says(ctx, "has borrowed", "get", "events", "-A", "-o", `jsonpath={.items[?(@.reason=="HeldByLivingPod")].message}`))
	if _, err := f.kubectl(ctx, nil, "-n", lenderNamespace, "delete", "pod", "last", "--timeout=60s"); err != nil {
		return err
	}
	deleted := time.Now()
	err = poll(ctx, time.Second, left())
	f.check(fmt.Sprintf("the pod is deleted: the block is gone after %.0f s", time.Since(deleted).Seconds()), err)
	f.check("a NetNamespace that belongs to nothing is gone", poll(ctx, time.Second, func() error {
		out, err := f.kubectl(ctx, nil, "get", "netnamespaces", "-o", "name")
		if err == nil && strings.Contains(out, "of-nothing") {
			err = fmt.Errorf("there are %q", out)
		}
		return err
	}))
	return nil
}

// nodeReturns starts the kubelet of a node anew: it makes its Node object.
func (f *faulty) nodeReturns(ctx context.Context, node string) error {
	pid, err := f.daemon(node, "kubelet")
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill the kubelet of %s: %w", node, err)
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, vanishBound)
	defer cancel()
	err = poll(ctx, time.Second, func() error {
		_, err := f.kubectl(ctx, nil, "wait", "node", node, "--for=condition=Ready", "--timeout=120s")
		return err
	})
	if err == nil {
		err = f.lenderPod(ctx, "again", node)
	}
	f.check(fmt.Sprintf("the node returns: it is Ready, and so is a pod on it, after %.0f s", time.Since(start).Seconds()), err)
	return err
}
