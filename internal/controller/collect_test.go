package controller

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
)

// populate makes n nodes with a block of two pods each. Every tenth block has also lent
// an address to the next node, which uses it.
func (c *cluster) populate(n int) {
	c.create(subnet("pods", "10.128.0.0/16"))
	for i := range n {
		c.create(node(i))
		nn := nodeNetwork(i)
		c.create(nn)
		cidr := fmt.Sprintf("10.128.%d.%d/26", i/4, i%4*64)
		first := netip.MustParsePrefix(cidr).Addr()
		held := map[string]v1alpha1.AddressOwner{first.Next().String(): tunnel(nodeName(i))}
		addr := first.Next()
		for j := range 2 {
			addr = addr.Next()
			held[addr.String()] = ownerOf(c.createPod(pod(fmt.Sprintf("p%03d-%d", i, j), nodeName(i), addr)))
		}
		b := block("pods", cidr, nodeName(i), held)
		if i%10 == 0 {
			addr = addr.Next()
			b.Spec.Lent = map[string]string{addr.String(): nodeName((i + 1) % n)}
		}
		c.create(b)
	}
	for i := 0; i < n; i += 10 {
		borrower := (i + 1) % n
		addr := netip.MustParsePrefix(fmt.Sprintf("10.128.%d.%d/26", i/4, i%4*64)).Addr().Next().Next().Next().Next()
		p := c.createPod(pod(fmt.Sprintf("b%03d", borrower), nodeName(borrower), addr))
		nn := get[*v1alpha1.NodeNetwork](c, named(nodeName(borrower)))
		nn.Status.Borrowed = map[string]v1alpha1.AddressOwner{addr.String(): ownerOf(p)}
		c.updateStatus(nn)
	}
}

// vanish removes a Node; what runs on it is never heard of again. The Pod objects go
// too where gone says so.
func (c *cluster) vanish(i int, pods bool) {
	c.delete(datastore.KindNode, named(nodeName(i)))
	for _, p := range all[*corev1.Pod](c) {
		if pods && p.Spec.NodeName == nodeName(i) {
			c.delete(datastore.KindPod, datastore.KeyOf(p))
		}
	}
}

// checkLiving fails if an address of a living pod is in no block.
func (c *cluster) checkLiving() {
	c.t.Helper()
	held := map[string]bool{}
	for _, b := range all[*v1alpha1.IPBlock](c) {
		for a := range b.Spec.Allocations {
			held[a] = true
		}
		for a := range b.Spec.Lent {
			held[a] = true
		}
	}
	for _, p := range all[*corev1.Pod](c) {
		if get[*corev1.Node](c, named(p.Spec.NodeName)) != nil && !held[p.Status.PodIP] {
			c.t.Fatalf("the address %s of the living pod %s is free", p.Status.PodIP, p.Name)
		}
	}
}

func (c *cluster) owners() map[string]int {
	out := map[string]int{}
	for _, b := range all[*v1alpha1.IPBlock](c) {
		out[b.Spec.Node]++
	}
	return out
}

