package world

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestStoreRevision(t *testing.T) {
	node := func(uid string) *Node { return &Node{Name: "n1", UID: uid} }
	key := Key{Name: "n1"}
	for _, tt := range []struct {
		name    string
		change  Change
		content bool // bumps the revision and wakes
		moved   bool // the position alone
	}{
		{name: "nothing", change: Change{}},
		{name: "an object", change: Change{Kind: KindNode, Key: key, Object: node("b")}, content: true},
		{name: "the same object", change: Change{Kind: KindNode, Key: key, Object: node("a")}},
		{name: "the same object, further on", change: Change{Kind: KindNode, Key: key, Object: node("a"), ResourceVersion: "9"}, moved: true},
		{name: "removal", change: Change{Kind: KindNode, Key: key}, content: true},
		{name: "removal of nothing", change: Change{Kind: KindNode, Key: Key{Name: "n2"}}},
		{name: "a bookmark", change: Change{Kind: KindNode, ResourceVersion: "9"}, moved: true},
		{name: "the same position", change: Change{Kind: KindNode, ResourceVersion: "1"}},
		{name: "synced", change: Change{Kind: KindNode, Synced: true}, content: true},
		{name: "another type", change: Change{Kind: KindNode, Key: key, Object: &Pod{}}},
		{name: "a value that is no pointer", change: Change{Kind: KindNode, Key: key, Object: Node{}}},
		{name: "a nil pointer", change: Change{Kind: KindNode, Key: key, Object: (*Node)(nil)}},
		{name: "an unknown kind", change: Change{Kind: "Ship", Key: key, Object: node("b")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := NewStore(nil)
			before := s.Apply(Change{Kind: KindNode, Key: key, Object: node("a"), ResourceVersion: "1"})
			_, changed := s.Snapshot()
			after := s.Apply(tt.change)
			if got := after.Revision - before.Revision; got != map[bool]uint64{true: 1}[tt.content] {
				t.Errorf("the revision grew by %d", got)
			}
			if closed(changed) != tt.content {
				t.Errorf("woken: %v, want %v", closed(changed), tt.content)
			}
			if got := after.Position[KindNode] != "1"; got != tt.moved {
				t.Errorf("position %s, moved %v", after.Position[KindNode], tt.moved)
			}
			if !tt.content && !tt.moved && after != before {
				t.Error("another snapshot though nothing changed")
			}
			if before.Position[KindNode] != "1" || before.Synced[KindNode] || before.Nodes.Len() != 1 {
				t.Error("the snapshot before has changed")
			}
		})
	}
}

func TestStoreTakesEveryKind(t *testing.T) {
	objects := map[Kind]any{
		KindNode: &Node{}, KindNamespace: &Namespace{}, KindPod: &Pod{}, KindVPC: &VPC{}, KindSubnet: &Subnet{}, KindBlock: &Block{},
		KindNodeNetwork: &NodeNetwork{}, KindNetNamespace: &NetNamespace{}, KindAttachment: &Attachment{}, KindTunnelAddress: &TunnelAddress{},
		KindNetworkPolicy: &NetworkPolicy{}, KindClusterNetworkPolicy: &ClusterNetworkPolicy{},
	}
	s := NewStore(nil)
	for kind, object := range objects {
		s.Apply(Change{Kind: kind, Key: Key{Name: "x"}, Object: object})
	}
	w, _ := s.Snapshot()
	got := []int{
		w.Nodes.Len(), w.Namespaces.Len(), w.Pods.Len(), w.VPCs.Len(), w.Subnets.Len(), w.Blocks.Len(),
		w.NodeNetworks.Len(), w.NetNamespaces.Len(), w.Attachments.Len(), w.TunnelAddresses.Len(), w.NetworkPolicies.Len(), w.ClusterNetworkPolicies.Len(),
	}
	if diff := cmp.Diff([]int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, got); diff != "" {
		t.Errorf("objects of each kind (-want +got):\n%s", diff)
	}
	if int(w.Revision) != len(objects) {
		t.Errorf("revision %d after %d changes", w.Revision, len(objects))
	}
}

func TestAllSynced(t *testing.T) {
	s := NewStore(nil)
	for _, k := range DatastoreKinds() {
		if w, _ := s.Snapshot(); w.AllSynced() {
			t.Errorf("all synced before %s", k)
		}
		s.Apply(Change{Kind: k, Synced: true})
	}
	if w, _ := s.Snapshot(); !w.AllSynced() {
		t.Error("not all synced")
	}
}

// TestStoreConcurrent has writers and a reader that misses no last state.
func TestStoreConcurrent(t *testing.T) {
	const writers, each = 4, 200
	s := NewStore(nil)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				name := fmt.Sprintf("p%d-%d", w, i)
				s.Apply(Change{Kind: KindPod, Key: Key{Name: name}, Object: &Pod{Name: name}})
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var last uint64
		for {
			snap, changed := s.Snapshot()
			if snap.Revision < last || int(snap.Revision) != snap.Pods.Len() {
				t.Errorf("revision %d after %d, with %d pods", snap.Revision, last, snap.Pods.Len())
				return
			}
			if last = snap.Revision; last == writers*each {
				return
			}
			<-changed
		}
	}()
	wg.Wait()
	<-done
}
