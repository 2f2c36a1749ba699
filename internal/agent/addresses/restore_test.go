package addresses_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/agent/addresses"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func TestFile(t *testing.T) { // A11
	f := addresses.File{Path: filepath.Join(t.TempDir(), "addresses.json")}
	if got, err := f.Load(); err != nil || got.Node != "" {
		t.Fatalf("a file that does not exist: %+v, %v", got, err)
	}
	want := addresses.State{
		Node: "a",
		Blocks: []addresses.BlockState{{
			Subnet: "s", CIDR: netip.MustParsePrefix("10.0.0.0/26"), Closing: true, Cursor: netip.MustParseAddr("10.0.0.9"),
			Lent:  map[netip.Addr]string{netip.MustParseAddr("10.0.0.3"): "b"},
			Freed: []addresses.FreedState{{Addr: netip.MustParseAddr("10.0.0.4"), At: time.Date(2026, 11, 30, 0, 0, 0, 1, time.UTC)}},
		}},
		Borrowed: []addresses.SubnetAddr{{Subnet: "s", Addr: netip.MustParseAddr("10.0.0.200")}},
		Tunnels:  []addresses.SubnetAddr{{Subnet: "s", Addr: netip.MustParseAddr("fd00::1")}},
	}
	if err := f.Save(want); err != nil {
		t.Fatal(err)
	}
	got, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	wantJSON, _ := json.Marshal(want)
	gotJSON, _ := json.Marshal(got)
	if diff := cmp.Diff(string(wantJSON), string(gotJSON)); diff != "" {
		t.Errorf("state (-saved +loaded):\n%s", diff)
	}
	whole, err := os.ReadFile(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) - 1 { // The last byte is a line's end.
		if err := os.WriteFile(f.Path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Load(); err == nil {
			t.Fatalf("a file torn after %d of %d bytes is taken for whole", n, len(whole))
		}
	}
	if err := (addresses.File{Path: filepath.Join(f.Path, "below-a-file")}).Save(want); err == nil {
		t.Error("an impossible path is no error")
	}
}

func TestStateFileLost(t *testing.T) { // A11: blocks, loans and tunnels come back from the datastore.
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b")
		c.subnet("small", v1alpha1.TransportOverlay, "10.9.0.0/28")
		c.start("a")
		a, b := c.nodes["a"], c.nodes["b"]
		a.mustAdd("pa", "small")
		c.start("b")
		b.mustAdd("pb", "small")
		c.settle()
		tunnels := tunnelsOf(a)
		a.kill()
		a.disk.state = addresses.State{}
		a.link.set(true)
		a.boot(nil)
		c.settle()
		if _, err := a.add("early", "small"); err == nil {
			t.Error("an address was given without knowing any block")
		}
		a.link.set(false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(tunnels[0].String(), tunnelsOf(a)[0].String()); diff != "" {
			t.Errorf("tunnel address (-before +after):\n%s", diff)
		}
		for i := range 10 {
			_, _ = a.add(name("p%d", i), "small")
		}
		c.noDuplicates()
		if problems := a.svc.Problems(); len(problems) != 1 || problems[0].Reason != "AddressesRunningOut" {
			t.Errorf("problems: %v", problems)
		}
	})
}

// The plane's first pass must not find the node without its own addresses, or it
// rewrites what depends on them.
func TestTunnelsAreKnownFromTheStart(t *testing.T) { // F6
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "small", v1alpha1.TransportOverlay, "10.9.0.0/28", "fd00:9::/64")
		a.mustAdd("pa", "small")
		c.settle()
		before := tunnelsOf(a)
		checkpoint, _ := a.world.Snapshot()
		a.kill()
		w := world.NewStore(withoutLocal(checkpoint))
		if _, err := addresses.New(addresses.Config{Node: a.name, Store: a.link, World: w, Records: a.disk, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		a.world = w
		if diff := cmp.Diff(fmt.Sprint(before), fmt.Sprint(tunnelsOf(a))); diff != "" || len(before) != 2 {
			t.Errorf("tunnel addresses before anything runs (-before +after):\n%s", diff)
		}
	})
}

// withoutLocal is what a checkpoint keeps of a world.
func withoutLocal(s *world.Snapshot) *world.Snapshot {
	out := *s
	out.Synced, out.Attachments, out.TunnelAddresses = nil, world.Table[*world.Attachment]{}, world.Table[*world.TunnelAddress]{}
	return &out
}

func TestRestoreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "small", v1alpha1.TransportRouted, "10.9.0.0/29")
		for i := range 6 {
			a.mustAdd(name("p%d", i), "small")
		}
		c.settle()
		lease := func(pod, addr string) attach.Lease {
			return attach.Lease{Subnet: "small", Owner: owner(pod), Addresses: []netip.Addr{netip.MustParseAddr(addr)}}
		}
		torn := attach.Lease{Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.2")}}
		restore := func(h attach.Held) {
			t.Helper()
			if err := a.svc.Restore(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			c.settle()
		}
		restore(attach.Held{Live: []attach.Lease{lease("p0", "10.9.0.1")}, Blocked: []attach.Lease{torn}, Resting: []attach.Lease{lease("p2", "10.9.0.3")}, Incomplete: true})
		if n := len(blockOf(c, "a").Spec.Allocations); n != 6 {
			t.Errorf("%d published addresses are kept while a record is unreadable, want 6", n)
		}
		restore(attach.Held{Live: []attach.Lease{lease("p0", "10.9.0.1")}, Blocked: []attach.Lease{torn}, Resting: []attach.Lease{lease("p2", "10.9.0.3")}})
		time.Sleep(ipam.RestTime)
		got := map[string]bool{}
		for i := range 3 {
			got[a.mustAdd(name("q%d", i), "small")[0].String()] = true
		}
		if diff := cmp.Diff(map[string]bool{"10.9.0.4": true, "10.9.0.5": true, "10.9.0.6": true}, got); diff != "" {
			t.Errorf("addresses that no record holds (-want +got):\n%s", diff)
		}
		_, err := a.add("r", "small")
		wantErr(t, err, ipam.ErrResting) // The torn record's, and one that the plane has.
		a.svc.Dropped(lease("p2", "10.9.0.3"))
		if got := a.mustAdd("r", "small"); got[0].String() != "10.9.0.3" {
			t.Errorf("got %s", got[0])
		}
		a.svc.Release(torn)
		a.svc.Dropped(torn)
		time.Sleep(ipam.RestTime)
		if got := a.mustAdd("s", "small"); got[0].String() != "10.9.0.2" {
			t.Errorf("got %s", got[0])
		}
		a.svc.Cancel(attach.Lease{Subnet: "small", Owner: owner("s"), Addresses: torn.Addresses})
		if got := a.mustAdd("t", "small"); got[0].String() != "10.9.0.2" {
			t.Errorf("a cancelled address rests: got %s", got[0])
		}
	})
}

func TestTunnelsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a")
		c.subnet("default", v1alpha1.TransportOverlay, "10.128.0.0/14")
		time.Sleep(time.Minute) // The first is the older one.
		c.subnet("second", v1alpha1.TransportOverlay, "10.9.0.0/28")
		c.subnet("routed", v1alpha1.TransportRouted, "10.7.0.0/16")
		c.start("a")
		a := c.nodes["a"]
		if n := len(tunnelsOf(a)); n != 1 {
			t.Errorf("%d tunnel addresses without pods, want that of the oldest Overlay Subnet", n)
		}
		a.mustAdd("r", "routed")
		a.mustAdd("p", "second")
		c.settle()
		if n := len(tunnelsOf(a)); n != 2 {
			t.Errorf("%d tunnel addresses with a pod in the second Subnet, want 2", n)
		}
		c.noDuplicates()
		a.del("p")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(tunnelsOf(a)); n != 1 {
			t.Errorf("%d tunnel addresses 10 minutes after the last pod, want 1", n)
		}
		for _, b := range c.blocks() {
			if b.Spec.Subnet == "second" {
				t.Errorf("block %s was not given up: %v", b.Name, b.Spec.Allocations)
			}
		}
		if err := c.store.Delete(t.Context(), datastore.KindSubnet, datastore.Key{Name: "default"}, datastore.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, b := range c.blocks() {
			if b.Spec.Subnet == "default" {
				t.Errorf("block %s of a deleted Subnet remains: %v", b.Name, b.Spec.Allocations)
			}
		}
		if got := tunnelsOf(a); len(got) != 1 || !netip.MustParsePrefix("10.9.0.0/28").Contains(got[0]) {
			t.Errorf("tunnel addresses %v, want one of the Subnet that is the oldest now", got)
		}
	})
}

func TestParallelAdds(t *testing.T) { // A3
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "default", v1alpha1.TransportOverlay, "10.128.0.0/14", "fd00::/64")
		done := make(chan error, 300)
		for i := range 300 {
			go func() {
				_, err := a.add(name("p%d", i), "default")
				done <- err
			}()
		}
		for range 300 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		c.noDuplicates()
		c.settle()
		if n := len(c.blocks()); n != 10 { // 302 addresses of each family in blocks of 64.
			t.Errorf("%d blocks, want 5 of each family", n)
		}
	})
}

// FuzzLoad reads a state that a disk has garbled: it is understood or refused.
func FuzzLoad(f *testing.F) {
	f.Add(`{"blocks":[]}`)
	f.Add(`{"freed":[{"addr":"10.0.0.1","at":"2026-01-01T00:00:00Z"}]}`)
	path := filepath.Join(f.TempDir(), "state.json")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		file := addresses.File{Path: path}
		if s, err := file.Load(); err == nil {
			if err := file.Save(s); err != nil {
				t.Errorf("%q cannot be saved again: %v", text, err)
			}
		}
	})
}
