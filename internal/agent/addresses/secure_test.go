package addresses_test

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/agent/addresses"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// saved reports whether the state file knows a block around an address.
func (d *disk) saved(a netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.state.Blocks, func(b addresses.BlockState) bool { return b.CIDR.Contains(a) })
}

// The machine may lose its power, and the datastore with it, the moment a pod has
// its address.
func TestClaimedBlockIsSavedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "s", v1alpha1.TransportOverlay, "10.128.0.0/14", "fd00:1::/64")
		got := a.mustAdd("p", "s")
		for _, addr := range got {
			if !a.disk.saved(addr) {
				t.Errorf("the block of %s is not in the state file", addr)
			}
		}
		snap, _ := a.world.Snapshot()
		checkpoint := *snap
		checkpoint.Synced, checkpoint.Blocks = nil, (&world.Snapshot{}).Blocks
		a.kill()
		a.link.set(true)
		a.boot(&checkpoint)
		c.settle()
		a.mustAdd("q", "s")
		if p := a.svc.Problems(); len(p) > 0 {
			t.Errorf("after a reboot without the datastore: %v", p)
		}
	})
}

// A slow disk keeps no peer waiting for what need not survive.
func TestSlowDiskDelaysNoPublication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "s", v1alpha1.TransportOverlay, "10.128.0.0/14")
		a.mustAdd("p", "s")
		c.settle()
		time.Sleep(2 * time.Second) // Time of the bubble: the state file is to follow now.
		stuck := make(chan struct{})
		a.disk.mu.Lock()
		a.disk.stuck = stuck
		a.disk.mu.Unlock()
		defer close(stuck)
		for _, pod := range []string{"q", "r"} {
			got := a.mustAdd(pod, "s")[0].String()
			began := time.Now()
			a.svc.Published(t.Context(), a.disk.live[pod])
			for _, b := range c.blocks() {
				if b.Spec.Allocations[got].Name != pod {
					t.Errorf("%s of %s is not published: %v", got, pod, b.Spec.Allocations)
				}
			}
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("%s was published after %s", pod, took)
			}
			c.settle()
		}
	})
}

// Who waits for a publication waits for it, but not for a datastore that is away.
func TestPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "s", v1alpha1.TransportOverlay, "10.128.0.0/14", "fd00:1::/64")
		a.mustAdd("p", "s")
		c.settle()
		await := func(pod string) time.Duration {
			a.mustAdd(pod, "s")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			a.svc.Published(ctx, a.disk.live[pod])
			return time.Since(began)
		}
		a.link.mu.Lock()
		a.link.before = func(string, datastore.Object) error { time.Sleep(300 * time.Millisecond); return nil }
		a.link.mu.Unlock()
		if took := await("slow"); took < 300*time.Millisecond || took > time.Second {
			t.Errorf("a slow datastore is waited for %s", took)
		}
		a.link.set(true)
		if took := await("away"); took > time.Second {
			t.Errorf("a datastore that is away is waited for %s", took)
		}
		if took := await("still away"); took != 0 {
			t.Errorf("a datastore that is known to be away is waited for %s", took)
		}
	})
}

// What is freed in the last second is in the state file after an end in good order.
func TestEndSaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "s", v1alpha1.TransportOverlay, "10.128.0.0/14")
		got := a.mustAdd("p", "s")
		c.settle()
		a.del("p")
		a.end()
		a.disk.mu.Lock()
		defer a.disk.mu.Unlock()
		for _, b := range a.disk.state.Blocks {
			if slices.ContainsFunc(b.Freed, func(f addresses.FreedState) bool { return f.Addr == got[0] }) {
				return
			}
		}
		t.Errorf("the state file does not say that %s was freed", got[0])
	})
}

// Who asks may know a Subnet before the service has looked: an ADD right after a start.
func TestSubnetKnownToTheCallerFirst(t *testing.T) {
	store := memory.New(memory.Config{})
	defer store.Close()
	w := world.NewStore(nil)
	svc, err := addresses.New(addresses.Config{
		Node: "a", Store: store, World: w, Records: &disk{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := svc.Restore(t.Context(), attach.Held{}); err != nil {
		t.Fatal(err)
	}
	put := func(cidrs ...string) {
		s := &world.Subnet{Name: "default", VPC: "default", BlockBits4: 30}
		for _, c := range cidrs {
			s.CIDRs = append(s.CIDRs, netip.MustParsePrefix(c))
		}
		w.Apply(world.Change{Kind: world.KindSubnet, Key: world.Key{Name: s.Name}, Object: s})
	}
	put("10.0.0.0/30")
	if _, err := svc.Allocate(t.Context(), attach.AddressRequest{Subnet: "default", Owner: owner("p")}); err != nil {
		t.Fatalf("a Subnet that the service has not seen: %v", err)
	}
	put("10.0.0.0/30", "10.0.1.0/30")
	want := netip.MustParseAddr("10.0.1.2")
	if _, err := svc.Allocate(t.Context(), attach.AddressRequest{Subnet: "default", Owner: owner("q"), Want: []netip.Addr{want}}); err != nil {
		t.Fatalf("a CIDR that the service has not seen: %v", err)
	}
}
