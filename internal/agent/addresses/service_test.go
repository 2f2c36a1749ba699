package addresses_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/agent/addresses"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ attach.Addresses = (*addresses.Service)(nil)

func TestClaimPublishRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "default", v1alpha1.TransportOverlay, "10.128.0.0/14", "fd00:10::/64")
		addrs := a.mustAdd("p", "default")
		if len(addrs) != 2 || !addrs[0].Is4() || !addrs[1].Is6() {
			t.Fatalf("addresses %v, want one of each family", addrs)
		}
		time.Sleep(11 * time.Millisecond)
		synctest.Wait()
		published := map[string]string{}
		for _, b := range c.blocks() {
			if b.Spec.Node != "a" {
				t.Errorf("block %s belongs to %s", b.Name, b.Spec.Node)
			}
			for ip, o := range b.Spec.Allocations {
				published[ip] = o.Name
			}
		}
		snap, _ := a.world.Snapshot()
		want := map[string]string{addrs[0].String(): "p", addrs[1].String(): "p"}
		for tn := range snap.TunnelAddresses.Values() {
			want[tn.Addr.String()] = "node/a/tunnel"
		}
		if len(want) != 4 {
			t.Errorf("want a pod's and a tunnel's address of each family, have %v", want)
		}
		if diff := cmp.Diff(want, published); diff != "" {
			t.Errorf("published within 10 ms (-want +got):\n%s", diff)
		}
		a.del("p")
		c.settle()
		for _, b := range c.blocks() {
			for ip, o := range b.Spec.Allocations {
				if o.Name == "p" {
					t.Errorf("%s is still published", ip)
				}
			}
		}
	})
}

func TestSubnetFullAndEnlarged(t *testing.T) { // A9
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "small", v1alpha1.TransportOverlay, "10.9.0.0/28")
		for i := range 13 {
			if warned := len(a.svc.Problems()) > 0; warned != (i*100/13 >= ipam.WarnPercent) {
				t.Errorf("with %d of 13 in use: warning %v", i, warned)
			}
			a.mustAdd(name("p%d", i), "small")
		}
		start := time.Now()
		_, err := a.add("one-too-many", "small")
		if !errors.Is(err, attach.ErrSubnetFull) || !strings.Contains(err.Error(), "subnet full: 13 of 13") {
			t.Fatalf("error is %v", err)
		}
		if waited := time.Since(start); waited > time.Second {
			t.Errorf("the refusal took %s", waited)
		}
		o, err := c.store.Get(t.Context(), datastore.KindSubnet, datastore.Key{Name: "small"})
		if err != nil {
			t.Fatal(err)
		}
		s := o.(*v1alpha1.Subnet)
		s.Spec.CIDRs = append(s.Spec.CIDRs, "10.9.1.0/28")
		if _, err := c.store.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		c.settle()
		if got := a.mustAdd("one-too-many", "small"); !netip.MustParsePrefix("10.9.1.0/28").Contains(got[0]) {
			t.Errorf("address %s is not of the new CIDR", got[0])
		}
	})
}

func TestDatastoreAway(t *testing.T) { // F7
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "default", v1alpha1.TransportOverlay, "10.128.0.0/14")
		a.mustAdd("first", "default")
		c.settle()
		a.link.set(true)
		c.settle()
		for i := range 60 { // A /26 without the tunnel, network addresses and the first.
			if _, err := a.add(name("p%d", i), "default"); err != nil {
				t.Fatalf("pod %d: %v", i, err)
			}
		}
		start := time.Now()
		var err error
		for i := 0; err == nil && i < 4; i++ {
			_, err = a.add(name("q%d", i), "default")
		}
		if !apierrors.IsServiceUnavailable(err) {
			t.Fatalf("error is %v", err)
		}
		if attach.ReasonOf(err) != attach.TryAgain {
			t.Errorf("a runtime is not told to try again: %v", err)
		}
		if waited := time.Since(start); waited > 5*time.Second {
			t.Errorf("the refusal took %s", waited)
		}
		a.del("p0")
		a.link.set(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		n := 0
		for _, b := range c.blocks() {
			n += len(b.Spec.Allocations)
			for _, o := range b.Spec.Allocations {
				if o.Name == "p0" {
					t.Error("a released address is still published 2 s after the datastore's return")
				}
			}
		}
		if want := len(a.disk.live) + 1; n != want {
			t.Errorf("%d addresses published 2 s after the datastore's return, want %d", n, want)
		}
	})
}

func TestRestartWithDatastoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "default", v1alpha1.TransportOverlay, "10.128.0.0/14")
		before, _ := a.world.Snapshot() // A checkpoint from before the block was claimed for pods.
		first := a.mustAdd("first", "default")
		gone := a.mustAdd("gone", "default")
		c.settle()
		a.del("gone")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		tunnels := tunnelsOf(a)
		a.link.set(true)
		a.kill()
		checkpoint := *before
		checkpoint.Synced, checkpoint.Attachments, checkpoint.TunnelAddresses = nil, world.Table[*world.Attachment]{}, world.Table[*world.TunnelAddress]{}
		a.boot(&checkpoint)
		c.settle()
		if diff := cmp.Diff(tunnels, tunnelsOf(a), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("tunnel addresses after the restart (-before +after):\n%s", diff)
		}
		again := a.mustAdd("again", "default")
		if again[0] == gone[0] || again[0] == first[0] {
			t.Errorf("address %s was given again at once", again[0])
		}
		c.noDuplicates()
	})
}

func tunnelsOf(n *node) []netip.Addr {
	var out []netip.Addr
	snap, _ := n.world.Snapshot()
	for tn := range snap.TunnelAddresses.Values() {
		out = append(out, tn.Addr)
	}
	return out
}

func TestLending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b")
		c.subnet("small", v1alpha1.TransportOverlay, "10.9.0.0/28")
		c.start("a")
		a, b := c.nodes["a"], c.nodes["b"]
		a.mustAdd("pa", "small")
		c.start("b")
		got := b.mustAdd("pb", "small")
		c.settle()
		block := c.blocks()["small.0a090000-28"]
		if block.Spec.Lent[got[0].String()] != "b" {
			t.Errorf("the block does not say that %s is lent to b: %v", got[0], block.Spec.Lent)
		}
		if n := len(block.Spec.Lent); n != 2 { // The pod's, and the tunnel's of b.
			t.Errorf("%d addresses are lent, want 2: %v", n, block.Spec.Lent)
		}
		c.noDuplicates()
		b.del("pb")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		block = c.blocks()["small.0a090000-28"]
		if _, lent := block.Spec.Lent[got[0].String()]; lent {
			t.Errorf("%s was not taken back", got[0])
		}
		if u := a.svc.Usage()[0]; u.Lent != 1 {
			t.Errorf("%d are lent, want b's tunnel alone: %+v", u.Lent, u)
		}
	})
}

func TestFixedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b")
		c.subnet("default", v1alpha1.TransportRouted, "10.128.0.0/14")
		c.start("a", "b")
		a, b := c.nodes["a"], c.nodes["b"]
		// In a block that nobody has.
		if got := a.mustAdd("p", "default", "10.129.0.77"); got[0].String() != "10.129.0.77" {
			t.Errorf("got %s", got[0])
		}
		// Taken here.
		_, err := a.add("q", "default", "10.129.0.77")
		if e := wantErr(t, err, ipam.ErrTaken); e.Owner != owner("p") {
			t.Errorf("taken by %v", e.Owner)
		}
		c.settle()
		// Taken there.
		_, err = b.add("q", "default", "10.129.0.77")
		wantErr(t, err, ipam.ErrTaken)
		// Free, in another node's block: lent.
		if got := b.mustAdd("r", "default", "10.129.0.78"); got[0].String() != "10.129.0.78" {
			t.Errorf("got %s", got[0])
		}
		// It moves from node to node.
		a.del("p")
		time.Sleep(ipam.RestTime + time.Second)
		if got := b.mustAdd("p", "default", "10.129.0.77"); got[0].String() != "10.129.0.77" {
			t.Errorf("got %s", got[0])
		}
		c.noDuplicates()
		_, err = a.add("x", "default", "10.200.0.1")
		wantErr(t, err, ipam.ErrOutside)
		if attach.ReasonOf(err) != attach.Refused {
			t.Errorf("an address outside the Subnet is not refused for good: %v", err)
		}
		_, err = a.add("x", "default", "10.128.0.0")
		wantErr(t, err, ipam.ErrExcluded)
	})
}

func TestBlockLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b")
		c.subnet("default", v1alpha1.TransportRouted, "10.128.0.0/14")
		c.start("a")
		a := c.nodes["a"]
		p := a.mustAdd("p", "default")
		c.settle()
		a.link.set(true)
		block := blockOf(c, "a")
		if err := c.store.Delete(t.Context(), datastore.KindIPBlock, datastore.KeyOf(block), datastore.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		theirs := &v1alpha1.IPBlock{Spec: v1alpha1.IPBlockSpec{Subnet: "default", CIDR: block.Spec.CIDR, Node: "b"}}
		theirs.Name = block.Name
		c.create(theirs)
		a.link.set(false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		q := a.mustAdd("q", "default")
		if netip.MustParsePrefix(block.Spec.CIDR).Contains(q[0]) {
			t.Errorf("address %s was given from a lost block", q[0])
		}
		problems := a.svc.Problems()
		if len(problems) != 1 || problems[0].Reason != "BlockLost" {
			t.Errorf("problems: %v", problems)
		}
		if got := c.blocks()[block.Name]; len(got.Spec.Allocations) != 0 {
			t.Errorf("b's block was written by a: %v", got.Spec.Allocations)
		}
		a.del("p")
		time.Sleep(5 * time.Second)
		if problems := a.svc.Problems(); len(problems) != 0 {
			t.Errorf("problems after %s was released: %v", p[0], problems)
		}
	})
}

func TestBlockDeletedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "default", v1alpha1.TransportRouted, "10.128.0.0/14")
		p := a.mustAdd("p", "default")
		c.settle()
		block := blockOf(c, "a")
		if err := c.store.Delete(t.Context(), datastore.KindIPBlock, datastore.KeyOf(block), datastore.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		c.settle()
		got := c.blocks()[block.Name]
		if got == nil || got.Spec.Node != "a" || got.Spec.Allocations[p[0].String()].Name != "p" {
			t.Errorf("the block was not claimed again: %+v", got)
		}
	})
}

func TestEmptyBlocksAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "default", v1alpha1.TransportRouted, "10.128.0.0/14")
		for i := range 70 {
			a.mustAdd(name("p%d", i), "default")
		}
		c.settle()
		if n := len(c.blocks()); n != 2 {
			t.Fatalf("%d blocks, want 2", n)
		}
		for i := range 70 {
			a.del(name("p%d", i))
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(c.blocks()); n != 1 {
			t.Errorf("%d blocks after 2 minutes, want 1", n)
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if n := len(c.blocks()); n != 0 {
			t.Errorf("%d blocks after 8 minutes, want none", n)
		}
		a.mustAdd("again", "default")
	})
}

func TestStateFileFails(t *testing.T) { // A11
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b")
		c.subnet("small", v1alpha1.TransportRouted, "10.9.0.0/28")
		c.start("a")
		a, b := c.nodes["a"], c.nodes["b"]
		a.mustAdd("pa", "small")
		c.settle()
		a.disk.mu.Lock()
		a.disk.fail = errors.New("no space left on device")
		a.disk.mu.Unlock()
		c.start("b")
		if _, err := b.add("pb", "small"); err == nil {
			t.Error("an address was lent although the owner could not write that down")
		}
		if a.svc.Err() == nil {
			t.Error("the failure is not reported")
		}
		a.disk.mu.Lock()
		a.disk.fail = nil
		a.disk.mu.Unlock()
		time.Sleep(3 * time.Second)
		b.mustAdd("pb", "small")
		c.noDuplicates()
	})
}

func blockOf(c *cluster, node string) *v1alpha1.IPBlock {
	c.t.Helper()
	for _, b := range c.blocks() {
		if b.Spec.Node == node {
			return b
		}
	}
	c.t.Fatalf("node %s has no block", node)
	return nil
}
