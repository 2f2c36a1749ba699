package attach

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

var byAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, t := range texts {
		list = append(list, netip.MustParseAddr(t))
	}
	return list
}

func TestAddAnswersWithTheAttachment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{pods: 1})
		got := n.mustAdd(requestFor(0))
		want := Result{
			Attachment: world.Attachment{
				ID: "c0/eth0", ContainerID: "c0", Interface: "eth0", HostInterface: claims.PortName("c0", "eth0"),
				Netns: "/run/netns/n0", Pod: requestFor(0).Pod, VPC: "default", Subnet: "default",
				Addresses: addrs("10.128.0.1", "fd00:10::1"), MAC: packet.MAC{0x0a, 0x58, 10, 128, 0, 1},
			},
			MTU: 1450,
		}
		if diff := cmp.Diff(want, got, byAddr); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]world.Attachment{want.Attachment}, n.List(), byAddr); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{claims.PortName("c0", "eth0") + "_default_10.128.0.1_fd00:10::1.json"}, n.files()); diff != "" {
			t.Error(diff)
		}
		if n.kernel.len() != 1 {
			t.Error("ADD returned before the plane had applied it")
		}
		n.mustDel(requestFor(0))
		n.empty()
	})
}

// A slow ADD tells what it waited for.
func TestAddLogsItsSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{})
		var log strings.Builder
		n.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		time.AfterFunc(150*time.Millisecond, func() {
			n.world.Apply(object(world.KindPod, "ns", "p0", &world.Pod{Namespace: "ns", Name: "p0", UID: "uid-0"}))
		})
		n.mustAdd(requestFor(0))
		for _, want := range []string{"steps.turn=0s", "steps.cleared=0s", "steps.placed=150ms", "steps.allocated=0s", "steps.recorded=", "steps.queued=", "steps.applied=", "steps.published="} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s is not in %s", want, log.String())
			}
		}
		n.mustDel(requestFor(0))
		n.empty()
	})
}

// While others come the answer waits until other nodes can know the pod, but not too long.
func TestAddWaitsForPublication(t *testing.T) {
	for name, c := range map[string]struct {
		alone, last bool
		takes, want time.Duration
	}{
		"soon":  {takes: 30 * time.Millisecond, want: 30 * time.Millisecond},
		"never": {takes: time.Hour, want: publishWait},
		"last":  {last: true, takes: 30 * time.Millisecond, want: 30 * time.Millisecond},
		"alone": {alone: true, takes: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n *node
				n = start(t, options{pods: 1, edit: func(cfg *Config) {
					cfg.Step = func(step string) error {
						if c.last && step == StepPublished {
							<-n.turns // the others are done before this one
						}
						return nil
					}
					cfg.Published = func(ctx context.Context, l Lease) {
						if len(l.Addresses) != 2 || l.Owner != requestFor(0).Pod {
							t.Errorf("waits for %v", l)
						}
						select {
						case <-time.After(c.takes):
						case <-ctx.Done():
						}
					}
				}})
				if !c.alone {
					n.turns <- struct{}{}
				}
				began := time.Now()
				n.mustAdd(requestFor(0))
				if took := time.Since(began); took != c.want {
					t.Errorf("ADD took %s, want %s", took, c.want)
				}
				n.mustDel(requestFor(0))
				n.empty()
			})
		})
	}
}

// A5.
func TestRepeatedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{pods: 1})
		n.mustDel(requestFor(0)) // DEL without ADD
		first := n.mustAdd(requestFor(0))
		again := n.mustAdd(requestFor(0)) // the first answer was lost
		if diff := cmp.Diff(first, again, byAddr); diff != "" {
			t.Error(diff)
		}
		n.reborn(options{pods: 1})
		again = n.mustAdd(requestFor(0))
		if diff := cmp.Diff(first, again, byAddr); diff != "" {
			t.Error(diff)
		}
		second := requestFor(0)
		second.Interface = "net1"
		if n.mustAdd(second).Addresses[0] == first.Addresses[0] {
			t.Error("two interfaces have one address")
		}
		n.mustDel(second)
		n.mustDel(requestFor(0))
		n.mustDel(requestFor(0))
		n.empty()
	})
}

// A12: the attachment of the pod's predecessor is never the answer.
func TestAddForAnotherPodOrNamespaceReplaces(t *testing.T) {
	for name, change := range map[string]func(*Request){
		"netns": func(r *Request) { r.Netns = "/run/netns/other" },
		"uid":   func(r *Request) { r.Pod.UID = "uid-new" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := start(t, options{pods: 1})
				old := n.mustAdd(requestFor(0))
				r := requestFor(0)
				change(&r)
				n.world.Apply(object(world.KindPod, "ns", "p0", &world.Pod{Namespace: "ns", Name: "p0", UID: r.Pod.UID}))
				got := n.mustAdd(r)
				if got.Addresses[0] == old.Addresses[0] || got.Netns != r.Netns || got.Pod.UID != r.Pod.UID {
					t.Errorf("got %+v after %+v", got, old)
				}
				if len(n.List()) != 1 {
					t.Errorf("attachments: %v", n.List())
				}
				n.mustDel(r)
				n.empty()
			})
		})
	}
}

