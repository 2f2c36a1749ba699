package addresses_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// These tests stop the protocol of loans at its critical moments; the random ones
// rarely meet them.

const theirBlock = "small.0a090000-28"

// lentByHand is a /28 of which node a, which does not run, has lent 10.9.0.5 to b.
func lentByHand(t *testing.T) *cluster {
	c := newCluster(t, "a", "b")
	c.subnet("small", v1alpha1.TransportRouted, "10.9.0.0/28")
	block := &v1alpha1.IPBlock{Spec: v1alpha1.IPBlockSpec{Subnet: "small", CIDR: "10.9.0.0/28", Node: "a", Lent: map[string]string{"10.9.0.5": "b"}}}
	block.Name = theirBlock
	c.create(block)
	return c
}

func (c *cluster) annotate(recall string) {
	c.t.Helper()
	b := c.blocks()[theirBlock]
	b.Annotations = map[string]string{v1alpha1.AnnotationRecall: recall}
	if _, err := c.store.Update(c.t.Context(), b); err != nil {
		c.t.Fatal(err)
	}
}

func TestRecalledAddressIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lentByHand(t)
		c.annotate("10.9.0.4,10.9.0.5")
		c.start("b")
		b := c.nodes["b"]
		if got, err := b.add("p", "small"); err == nil {
			t.Errorf("%s is used although its owner takes it back", got)
		}
		c.annotate("10.9.0.4")
		c.settle()
		if got := b.mustAdd("p", "small"); got[0].String() != "10.9.0.5" {
			t.Errorf("got %s", got[0])
		}
	})
}

func TestUnlistedAddressIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lentByHand(t)
		b := c.nodes["b"]
		b.link.before = func(verb string, _ datastore.Object) error {
			if verb == "UpdateStatus" {
				return errAway
			}
			return nil
		}
		c.subnet("other", v1alpha1.TransportRouted, "10.7.0.0/24")
		c.start("b")
		for i := range 3 { // The other pods keep the publisher busy.
			if got, err := b.add("p", "small"); err == nil {
				t.Fatalf("%s is used although nobody can know that", got)
			}
			b.mustAdd(name("q%d", i), "other")
			c.settle()
		}
		b.link.mu.Lock()
		b.link.before = nil
		b.link.mu.Unlock()
		time.Sleep(time.Second)
		b.mustAdd("p", "small")
	})
}

func TestListedAddressIsNotTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lentByHand(t)
		a := c.nodes["a"]
		list := func(addrs ...string) {
			o, err := c.store.Get(t.Context(), datastore.KindNodeNetwork, datastore.Key{Name: "b"})
			if err != nil {
				t.Error(err)
				return
			}
			nn := o.(*v1alpha1.NodeNetwork)
			nn.Status.Borrowed = map[string]v1alpha1.AddressOwner{}
			for _, ip := range addrs {
				nn.Status.Borrowed[ip] = v1alpha1.AddressOwner{Name: "node/b/borrowed"}
			}
			if _, err := c.store.UpdateStatus(t.Context(), nn); err != nil {
				t.Error(err)
			}
		}
		marks := 0
		a.link.before = func(verb string, o datastore.Object) error {
			if b, ok := o.(*v1alpha1.IPBlock); ok && verb == "Update" && b.Annotations[v1alpha1.AnnotationRecall] != "" {
				marks++
				list("10.9.0.5") // b lists it in the last moment before the mark.
			}
			return nil
		}
		c.start("a")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if marks != 1 {
			t.Errorf("recalled %d times, want once", marks)
		}
		got := c.blocks()[theirBlock]
		if got.Spec.Lent["10.9.0.5"] != "b" || got.Annotations[v1alpha1.AnnotationRecall] != "" {
			t.Errorf("lent %v, annotations %v: b may be using the address", got.Spec.Lent, got.Annotations)
		}
		a.link.mu.Lock()
		a.link.before = nil
		a.link.mu.Unlock()
		list()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if lent := c.blocks()[theirBlock].Spec.Lent; len(lent) != 0 {
			t.Errorf("lent %v: b does not list it any more", lent)
		}
		if u := a.svc.Usage()[0]; u.Lent != 0 || u.Resting != 1 {
			t.Errorf("an address that was taken back must rest: %+v", u)
		}
	})
}

func TestBlockOfUnknownFateIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := oneNode(t, "default", v1alpha1.TransportRouted, "10.128.0.0/14")
		block := netip.MustParsePrefix(func() string { a.mustAdd("p", "default"); c.settle(); return blockOf(c, "a").Spec.CIDR }())
		a.link.before = func(verb string, _ datastore.Object) error {
			if verb == "Delete" {
				go a.link.set(true) // It arrives, and then the line is cut.
			}
			return nil
		}
		a.link.lose = func() bool { return true }
		a.del("p")
		time.Sleep(7 * time.Minute)
		synctest.Wait()
		if n := len(c.blocks()); n != 0 {
			t.Fatalf("%d blocks, want none: the delete has arrived", n)
		}
		if got, err := a.add("q", "default"); err == nil {
			t.Errorf("%s was given from a block that may be another node's", got)
		}
		snap, _ := a.world.Snapshot()
		checkpoint := *snap
		checkpoint.Synced = nil
		a.kill()
		a.boot(&checkpoint) // Nor by the next process.
		c.settle()
		if got, err := a.add("q", "default"); err == nil {
			t.Errorf("after a restart %s was given from a block that may be another node's", got)
		}
		a.link.mu.Lock()
		a.link.before, a.link.lose = nil, nil
		a.link.mu.Unlock()
		a.link.set(false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := a.mustAdd("q", "default"); !block.Contains(got[0]) {
			t.Logf("claimed another block: %s", got[0])
		}
		if n := len(c.blocks()); n != 1 {
			t.Errorf("%d blocks, want 1", n)
		}
	})
}
