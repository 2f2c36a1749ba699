package attach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// killed is what a Step panics with: nothing that comes later in the call happens,
// as if the process had died.
type killed struct{}

func killAt(step string) func(string) error {
	return func(name string) error {
		if name == step {
			panic(killed{})
		}
		return nil
	}
}

// dies runs a call that is expected to be killed.
func dies(t *testing.T, call func()) {
	t.Helper()
	defer func() {
		if r := recover(); r != (killed{}) {
			t.Fatalf("the call ended with %v instead of being killed", r)
		}
	}()
	call()
}

// A4: killed at every step of ADD and DEL, and then the runtime retries, deletes,
// or does nothing because the pod has died too.
func TestKilledAtEveryStep(t *testing.T) {
	afterwards := map[string]func(*node){
		"retry": func(n *node) {
			got := n.mustAdd(requestFor(0))
			again := n.mustAdd(requestFor(0))
			if got.Addresses[0] != again.Addresses[0] {
				n.t.Errorf("two answers: %v and %v", got, again)
			}
			if n.kernel.len() != 2 {
				n.t.Errorf("%d ports instead of 2", n.kernel.len())
			}
			n.mustDel(requestFor(0))
		},
		"retry in a new sandbox": func(n *node) {
			n.kernel.kill(requestFor(0).Netns)
			r := requestFor(0)
			r.ContainerID, r.Netns = "c0-again", "/run/netns/n0-again"
			n.mustAdd(r)
			n.mustDel(r)
		},
		"delete":  func(n *node) { n.mustDel(requestFor(0)) },
		"nothing": func(n *node) { n.kernel.kill(requestFor(0).Netns) },
		"GC": func(n *node) {
			n.kernel.kill(requestFor(0).Netns)
			if err := n.Collect(n.t.Context(), "fairlead", []Key{{"c1", "eth0"}}); err != nil {
				n.t.Error(err)
			}
			if len(n.List()) != 1 {
				n.t.Errorf("after GC: %v", n.List())
			}
		},
	}
	for _, step := range Steps() {
		for _, what := range slices.Sorted(maps.Keys(afterwards)) {
			t.Run(step+", then "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := start(t, options{pods: 3, norun: true})
					survivor := n.mustAdd(requestFor(1)) // a neighbour that lives through it all
					if step >= StepBuried {
						n.mustAdd(requestFor(0))
					}
					n.cfg.Step = killAt(step)
					dies(t, func() {
						if step < StepBuried {
							_, _ = n.Add(t.Context(), requestFor(0))
						} else {
							_ = n.Del(t.Context(), "c0", "eth0")
						}
					})
					synctest.Wait()
					n.reborn(options{pods: 3})
					n.mustAdd(requestFor(2)) // must not get an address that is in use: the kernel checks
					n.mustDel(requestFor(2))
					afterwards[what](n)
					if got := n.mustAdd(requestFor(1)); got.Addresses[0] != survivor.Addresses[0] {
						t.Errorf("the neighbour's address changed from %v to %v", survivor, got)
					}
					n.mustDel(requestFor(1))
					n.empty()
				})
			})
		}
	}
}

// The addresses of what was deleted before a crash rest after it.
func TestRestSurvivesACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		subnet := &world.Subnet{Name: "default", VPC: "default", CIDRs: cidrs("10.1.0.0/31")}
		o := options{pods: 2, subnets: []*world.Subnet{subnet}}
		n := start(t, o)
		n.mustAdd(requestFor(0))
		n.mustDel(requestFor(0))
		n.reborn(o)
		n.loop.set(func(l *loop) { l.stuck = true })
		if _, err := n.Add(t.Context(), requestFor(1)); err == nil {
			t.Fatal("the address was given while it rested")
		}
		n.loop.set(func(l *loop) { l.stuck = false })
		n.world.Apply(object(world.KindNode, "", "other", &world.Node{Name: "other"}))
		time.Sleep(time.Minute)
		n.mustAdd(requestFor(1))
		n.mustDel(requestFor(1))
		n.empty()
	})
}

// The plane must have dropped an address before it is given again.
func TestAddressWaitsForThePlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{pods: 1, subnets: []*world.Subnet{{Name: "default", VPC: "default", CIDRs: cidrs("10.1.0.0/31")}}})
		n.mustAdd(requestFor(0))
		n.loop.set(func(l *loop) { l.stuck = true })
		began := time.Now()
		n.mustDel(requestFor(0))
		if took := time.Since(began); took != 0 {
			t.Errorf("DEL waited %s for the plane", took)
		}
		time.Sleep(5 * time.Minute)
		if _, resting := n.pool.counts(); resting != 1 || len(n.Problems()) != 1 {
			t.Errorf("%d addresses rest, problems %v", resting, n.Problems())
		}
		n.loop.set(func(l *loop) { l.stuck = false })
		n.world.Apply(object(world.KindNode, "", "other", &world.Node{Name: "other"}))
		n.empty()
	})
}

