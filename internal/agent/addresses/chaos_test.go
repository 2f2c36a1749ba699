package addresses_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
)

// chaos runs real services against one datastore, with random pods, partitions, lost
// answers and restarts, in Subnets that are too small: never a duplicate, and when all
// is well again every pod gets its address.
func chaos(t *testing.T, seed uint64, steps int) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		names := []string{"a", "b", "c"}
		c := newCluster(t, names...)
		c.subnet("small", v1alpha1.TransportOverlay, "10.9.0.0/28")
		c.subnet("split", v1alpha1.TransportRouted, "10.8.0.0/29", "10.8.1.0/29", "fd00::/124")
		c.start(names...)
		for i := range steps {
			n := c.nodes[names[rng.IntN(len(names))]]
			subnet := []string{"small", "split"}[rng.IntN(2)]
			switch op := rng.IntN(100); {
			case op < 45:
				_, _ = n.add(name("%s-%d", n.name, i), subnet)
			case op < 75:
				if pods := slices.Sorted(maps.Keys(n.disk.live)); len(pods) > 0 {
					n.del(pods[rng.IntN(len(pods))])
				}
			case op < 83:
				n.link.set(rng.IntN(2) == 0)
			case op < 88:
				n.link.mu.Lock()
				own := rand.New(rand.NewPCG(seed, uint64(i))) // The services call it, one at a time.
				n.link.lose = func() bool { return own.IntN(4) == 0 }
				n.link.mu.Unlock()
			case op < 92:
				snap, _ := n.world.Snapshot()
				checkpoint := *snap
				checkpoint.Synced = nil
				n.kill()
				n.boot(&checkpoint)
			default:
				time.Sleep(time.Duration(rng.IntN(60)) * time.Second)
			}
			synctest.Wait()
			c.noDuplicates()
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, i)
			}
		}
		for _, n := range c.nodes {
			n.link.set(false)
			n.link.mu.Lock()
			n.link.lose = nil
			n.link.mu.Unlock()
			for _, pod := range slices.Sorted(maps.Keys(n.disk.live)) {
				n.del(pod)
			}
		}
		time.Sleep(3 * time.Minute)
		for _, node := range names {
			for _, subnet := range []string{"small", "split"} {
				if _, err := c.nodes[node].add("last-"+subnet+"-"+node, subnet); err != nil {
					t.Errorf("seed %d: all is well again, but node %s gets no address of Subnet %s: %v", seed, node, subnet, err)
				}
			}
		}
		c.noDuplicates()
	})
}

func TestChaos(t *testing.T) { // A10, F7
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { chaos(t, seed, 150) })
	}
}

func TestChaosLong(t *testing.T) {
	if os.Getenv("FAIRLEAD_LONG") == "" {
		t.Skip("set FAIRLEAD_LONG=1 for 60 longer runs")
	}
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { chaos(t, 1000+seed, 500) })
	}
}