func TestAddWaitsForThePod(t *testing.T) {
	type result struct {
		after time.Duration
		err   string
		asks  int
	}
	uid := func(uid string) *world.Pod { return &world.Pod{Namespace: "ns", Name: "p0", UID: uid} }
	for name, c := range map[string]struct {
		watched map[time.Duration]*world.Pod
		stored  *world.Pod
		apiErr  error
		ready   error
		want    result
	}{
		"the watch brings it":           {watched: map[time.Duration]*world.Pod{100 * time.Millisecond: uid("uid-0")}, want: result{after: 100 * time.Millisecond}},
		"only the datastore has it":     {stored: uid("uid-0"), want: result{after: 200 * time.Millisecond, asks: 1}},
		"the predecessor comes first":   {watched: map[time.Duration]*world.Pod{0: uid("uid-old"), 3 * time.Second: uid("uid-0")}, stored: uid("uid-old"), want: result{after: 3 * time.Second, asks: 3}},
		"nobody has it":                 {want: result{after: 5 * time.Second, asks: 5, err: "add c0/eth0 for pod ns/p0: the Pod ns/p0 is not known to this node; the datastore has no such pod either"}},
		"the datastore is away":         {apiErr: errors.New("connection refused"), want: result{after: 5 * time.Second, asks: 5, err: "add c0/eth0 for pod ns/p0: the Pod ns/p0 is not known to this node; ask the datastore for the pod: connection refused"}},
		"only the predecessor is there": {stored: uid("uid-old"), want: result{after: 5 * time.Second, asks: 5, err: "add c0/eth0 for pod ns/p0: the Pod ns/p0 is not known to this node; the datastore's pod of that name has UID uid-old"}},
		"the plane is dead too":         {ready: errors.New("no netlink"), want: result{after: 5 * time.Second, asks: 5, err: "add c0/eth0 for pod ns/p0: the Pod ns/p0 is not known to this node; the datastore has no such pod either; the data plane is not ready: no netlink"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := start(t, options{})
				n.api.pods, n.api.err = map[string]*world.Pod{"ns/p0": c.stored}, c.apiErr
				n.loop.set(func(l *loop) { l.ready = c.ready })
				for after, p := range c.watched {
					time.AfterFunc(after, func() { n.world.Apply(object(world.KindPod, "ns", "p0", p)) })
				}
				began := time.Now()
				_, err := n.Add(t.Context(), requestFor(0))
				got := result{after: time.Since(began), asks: n.api.asks}
				if err != nil {
					got.err = err.Error()
					if ReasonOf(err) != TryAgain || strings.Contains(got.err, "\n") {
						t.Errorf("reason %v, message %q", ReasonOf(err), got.err)
					}
				}
				if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(result{})); diff != "" {
					t.Error(diff)
				}
				n.mustDel(requestFor(0))
				n.empty()
			})
		})
	}
}

func TestStaticPodIsNamedByItsManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{})
		n.world.Apply(object(world.KindPod, "ns", "p0", &world.Pod{Namespace: "ns", Name: "p0", UID: "mirror", StaticUID: "uid-0"}))
		if got := n.mustAdd(requestFor(0)); got.Pod.UID != "uid-0" {
			t.Errorf("UID %s", got.Pod.UID)
		}
		n.mustAdd(requestFor(0))
	})
}

func TestAddWithoutUIDTakesAnyPodOfThatName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{pods: 1})
		r := requestFor(0)
		r.Pod.UID = ""
		if got := n.mustAdd(r); got.Pod.UID != "uid-0" {
			t.Errorf("UID %q", got.Pod.UID)
		}
	})
}

func TestFailedAddLeavesNothing(t *testing.T) {
	for name, spoil := range map[string]func(*node){
		"no address":            func(n *node) { n.pool.err = errors.New("datastore away") },
		"plane fails":           func(n *node) { n.loop.failing[intent.PortRef("c0/eth0")] = errors.New("no such device") },
		"plane hangs":           func(n *node) { n.loop.stuck = true },
		"dead netns":            func(n *node) { n.kernel.kill("/run/netns/n0") },
		"step " + StepPlaced:    func(n *node) { n.cfg.Step = failAt(StepPlaced) },
		"step " + StepAllocated: func(n *node) { n.cfg.Step = failAt(StepAllocated) },
		"step " + StepRecorded:  func(n *node) { n.cfg.Step = failAt(StepRecorded) },
		"step " + StepPublished: func(n *node) { n.cfg.Step = failAt(StepPublished) },
		"step " + StepApplied:   func(n *node) { n.cfg.Step = failAt(StepApplied) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := start(t, options{pods: 1})
				n.loop.set(func(*loop) { spoil(n) })
				if _, err := n.Add(t.Context(), requestFor(0)); err == nil {
					t.Fatal("ADD succeeded")
				}
				n.loop.set(func(l *loop) { l.stuck, l.failing = false, nil })
				n.world.Apply(object(world.KindNode, "", "other", &world.Node{Name: "other"}))
				n.empty()
			})
		})
	}
}

