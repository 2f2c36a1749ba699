package cli

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairlead-sdn/fairlead/lab"
)

const outsideCluster = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 172.30.0.11}]}
---
apiVersion: fairlead.dev/v1alpha1
kind: NodeNetwork
metadata: {name: n1}
spec: {addresses: [172.30.0.11/24]}
---
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: default}
status: {vni: 1}
---
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: default}
spec: {vpc: default, cidrs: [10.128.0.0/16], transport: Overlay, encapsulation: VXLAN, natOutgoing: %v}
---
apiVersion: fairlead.dev/v1alpha1
kind: IPBlock
metadata: {name: default.0a800000-26}
spec: {subnet: default, cidr: 10.128.0.0/26, node: n1, allocations: {10.128.0.2: {namespace: shop, name: web}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {nodeName: n1, containers: [{name: c, image: any}]}
status: {phase: Running, podIP: 10.128.0.2, podIPs: [{ip: 10.128.0.2}]}
`

// The outside host answers a pod only if its node masquerades: without, no answer is
// neither right nor wrong.
func TestJudgeOutside(t *testing.T) {
	for _, nat := range []bool{true, false} {
		c := newCluster(t)
		c.load(fmt.Sprintf(outsideCluster, nat))
		snap, err := readWorld(t.Context(), c.store)
		if err != nil {
			t.Fatal(err)
		}
		expected, why, known := judge(snap)(lab.Probe{
			From: "shop/web", To: "outside", Protocol: "TCP", Port: 80,
			Source: netip.MustParseAddr("10.128.0.2"), Target: netip.MustParseAddr("203.0.113.10"),
		})
		if !expected || known != nat {
			t.Errorf("natOutgoing %v: expected %v, known %v: %s", nat, expected, known, why)
		}
	}
}
