package attach

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func (n *node) ids() []string {
	ids := []string{}
	for _, a := range n.List() {
		ids = append(ids, a.ID)
	}
	return ids
}

// A7: what is not named and dead goes, what lives stays and is reported.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{pods: 5})
		for _, i := range []int{0, 1, 2, 4} {
			r := requestFor(i)
			if i == 4 {
				r.Network = "other"
			}
			n.mustAdd(r)
		}
		for _, i := range []int{0, 1, 4} {
			n.kernel.kill(requestFor(i).Netns)
		}
		// 0: named and dead; 1: not named and dead; 2: not named, lives; 4: of another network.
		if err := n.Collect(t.Context(), "fairlead", []Key{{"c0", "eth0"}, {"stranger", "eth0"}}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"c0/eth0", "c2/eth0", "c4/eth0"}, n.ids()); diff != "" {
			t.Error(diff)
		}
		if p := n.Problems(); len(p) != 1 || p[0].Key.Name != "c2/eth0" || p[0].Reason != "NotCollected" {
			t.Errorf("problems: %v", p)
		}
		// Named again, it is no problem any more.
		if err := n.Collect(t.Context(), "fairlead", []Key{{"c0", "eth0"}, {"c2", "eth0"}}); err != nil {
			t.Fatal(err)
		}
		if p := n.Problems(); len(p) != 0 {
			t.Errorf("problems: %v", p)
		}
		// The agent's own sweep needs no runtime.
		time.Sleep(61 * time.Second)
		if diff := cmp.Diff([]string{"c2/eth0"}, n.ids()); diff != "" {
			t.Error(diff)
		}
		// An empty list removes no living pod (A5).
		if err := n.Collect(t.Context(), "fairlead", nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"c2/eth0"}, n.ids()); diff != "" {
			t.Error(diff)
		}
		n.mustDel(requestFor(2))
		n.empty()
	})
}

// A7: after a power loss the records of dead pods go at once, the others stay (A8).
func TestSweepAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{pods: 3})
		for i := range 3 {
			n.mustAdd(requestFor(i))
		}
		n.stop()
		n.kernel.kill(requestFor(0).Netns)
		n.kernel.kill(requestFor(2).Netns)
		n.reborn(options{}) // the pods' status was never written, the pods are unknown
		synctest.Wait()
		if diff := cmp.Diff([]string{"c1/eth0"}, n.ids()); diff != "" {
			t.Error(diff)
		}
	})
}

// What cannot be told is not dead.
func TestNamespaceInDoubtIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{pods: 1})
		n.mustAdd(requestFor(0))
		n.kernel.set(func(k *kernel) { k.doubt = errors.New("input/output error") })
		time.Sleep(5 * time.Minute)
		if err := n.Collect(t.Context(), "fairlead", nil); err != nil {
			t.Fatal(err)
		}
		if len(n.List()) != 1 || len(n.Problems()) != 1 {
			t.Errorf("attachments %v, problems %v", n.List(), n.Problems())
		}
	})
}

func TestCheck(t *testing.T) {
	type call struct {
		request Request
		want    Attached
	}
	for name, c := range map[string]struct {
		change func(*node, *call)
		reason Reason
		err    string
	}{
		"as it should be":          {change: func(*node, *call) {}},
		"more addresses than ours": {change: func(_ *node, c *call) { c.want.Addresses = append(c.want.Addresses, addrs("192.0.2.1")...) }},
		"unknown":                  {change: func(_ *node, c *call) { c.request.ContainerID = "nobody" }, reason: UnknownAttachment, err: "there is no such attachment"},
		"another namespace":        {change: func(_ *node, c *call) { c.request.Netns = "/run/netns/x" }, reason: Differs, err: "belongs to p0"},
		"an address is missing":    {change: func(_ *node, c *call) { c.want.Addresses = c.want.Addresses[:1] }, reason: Differs, err: "has the addresses 10.128.0.1, fd00:10::1"},
		"another MAC address":      {change: func(_ *node, c *call) { c.want.MAC = "02:00:00:00:00:01" }, reason: Differs, err: "has the MAC address 0a:58:0a:80:00:01"},
		"dead namespace":           {change: func(n *node, c *call) { n.kernel.kill(c.request.Netns) }, reason: InvalidRequest, err: "CNI_NETNS"},
		"plane fails": {change: func(n *node, _ *call) {
			n.loop.set(func(l *loop) { l.failing[intent.PortRef("c0/eth0")] = errors.New("no such device") })
		}, reason: Differs, err: "no such device"},
		"plane is behind": {change: func(n *node, _ *call) {
			n.loop.set(func(l *loop) { l.stuck = true })
			n.world.Apply(object(world.KindNode, "", "x", &world.Node{Name: "x"}))
		}, reason: TryAgain, err: "the data plane is behind"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := start(t, options{pods: 1})
				got := n.mustAdd(requestFor(0))
				call := call{requestFor(0), Attached{Addresses: got.Addresses, MAC: got.MAC.String()}}
				c.change(n, &call)
				err := n.Check(t.Context(), call.request, call.want)
				if c.err == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				if err == nil || ReasonOf(err) != c.reason || !strings.Contains(err.Error(), c.err) {
					t.Errorf("reason %v: %v", ReasonOf(err), err)
				}
			})
		})
	}
}

// A1.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options{})
		if err := n.Ready(); err != nil {
			t.Errorf("synced: %v", err)
		}
		n.loop.set(func(l *loop) { l.ready = errors.New("no netlink socket") })
		if err := n.Ready(); err == nil || !strings.Contains(err.Error(), "no netlink socket") {
			t.Errorf("dead plane: %v", err)
		}
		n.loop.set(func(l *loop) { l.ready = nil })

		n.cfg.World = world.NewStore(nil)
		if err := n.Ready(); err == nil || !strings.Contains(err.Error(), "has not been read yet (Node, ") {
			t.Errorf("nothing seen: %v", err)
		}
		checkpoint := &world.Snapshot{Position: world.Position{}}
		for _, k := range world.DatastoreKinds() {
			checkpoint.Position[k] = "7"
		}
		n.cfg.World = world.NewStore(checkpoint)
		if err := n.Ready(); err != nil {
			t.Errorf("checkpoint: %v", err)
		}
	})
	s, err := New(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Ready() == nil {
		t.Error("ready before Restore")
	}
	if _, err := s.Add(t.Context(), requestFor(0)); err == nil || ReasonOf(err) != TryAgain {
		t.Errorf("ADD before Restore: %v", err)
	}
	if err := s.Del(t.Context(), "c0", "eth0"); err == nil {
		t.Error("DEL before Restore succeeded: what it should remove would come back")
	}
}
