package policy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// A pod that was attached just now is a peer of this node's pods at once: its block says
// so only when the datastore has it. When it does, nothing changes any more, and a block
// that gives the address to somebody else is believed.
func TestAttachedBeforeItsBlockSaysSo(t *testing.T) {
	store := small()
	addr := netip.MustParseAddr("10.128.0.4")
	owner := world.Owner{Namespace: "web", Name: "new", UID: "new"}
	block := func(owner world.Owner) world.Change {
		b := *blockOf(t, store)
		b.Allocations = append(b.Allocations[:len(b.Allocations):len(b.Allocations)], world.Allocation{Addr: addr, Owner: owner})
		return world.Change{Kind: world.KindBlock, Key: world.Key{Name: "s1"}, Object: &b}
	}
	var s stages
	var state *State
	step := func(name, want string, changes ...world.Change) {
		t.Helper()
		now := store.Apply(changes...)
		state = Decide(state, s.input("n1", now))
		if got, _, _ := strings.Cut(show(state, intent.Ingress), ", "); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		var anew stages
		if got, _, _ := strings.Cut(show(Decide(nil, anew.input("n1", now)), intent.Ingress), ", "); got != want {
			t.Errorf("%s, from scratch: %q, want %q", name, got, want)
		}
	}
	const nobody, attached = "NetworkPolicy Accept none", "NetworkPolicy Accept 10.128.0.4/32"
	step("not attached yet", nobody,
		networkPolicy(func(p *world.NetworkPolicy) {
			p.Ingress = []world.PolicyRule{{Peers: []world.PolicyPeer{{Pods: byApp("new")}}}}
		}),
		world.Change{Kind: world.KindPod, Key: world.Key{Namespace: "web", Name: "new"}, Object: &world.Pod{
			Namespace: "web", Name: "new", UID: "new", Node: "n1", Labels: map[string]string{"app": "new"},
		}})
	attachment := world.Key{Name: "new"}
	step("attached", attached, world.Change{Kind: world.KindAttachment, Key: attachment, Object: &world.Attachment{
		ID: "new", Subnet: "s", Pod: owner, Addresses: []netip.Addr{addr},
	}})
	step("its block says so", attached, block(owner))
	if n := state.work.pods; n != 0 {
		t.Errorf("%d pods changed when the block said what was known", n)
	}
	without := *blockOf(t, store)
	without.Allocations = without.Allocations[:len(without.Allocations)-1]
	step("its block does not", attached, world.Change{Kind: world.KindBlock, Key: world.Key{Name: "s1"}, Object: &without})
	step("its block says that another has it", nobody, block(world.Owner{Namespace: "web", Name: "other", UID: "other"}))
	step("detached", nobody, world.Change{Kind: world.KindBlock, Key: world.Key{Name: "s1"}, Object: &without}, world.Change{Kind: world.KindAttachment, Key: attachment})
}

func blockOf(t *testing.T, store *world.Store) *world.Block {
	t.Helper()
	now, _ := store.Snapshot()
	b, ok := now.Blocks.Get(world.Key{Name: "s1"})
	if !ok {
		t.Fatal("the block is gone")
	}
	return b
}
