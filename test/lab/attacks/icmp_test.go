package attacks

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// tooBig is the ICMP error that lowers the MTU of a path: about the packet inner.
func tooBig(src, dst netip.Addr, inner []byte) []byte {
	if src.Is4() {
		return ip(src, dst, protoICMP, icmp(src, dst, 3, 4, 600, inner))
	}
	return ip(src, dst, protoICMPv6, icmp(src, dst, 2, 0, 1280, inner))
}

// TestScenarioS6ForgedErrors: a pod speaks in its own name of flows that are not its
// own, to make others' paths narrow or dead.
func TestScenarioS6ForgedErrors(t *testing.T) {
	a := newArena(t)
	from, victim, taps := a.place(mallory).inject(t), a.place(near).inject(t), a.watchers()
	for _, is4 := range []bool{true, false} {
		own, v, remote := a.addr(mallory, is4), a.addr(near, is4), a.addr(far, is4)
		// A flow of the victims, which the node's conntrack knows.
		a.arrives(victim, func(k token) []byte { return victim.fromPod(v, remote, forgedPort, k) }, taps[far], "the victims' flow does not run")
		about := func(src, dst netip.Addr, dport uint16) func(token) [][]byte {
			return func(k token) [][]byte {
				to := src // an error goes to whoever sent
				inner := ip(src, dst, protoUDP, udp(src, dst, 40000, dport, []byte(k)))
				return [][]byte{frame(claims.GatewayMAC, from.mac, tooBig(own, to, inner))}
			}
		}
		node1, node2 := a.addr("node-1", is4), a.addr("node-2", is4)
		a.repel(from, func(k token) []byte { return from.fromPod(own, v, forgedPort, k) }, near, []attack{
			{name: "about a flow of two others", frames: about(v, remote, forgedPort), node: "node-1", reason: reasonICMP},
			{name: "about the same flow, to the other end", frames: about(remote, v, 40000), node: "node-1", reason: reasonICMP},
			{name: "about a flow that does not exist", frames: about(v, remote, 9), node: "node-1", reason: reasonICMP},
			{name: "about the tunnel", frames: about(node1, node2, claims.VXLANPort), node: "node-1", reason: reasonICMP},
			{name: "about a flow of the node", frames: about(node1, node2, 6443), node: "node-1", reason: reasonICMP},
		})
		// Its own errors arrive: nobody listens on the port, and the answer quotes the
		// token.
		for _, who := range []string{near, far, "node-1"} {
			where, src := victim, v
			if who == far {
				where, src = a.place(far).inject(t), remote
			}
			if who == "node-1" {
				labtest.Eventually(t, 5*time.Second, func() error {
					k := a.mint.Next()
					out := a.Exec("node-1", "bash", "-c", fmt.Sprintf("echo -n %s > /dev/udp/%s/%d", k, own, forgedPort))
					if count(taps[who], k) == 0 {
						return fmt.Errorf("the node does not hear that a port of the pod is closed: %s", out)
					}
					return nil
				})
				continue
			}
			a.arrives(where, func(k token) []byte { return where.fromPod(src, own, forgedPort, k) }, taps[who], who+" does not hear that a port is closed")
		}
	}
}