// A3, the part that needs no kernel.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 300
		n := start(t, options{pods: pods})
		var mu sync.Mutex
		given := map[string]int{}
		var wg sync.WaitGroup
		for i := range pods {
			started := make(chan struct{})
			wg.Go(func() {
				close(started)
				got, err := n.Add(t.Context(), requestFor(i))
				if err != nil {
					if i%5 != 0 || !errors.Is(err, errDeleted) {
						t.Errorf("ADD %d: %v", i, err)
					}
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, a := range got.Addresses {
					if other, taken := given[a.String()]; taken {
						t.Errorf("%s was given to %d and %d", a, other, i)
					}
					given[a.String()] = i
				}
			})
			if i%5 == 0 {
				wg.Go(func() {
					<-started
					n.mustDel(requestFor(i))
				})
			}
		}
		wg.Wait()
		for i := range pods {
			if i%5 == 0 {
				n.mustDel(requestFor(i)) // the DEL may have come before its ADD
			}
		}
		synctest.Wait()
		if got := len(n.List()); got != pods*4/5 || n.kernel.len() != got {
			t.Errorf("%d attachments, %d ports", got, n.kernel.len())
		}
		for i := range pods {
			n.mustDel(requestFor(i))
		}
		n.empty()
	})
}

func TestDelEndsAnAddThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{})
		result := make(chan error)
		for range 2 { // the second one waits for the first
			go func() {
				_, err := n.Add(t.Context(), requestFor(0))
				result <- err
			}()
		}
		synctest.Wait()
		began := time.Now()
		go n.mustDel(requestFor(0))
		for range 2 {
			if err := <-result; !errors.Is(err, errDeleted) || ReasonOf(err) != TryAgain {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %s", took)
		}
		n.empty()
	})
}

// A12: fifty pods deleted and made anew under the same name.
func TestRecreatedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 50
		n := start(t, options{pods: pods})
		for i := range pods {
			n.mustAdd(requestFor(i))
		}
		var wg sync.WaitGroup
		for i := range pods {
			wg.Go(func() {
				old := requestFor(i)
				r := old
				r.ContainerID, r.Netns, r.Pod.UID = old.ContainerID+"-new", old.Netns+"-new", old.Pod.UID+"-new"
				go n.mustDel(old)
				time.AfterFunc(time.Duration(rand.IntN(4000))*time.Millisecond, func() {
					n.world.Apply(object(world.KindPod, "ns", old.Pod.Name, &world.Pod{Namespace: "ns", Name: old.Pod.Name, UID: r.Pod.UID}))
				})
				began := time.Now()
				got, err := n.Add(t.Context(), r)
				if err != nil || got.Pod.UID != r.Pod.UID || got.Netns != r.Netns || time.Since(began) > 5*time.Second {
					t.Errorf("after %s: %+v, %v", time.Since(began), got, err)
				}
			})
		}
		wg.Wait()
		if len(n.List()) != pods {
			t.Errorf("%d attachments", len(n.List()))
		}
	})
}

// Random calls, crashes and deaths of pods: no address twice (pool and kernel
// check), and nothing is left once every pod is gone.
func TestRandomLife(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ops := rapid.SliceOfN(rapid.IntRange(0, 1<<20), 1, 40).Draw(rt, "ops")
		synctest.Test(t, func(t *testing.T) { randomLife(t, ops) })
		if t.Failed() {
			rt.Fatalf("failed with ops %v", ops)
		}
	})
}

func randomLife(t *testing.T, ops []int) {
	const pods = 6
	o := options{pods: pods, subnets: []*world.Subnet{{Name: "default", VPC: "default", CIDRs: cidrs("10.1.0.0/29", "fd00::/125")}}}
	n := start(t, o)
	sandbox := [pods]int{} // counts the sandboxes of each pod; a dead namespace is never used again
	request := func(i int) Request {
		r := requestFor(i)
		r.ContainerID += fmt.Sprintf("-%d", sandbox[i])
		r.Netns += fmt.Sprintf("-%d", sandbox[i])
		return r
	}
	for _, op := range ops {
		i, arg := op/16%pods, op/16/pods
		switch op % 8 {
		case 0, 1:
			_, _ = n.Add(t.Context(), request(i)) // a small Subnet: it may be full
		case 2:
			n.mustDel(request(i))
		case 3: // the sandbox dies, without DEL
			n.kernel.kill(request(i).Netns)
			sandbox[i]++
		case 4:
			n.reborn(o)
		case 5, 6: // killed in the middle of a call
			step := Steps()[arg%len(Steps())]
			n.cfg.Step = killAt(step)
			func() {
				defer func() {
					if r := recover(); r != nil && r != (killed{}) {
						panic(r)
					}
				}()
				if op%8 == 5 {
					_, _ = n.Add(t.Context(), request(i))
				} else {
					_ = n.Del(t.Context(), request(i).ContainerID, "eth0")
				}
			}()
			n.reborn(o)
		case 7:
			time.Sleep(time.Duration(arg%40) * time.Second)
		}
		synctest.Wait()
	}
	for i := range pods {
		n.kernel.kill(request(i).Netns)
	}
	n.empty()
	n.stop()
}

// Run ends when it is told, even while the plane hangs.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{pods: 1, norun: true})
		n.mustAdd(requestFor(0))
		n.loop.set(func(l *loop) { l.stuck = true })
		n.mustDel(requestFor(0))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}
