package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// Node is what the controller keeps of a Node object.
type Node struct {
	UID types.UID
	// Network is its condition NetworkUnavailable, nil if it has none.
	Network *corev1.NodeCondition
}

// NodeOf keeps what is needed.
func NodeOf(o *corev1.Node) Node {
	n := Node{UID: o.UID}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			n.Network = &c
		}
	}
	return n
}

// Same tells whether two have the same to say.
func (n Node) Same(o Node) bool {
	return n.UID == o.UID && (n.Network == nil) == (o.Network == nil) && (n.Network == nil || sameCondition(*n.Network, *o.Network))
}

func sameCondition(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// describeNodes says of every node that has told how its network is whether it is
// available. A node that has told nothing keeps what others say of it.
func (p *planner) describeNodes() {
	for n := range p.snap.NodeNetworks.Values() {
		o := p.Objects.NodeNetworks[n.Name]
		node, ok := p.Objects.Nodes[n.Name]
		if o == nil || !ok || !p.nodeExists(n.Name) {
			continue
		}
		ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status == metav1.ConditionUnknown {
			continue
		}
		now := metav1.NewTime(p.Now.UTC().Truncate(time.Second))
		want := corev1.NodeCondition{
			Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "FairleadReady",
			Message: "the node's data plane is ready", LastTransitionTime: now, LastHeartbeatTime: now,
		}
		if ready.Status == metav1.ConditionFalse {
			want.Status, want.Reason, want.Message = corev1.ConditionTrue, "FairleadNotReady", cut(ready.Message, maxMessage)
		}
		if have := node.Network; have != nil {
			if sameCondition(*have, want) {
				continue
			}
			if have.Status == want.Status {
				want.LastTransitionTime = have.LastTransitionTime
			}
		}
		p.write(Write{
			Action: SetCondition, Ref: Ref{Kind: datastore.KindNode, Key: datastore.Key{Name: n.Name}, UID: node.UID},
			Condition: want, Why: "its NodeNetwork says otherwise",
		})
	}
}