func TestA6HalfOfTheNodesVanish(t *testing.T) {
	for _, pods := range []bool{true, false} {
		t.Run(fmt.Sprintf("pod objects go too %v", pods), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.populate(200)
				p := c.start("life-1")
				time.Sleep(10 * time.Second)
				for i := range 100 {
					c.vanish(i*2, pods) // Every lender is among them, and no borrower.
				}
				vanished := time.Now()
				for life, end := range []time.Duration{50 * time.Second, 85 * time.Second, 2 * grace} {
					for time.Since(vanished) < end {
						time.Sleep(2500 * time.Millisecond)
						c.checkLiving()
						if got := len(c.owners()); time.Since(vanished) < grace && got != 200 {
							t.Fatalf("blocks of %d nodes after %s", got, time.Since(vanished))
						}
					}
					if life < 2 {
						p.kill()
						p = c.start(fmt.Sprintf("life-%d", life+2))
					}
				}
				left := c.owners()
				for i := range 100 {
					// Ten blocks hold a loan that a living node uses.
					if want := i*2%10 == 0; (left[nodeName(i*2)] == 1) != want {
						t.Errorf("node %s has %d blocks, kept %v", nodeName(i*2), left[nodeName(i*2)], want)
					}
					if get[*v1alpha1.NodeNetwork](c, named(nodeName(i*2))) != nil {
						t.Errorf("the NodeNetwork of %s is still there", nodeName(i*2))
					}
					if left[nodeName(i*2+1)] != 1 {
						t.Errorf("living node %s has %d blocks", nodeName(i*2+1), left[nodeName(i*2+1)])
					}
				}
				if got := p.component(componentCollection); got.Level != health.Degraded {
					t.Errorf("health: %+v", got)
				}
				// The borrowers give the loans back: the last blocks go.
				for i := 0; i < 200; i += 10 {
					nn := get[*v1alpha1.NodeNetwork](c, named(nodeName(i+1)))
					for _, pod := range all[*corev1.Pod](c) {
						if _, ok := nn.Status.Borrowed[pod.Status.PodIP]; ok {
							c.delete(datastore.KindPod, datastore.KeyOf(pod))
						}
					}
					nn.Status.Borrowed = nil
					c.updateStatus(nn)
				}
				time.Sleep(time.Minute)
				if got := len(c.owners()); got != 100 {
					t.Errorf("blocks of %d nodes, want 100", got)
				}
				if got := p.component(componentCollection); got.Level != health.OK {
					t.Errorf("health: %+v", got)
				}
				p.link.written()
				time.Sleep(time.Hour)
				for _, w := range p.link.written() {
					if !strings.HasPrefix(w, "delete Event") { // Those are over.
						t.Errorf("write in a quiet hour: %s", w)
					}
				}
			})
		})
	}
}

func TestNodeThatReturnsKeepsItsBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.populate(3)
		c.start("a")
		time.Sleep(5 * time.Second)
		c.vanish(1, true)
		time.Sleep(grace - 5*time.Second)
		c.create(node(1))
		time.Sleep(2 * grace)
		if got := c.owners(); len(got) != 3 {
			t.Errorf("owners %v", got)
		}
	})
}

// F10: a proxy loses most Nodes from lists, or all of them; the objects are there.
func TestF10ListsThatLackNodes(t *testing.T) {
	for _, tt := range []struct {
		name string
		keep int
		warm bool // the controller knew better before
	}{{"half, known before", 5, true}, {"all, known before", 0, true}, {"half, at the start", 5, false}, {"all, at the start", 0, false}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.populate(10)
				lists := 0
				broken := func(kind datastore.Kind, l datastore.List) datastore.List {
					if kind == datastore.KindNode {
						lists++
						l.Items = l.Items[:min(tt.keep, len(l.Items))]
					}
					return l
				}
				p := c.start("a", func(cfg *Config) {
					if !tt.warm {
						cfg.Store.(*link).list = broken
					}
				})
				time.Sleep(5 * time.Second)
				if tt.warm {
					p.link.mu.Lock()
					p.link.list = broken
					p.link.mu.Unlock()
					p.link.forgetHistory()
				}
				time.Sleep(3 * grace)
				want := 1
				if tt.warm {
					want = 2 // The second one confirms the first.
				}
				p.link.mu.Lock()
				got := lists
				p.link.mu.Unlock()
				if got < want {
					t.Fatalf("the broken list was read %d times, want %d", got, want)
				}
				if got := p.component(componentWrites); !strings.Contains(got.Message, "exists, although the watch does not show it") {
					t.Errorf("health: %+v", got)
				}
				if got := c.owners(); len(got) != 10 {
					t.Errorf("blocks of %d nodes are left, want all 10", len(got))
				}
				for i := range 10 {
					if get[*v1alpha1.NodeNetwork](c, named(nodeName(i))) == nil {
						t.Errorf("the NodeNetwork of %s is gone", nodeName(i))
					}
				}
			})
		})
	}
}

