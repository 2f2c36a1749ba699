package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

const (
	// latencyNodes is how many nodes the lab has, with a pod that sends and one that
	// hears on each.
	latencyNodes = 10
	// enforceTime is the target for p99, in seconds.
	enforceTime = 0.2
	// sendEvery is how often each of the nodes is tried: the resolution.
	sendEvery = 4 * time.Millisecond
	// settle is how long nothing may be heard, or something must be, until a change is
	// taken to be in force.
	settle = 400 * time.Millisecond
)

// benchPolicyLatency writes a policy and deletes it again, and sees with packets on all
// nodes when it is in force: on the last of them, for flows that are new and for one that
// runs.
func benchPolicyLatency(ctx context.Context, e *environment) (_ []figure, err error) {
	l, err := lab.Up(ctx, lab.Options{
		Name: labName("latency"), Nodes: latencyNodes,
		Agent: e.program("fairlead-agent"), Controller: e.program("fairlead-controller"), CNI: e.program("fairlead-cni"),
	}, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Down(context.WithoutCancel(ctx))) }()
	where := map[string]string{}
	for i := range latencyNodes {
		node := fmt.Sprintf("node-%d", i+1)
		where["from-"+node], where["to-"+node] = node, node
	}
	pods, err := e.pods(ctx, l, where)
	if err != nil {
		return nil, err
	}
	store, err := etcd.New(etcd.Config{Endpoints: []string{l.Datastore()}, OnCorrupt: func(string, error) {}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	ctx, stop := context.WithCancel(ctx)
	var group errgroup.Group
	defer func() { stop(); err = errors.Join(err, group.Wait()) }()
	var all []*watched
	for i := range latencyNodes {
		node := fmt.Sprintf("node-%d", i+1)
		for _, running := range []bool{false, true} {
			w, err := watch(ctx, &group, pods["from-"+node], pods["to-"+node], running)
			if err != nil {
				return nil, err
			}
			all = append(all, w)
		}
	}
	return measureLatency(ctx, e, store, all)
}

func measureLatency(ctx context.Context, e *environment, store datastore.Store, all []*watched) ([]figure, error) {
	figures := []figure{
		{name: "a policy that denies, new flows, the last of 10 nodes", target: target{limit: enforceTime}, at: 0.99},
		{name: "the same, flows that run", target: target{limit: enforceTime}, at: 0.99},
		{name: "its deletion, new flows, the last of 10 nodes", target: target{limit: enforceTime}, at: 0.99},
	}
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: podNamespace, Name: "deny"},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	}
	if err := heard(ctx, all, time.Now()); err != nil {
		return nil, err
	}
	for range e.rounds(100) {
		began := time.Now()
		if _, err := store.Create(ctx, policy.DeepCopy()); err != nil {
			return figures, err
		}
		if err := silent(ctx, all); err != nil {
			return figures, err
		}
		var fresh, running time.Duration
		for _, w := range all {
			took := time.Unix(0, w.sent.Load()).Sub(began)
			if w.running {
				running = max(running, took)
			} else {
				fresh = max(fresh, took)
			}
		}
		figures[0].ours.add(fresh)
		figures[1].ours.add(running)
		began = time.Now()
		if err := store.Delete(ctx, datastore.KindNetworkPolicy, datastore.KeyOf(policy), datastore.Preconditions{}); err != nil {
			return figures, err
		}
		if err := heard(ctx, all, began); err != nil {
			return figures, err
		}
		var back time.Duration
		for _, w := range all {
			if !w.running {
				back = max(back, time.Unix(0, w.first.Load()).Sub(began))
			}
		}
		figures[2].ours.add(back)
	}
	return figures, nil
}

// silent waits until nothing that was sent in the last moment has been heard.
func silent(ctx context.Context, all []*watched) error {
	return untilAll(ctx, all, "is still heard", func(w *watched) bool { return time.Since(time.Unix(0, w.sent.Load())) > settle })
}

// heard waits until something that was sent after a moment has been heard of each, for
// the first time since it was silent.
func heard(ctx context.Context, all []*watched, after time.Time) error {
	return untilAll(ctx, all, "is not heard", func(w *watched) bool { return w.sent.Load() > after.UnixNano() })
}

func untilAll(ctx context.Context, all []*watched, what string, is func(*watched) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var last *watched
	err := poll(ctx, 5*time.Millisecond, func() (bool, error) {
		for _, w := range all {
			if !is(w) {
				last = w
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("pod %s %s: %w", last.name, what, err)
	}
	return err
}

// watched is a pod that another one of its node sends to.
type watched struct {
	name    string
	running bool
	// sent is when the newest packet that was heard was sent, first when the oldest one
	// since a silence was; in nanoseconds of the Unix epoch.
	sent, first atomic.Int64
}

// watch lets one pod send to the other, in one flow or in a new one each time.
func watch(ctx context.Context, group *errgroup.Group, from, to podPlace, running bool) (*watched, error) {
	w := &watched{name: to.state.Name, running: running}
	address := netip.AddrPortFrom(to.state.IPs[0], 7000)
	if running {
		address = netip.AddrPortFrom(address.Addr(), 7001)
	}
	receiver, err := netspace.Open(to.netns)
	if err != nil {
		return nil, err
	}
	defer receiver.Close()
	sender, err := netspace.Open(from.netns)
	if err != nil {
		return nil, err
	}
	var server *net.UDPConn
	err = netspace.Do(receiver, func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
		return err
	})
	if err != nil {
		return nil, errors.Join(err, sender.Close())
	}
	group.Go(func() error { w.listen(server); return nil })
	group.Go(func() error {
		err := netspace.Do(sender, func() error { return w.send(ctx, address) })
		return errors.Join(err, sender.Close(), server.Close())
	})
	return w, nil
}

// send sends the time, again and again.
func (w *watched) send(ctx context.Context, to netip.AddrPort) error {
	tick := time.NewTicker(sendEvery)
	defer tick.Stop()
	var conn *net.UDPConn
	for ctx.Err() == nil {
		if conn == nil || !w.running {
			if conn != nil {
				conn.Close()
			}
			var err error
			if conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); err != nil {
				return err
			}
		}
		// An error is that of an earlier packet.
		_, _ = conn.Write(binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano())))
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return conn.Close()
}

// listen notes what is heard, until the socket is closed.
func (w *watched) listen(server *net.UDPConn) {
	b := make([]byte, 16)
	for {
		n, err := server.Read(b)
		if err != nil {
			return
		}
		if n != 8 {
			continue
		}
		sent := int64(binary.BigEndian.Uint64(b))
		if sent-w.sent.Load() > int64(settle) {
			w.first.Store(sent)
		}
		w.sent.Store(max(sent, w.sent.Load()))
	}
}