func TestAddFallsOverToTheNextSubnet(t *testing.T) {
	small := &world.Subnet{Name: "a-small", VPC: "default", CIDRs: cidrs("10.1.0.0/31")}
	large := &world.Subnet{Name: "b-large", VPC: "default", CIDRs: cidrs("10.2.0.0/24")}
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{pods: 3, subnets: []*world.Subnet{large, small}})
		var got []string
		for i := range 3 {
			got = append(got, n.mustAdd(requestFor(i)).Subnet)
		}
		if diff := cmp.Diff([]string{"a-small", "b-large", "b-large"}, got); diff != "" {
			t.Error(diff)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{pods: 2, subnets: []*world.Subnet{small}})
		n.mustAdd(requestFor(0))
		_, err := n.Add(t.Context(), requestFor(1))
		if ReasonOf(err) != TryAgain || !strings.Contains(err.Error(), "subnet full: 1 of 1") {
			t.Errorf("got %v", err)
		}
		if err := n.Ready(); err != nil {
			t.Errorf("a full Subnet turns STATUS: %v", err)
		}
	})
}

func TestInvalidRequests(t *testing.T) {
	for name, change := range map[string]func(*Request){
		"container with a slash":  func(r *Request) { r.ContainerID = "../../etc/passwd" },
		"container empty":         func(r *Request) { r.ContainerID = "" },
		"container dots":          func(r *Request) { r.ContainerID = ".." },
		"container long":          func(r *Request) { r.ContainerID = strings.Repeat("a", 1025) },
		"interface with a slash":  func(r *Request) { r.Interface = "../eth0" },
		"interface dots":          func(r *Request) { r.Interface = ".." },
		"interface long":          func(r *Request) { r.Interface = "abcdefghijklmnop" },
		"interface with space":    func(r *Request) { r.Interface = "eth 0" },
		"netns empty":             func(r *Request) { r.Netns = "" },
		"netns relative":          func(r *Request) { r.Netns = "run/netns/a" },
		"netns traversal":         func(r *Request) { r.Netns = "/run/netns/../../etc/shadow" },
		"netns with a nul":        func(r *Request) { r.Netns = "/run/netns/a\x00b" },
		"netns of the node":       func(r *Request) { r.Netns = "/run/netns/host" },
		"no pod, not standalone":  func(r *Request) { r.Pod = world.Owner{} },
		"half a pod":              func(r *Request) { r.Pod.Namespace = ""; r.Standalone = true },
		"netns longer than paths": func(r *Request) { r.Netns = "/" + strings.Repeat("a", 5000) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := start(t, options{pods: 1})
				r := requestFor(0)
				change(&r)
				_, err := n.Add(t.Context(), r)
				if err == nil || ReasonOf(err) != InvalidRequest {
					t.Errorf("got %v", err)
				}
				if len(err.Error()) > 400 {
					t.Errorf("the message has %d bytes", len(err.Error()))
				}
				n.empty()
			})
		})
	}
}

func failAt(step string) func(string) error {
	return func(name string) error {
		if name == step {
			return errors.New("failed on purpose")
		}
		return nil
	}
}

// However many come at once, a pass of the plane gets few of them; all have their addresses.
func TestABurstIsCutIntoPasses(t *testing.T) {
	const burst = 3 * mostAtOnce
	n := start(t, options{norun: true, pods: burst})
	n.loop.set(func(l *loop) { l.stuck = true })
	var wg sync.WaitGroup
	for i := range burst {
		wg.Go(func() { n.mustAdd(requestFor(i)) })
	}
	inWorld := func() int {
		s, _ := n.world.Snapshot()
		return s.Attachments.Len()
	}
	for recorded := 0; recorded < burst || inWorld() < mostAtOnce; runtime.Gosched() {
		n.mu.Lock()
		recorded = len(n.held)
		n.mu.Unlock()
		if t.Context().Err() != nil {
			t.Fatal(recorded, "are recorded")
		}
	}
	if got := inWorld(); got != mostAtOnce {
		t.Errorf("the plane is asked for %d at once, want %d", got, mostAtOnce)
	}
	n.loop.set(func(l *loop) { l.stuck = false })
	n.world.Apply(object(world.KindNamespace, "", "another", &world.Namespace{Name: "another"}))
	wg.Wait()
	if got := inWorld(); got != burst {
		t.Errorf("%d of %d are in the world", got, burst)
	}
}
