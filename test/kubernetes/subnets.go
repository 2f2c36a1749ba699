package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	loneNamespace = "lone"
	loneTenant    = "lone-tenant"
)

const loneManifest = `apiVersion: v1
kind: Namespace
metadata: {name: ` + loneNamespace + `, labels: {lone: "yes"}}
---
apiVersion: v1
kind: Namespace
metadata: {name: ` + loneTenant + `, labels: {lone: "yes"}}
---
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: ` + loneNamespace + `}
spec: {isolation: Tenant, namespaces: {matchLabels: {lone: "yes"}}}
---
apiVersion: fairlead.dev/v1alpha1
kind: NetNamespace
metadata: {name: ` + loneNamespace + `}
spec: {vni: 9000002}
`

// loneSubnet is for a VPC that had none.
const loneSubnet = `apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: lone}
spec: {vpc: ` + loneNamespace + `, cidrs: [10.250.0.0/24]}
`

// overlappingSubnet holds the addresses of Services.
const overlappingSubnet = `apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: overlapping}
spec: {vpc: ` + loneNamespace + `, cidrs: [10.96.0.0/20]}
`

// statusSays waits until "fairlead status" prints something. It exits with 1 when it has
// something to tell.
func (f *faulty) statusSays(ctx context.Context, want string) error {
	return f.soon(ctx, func() error {
		out, _ := f.text(ctx, f.fairlead, "--kubeconfig", f.kubeconfig("admin"), "status")
		for line := range strings.Lines(out) {
			if strings.Contains(line, want) {
				fmt.Fprintf(f.w, "     %s", line)
				return nil
			}
		}
		return fmt.Errorf("fairlead status says:\n%s", out)
	})
}

// wrongSubnets: nodes without a podCIDR, and a namespace without a Subnet: the pod's events
// say so, and it runs when there is one. A Subnet in the range of Services is told.
func (f *faulty) wrongSubnets(ctx context.Context) (err error) {
	defer func() {
		// The Subnets go when no pod has an address of theirs.
		for _, what := range []string{"namespace/" + loneNamespace, "namespace/" + loneTenant, "subnet/lone", "subnet/overlapping", "vpc/" + loneNamespace} {
			if _, e := f.kubectl(context.WithoutCancel(ctx), nil, "delete", what, "--ignore-not-found", "--timeout=60s"); err == nil {
				err = e
			}
		}
	}()
	if err := f.apply(ctx, loneManifest); err != nil {
		return err
	}
	pod := strings.ReplaceAll(podManifest("lone", nodeName(1)), "namespace: "+faultsNamespace, "namespace: "+loneNamespace)
	if err := f.soon(ctx, func() error { return f.apply(ctx, pod) }); err != nil {
		return err
	}
	f.check("no podCIDR and no Subnet: the pod's events tell what is missing", f.says(ctx, "has no Subnet",
		"-n", loneNamespace, "get", "events", "--field-selector", "involvedObject.name=lone", "-o", "jsonpath={.items[*].message}"))
	if err := f.apply(ctx, loneSubnet); err != nil {
		return err
	}
	_, err = f.kubectl(ctx, nil, "-n", loneNamespace, "wait", "pod", "lone", "--for=condition=Ready", "--timeout=120s")
	f.check("a Subnet is made: the pod is Ready by itself", err)
	if err := f.apply(ctx, overlappingSubnet); err != nil {
		return err
	}
	f.check("a Subnet in the range of Services says so in its conditions", f.says(ctx, "10.96.0.0/20 overlaps the range",
		"get", "subnet", "overlapping", "-o", `jsonpath={.status.conditions[?(@.type=="Warnings")].message}`))
	f.check("a Subnet that holds the addresses of Services is told by fairlead status", f.statusSays(ctx, "ServiceRange"))
	if _, err := f.kubectl(ctx, nil, "delete", "subnet/overlapping", "--timeout=60s"); err != nil {
		return err
	}
	f.check("it is deleted: fairlead status tells nothing of it", f.soon(ctx, func() error {
		if out, _ := f.text(ctx, f.fairlead, "--kubeconfig", f.kubeconfig("admin"), "status"); strings.Contains(out, "ServiceRange") {
			return fmt.Errorf("fairlead status says:\n%s", out)
		}
		return nil
	}))
	f.check("a NetNamespace that was made beforehand belongs to its Namespace", f.says(ctx, "Namespace/"+loneNamespace,
		"get", "netnamespace", loneNamespace, "-o", "jsonpath={.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}"))
	f.check("the other Namespace of a VPC that isolates tenants has got one", f.says(ctx, "Namespace/"+loneTenant,
		"get", "netnamespace", loneTenant, "-o", "jsonpath={.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}"))
	return f.subnetGoes(ctx)
}

// subnetGoes: a Subnet is deleted after its last pod, and its blocks go with it.
func (f *faulty) subnetGoes(ctx context.Context) error {
	for _, what := range []string{"namespace/" + loneNamespace, "subnet/lone"} {
		if _, err := f.kubectl(ctx, nil, "delete", what, "--timeout=60s"); err != nil {
			return err
		}
	}
	f.check("a Subnet is deleted: so are its blocks", f.soon(ctx, func() error {
		all, err := f.blocks(ctx)
		if err == nil && slices.ContainsFunc(all, func(b ipBlock) bool { return b.Spec.Subnet == "lone" }) {
			err = errors.New("there are blocks of it")
		}
		return err
	}))
	return nil
}