// The block of a vanished node has lent an address to a living one.
func TestReleaseStandsInForTheLender(t *testing.T) {
	setup := func(t *testing.T) (*cluster, *process) {
		c := newCluster(t)
		c.create(subnet("pods", "10.128.0.0/24"), node(1), nodeNetwork(1), node(2), nodeNetwork(2))
		b := block("pods", "10.128.0.0/26", "n001", nil)
		b.Spec.Lent = map[string]string{"10.128.0.9": "n002"}
		c.create(b)
		p := c.start("a")
		time.Sleep(5 * time.Second)
		return c, p
	}
	t.Run("listed while it is being recalled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, p := setup(t)
			listed := false
			p.link.bend(func(_ context.Context, verb string, kind datastore.Kind, _ datastore.Key) error {
				if verb == "update" && kind == datastore.KindIPBlock && !listed {
					listed = true // Just before the mark: the borrower may use it.
					nn := get[*v1alpha1.NodeNetwork](c, named("n002"))
					nn.Status.Borrowed = map[string]v1alpha1.AddressOwner{"10.128.0.9": {Name: "node/n002/borrowed"}}
					c.updateStatus(nn)
				}
				return nil
			})
			c.vanish(1, true)
			time.Sleep(3 * grace)
			b := all[*v1alpha1.IPBlock](c)
			if len(b) != 1 || b[0].Annotations[v1alpha1.AnnotationRecall] != "10.128.0.9" || !listed {
				t.Fatalf("blocks %+v", b)
			}
			nn := get[*v1alpha1.NodeNetwork](c, named("n002"))
			nn.Status.Borrowed = nil
			c.updateStatus(nn)
			time.Sleep(grace)
			if got := c.owners(); len(got) != 0 {
				t.Errorf("owners %v", got)
			}
		})
	})
	t.Run("changed between mark and deletion", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, p := setup(t)
			times := 0
			p.link.bend(func(_ context.Context, verb string, kind datastore.Kind, _ datastore.Key) error {
				if verb == "delete" && kind == datastore.KindIPBlock && times == 0 {
					times++ // The node's agent is alive after all and lends another.
					b := all[*v1alpha1.IPBlock](c)[0]
					b.Spec.Lent["10.128.0.10"] = "n002"
					c.update(b)
					nn := get[*v1alpha1.NodeNetwork](c, named("n002"))
					nn.Status.Borrowed = map[string]v1alpha1.AddressOwner{"10.128.0.10": {Name: "x", Namespace: "default", UID: "u"}}
					c.updateStatus(nn)
				}
				return nil
			})
			c.vanish(1, true)
			time.Sleep(3 * grace)
			if got := c.owners(); got["n001"] != 1 || times != 1 {
				t.Errorf("owners %v after %d deletions", got, times)
			}
		})
	})
	t.Run("the borrower is gone too", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, _ := setup(t)
			c.vanish(1, true)
			c.vanish(2, true)
			time.Sleep(2 * grace)
			if got := c.owners(); len(got) != 0 {
				t.Errorf("owners %v", got)
			}
		})
	})
}

// A pod of a living node holds an address of a vanished node's block, whatever the
// loans say.
func TestBlockOfALivingPodIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(subnet("pods", "10.128.0.0/24"), namespace("default"), node(1), node(2))
		c.createPod(pod("stray", "n002", netip.MustParseAddr("10.128.0.9")))
		c.create(block("pods", "10.128.0.0/26", "n001", nil))
		p := c.start("a")
		time.Sleep(5 * time.Second)
		c.vanish(1, true)
		time.Sleep(3 * grace)
		if got := c.owners(); got["n001"] != 1 {
			t.Fatalf("owners %v", got)
		}
		events := all[*corev1.Event](c)
		if len(events) != 1 || events[0].Reason != "HeldByLivingPod" || !strings.Contains(events[0].Message, "pod default/stray on node n002 has 10.128.0.9") {
			t.Errorf("events %+v", events)
		}
		if got := p.component(componentCollection); !strings.Contains(got.Message, "default/stray") {
			t.Errorf("health %+v", got)
		}
		c.delete(datastore.KindPod, datastore.Key{Namespace: "default", Name: "stray"})
		time.Sleep(5 * time.Second)
		if got := c.owners(); len(got) != 0 {
			t.Errorf("owners %v", got)
		}
	})
}
