package cli

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

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

// A check that disagrees looks again for some seconds: long enough for what is being taken over,
// and not many times three seconds for packets that are dropped.
func TestCheckLooksAgain(t *testing.T) {
	for _, tt := range []struct {
		name     string
		took     time.Duration // a look
		right    int           // the look that agrees, 0 for none
		looks    int
		settled  int
		at, most time.Duration // of all
	}{
		{"all is well", time.Second, 1, 1, 0, time.Second, time.Second},
		{"a moment later", time.Second, 3, 3, 2, 4 * time.Second, 4 * time.Second},
		{"never, answers come at once", 10 * time.Millisecond, 0, 13, 0, settleFor, 7 * time.Second},
		{"never, packets are dropped", 3 * time.Second, 0, 2, 0, settleFor, 7 * time.Second},
		{"never, and a look takes long", 20 * time.Second, 0, 2, 0, 40 * time.Second, 41 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			looks := 0
			began := time.Now()
			r, err := settle(t.Context(), func() (*lab.CheckResult, error) {
				looks++
				r := &lab.CheckResult{Probes: 2, Seconds: tt.took.Seconds()}
				if looks == 1 {
					time.Sleep(5 * time.Second) // for pods
				}
				time.Sleep(tt.took)
				if looks != tt.right {
					r.Disagree = make([]lab.Finding, 2)
				}
				return r, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(began) - 5*time.Second
			if looks != tt.looks || r.Settled != tt.settled || took < tt.at || took > tt.most {
				t.Errorf("%s: %d looks in %s, %d settled; want %d looks in %s, %d settled", tt.name, looks, took, r.Settled, tt.looks, tt.at, tt.settled)
			}
		})
	}
}
