package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/agent/addresses"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
	"github.com/fairlead-sdn/fairlead/lab/etcdserver"
)

// allocations of one round, from that many callers at once.
const (
	allocations = 1000
	allocators  = 10
)

// benchIPAM gives out addresses as an agent does: blocks are claimed in the
// datastore, allocations published there. A round ends when the last caller has its
// address, and, second figure, when the datastore has them all.
func benchIPAM(ctx context.Context, e *environment) (_ []figure, err error) {
	server, err := etcdserver.Start(ctx, etcdserver.Config{Dir: filepath.Join(e.dir, "etcd")})
	if err != nil {
		return nil, err
	}
	defer server.Close()
	var onMemory, onEtcd, again [2]samples
	for i := range e.rounds(20) {
		open := func() (datastore.Store, error) {
			return etcd.New(etcd.Config{Endpoints: []string{server.Endpoint()}, Prefix: fmt.Sprintf("/bench-%d", i)})
		}
		for _, s := range []struct {
			open func() (datastore.Store, error)
			into *[2]samples
		}{
			{func() (datastore.Store, error) { return memory.New(memory.Config{}), nil }, &onMemory},
			{open, &onEtcd},
			{func() (datastore.Store, error) { return memory.New(memory.Config{}), nil }, &again},
		} {
			store, err := s.open()
			if err != nil {
				return nil, err
			}
			err = allocateRound(ctx, store, s.into)
			if err := errors.Join(err, store.Close()); err != nil {
				return nil, err
			}
		}
	}
	return []figure{
		{name: "memory, given", unit: perSecond, ours: onMemory[0], base: onMemory[0], again: again[0]},
		{name: "memory, published", unit: perSecond, ours: onMemory[1], base: onMemory[1], again: again[1]},
		{name: "etcd, given", unit: perSecond, ours: onEtcd[0], base: onMemory[0], again: again[0]},
		{name: "etcd, published", unit: perSecond, ours: onEtcd[1], base: onMemory[1], again: again[1]},
	}, nil
}

// noRecords keeps nothing: the disk is not what is measured.
type noRecords struct{}

func (noRecords) Load() (addresses.State, error) { return addresses.State{}, nil }
func (noRecords) Save(addresses.State) error     { return nil }

func allocateRound(ctx context.Context, store datastore.Store, into *[2]samples) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := store.Create(ctx, &v1alpha1.Subnet{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.SubnetSpec{VPC: "default", CIDRs: []string{"10.128.0.0/14"}},
	})
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	w := world.NewStore(nil)
	f, err := feed.New(feed.Config{Store: store, World: w, Logger: log})
	if err != nil {
		return err
	}
	s, err := addresses.New(addresses.Config{Node: "node-1", Store: store, World: w, Records: noRecords{}, Logger: log})
	if err != nil {
		return err
	}
	if err := s.Restore(ctx, attach.Held{}); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	failed := make(chan error, 2)
	for _, run := range []func(context.Context) error{f.Run, s.Run} {
		wg.Go(func() { failed <- run(running) })
	}
	// The allocator has heard of the Subnet a moment after the world.
	if err := poll(ctx, time.Millisecond, func() (bool, error) { return len(s.Usage()) > 0, nil }); err != nil {
		return fmt.Errorf("wait for the Subnet: %w", err)
	}
	start := time.Now()
	if err := allocateAll(ctx, s); err != nil {
		return err
	}
	(*into)[0] = append((*into)[0], allocations/time.Since(start).Seconds())
	if err := published(ctx, w); err != nil {
		return err
	}
	(*into)[1] = append((*into)[1], allocations/time.Since(start).Seconds())
	return nil
}

// published waits until the world has seen every allocation in the datastore.
func published(ctx context.Context, w *world.Store) error {
	for {
		s, changed := w.Snapshot()
		seen := 0
		for b := range s.Blocks.Values() {
			for _, a := range b.Allocations {
				if a.Owner.Namespace != "" {
					seen++
				}
			}
		}
		if seen == allocations {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d allocations to be published, of which %d are: %w", allocations, seen, ctx.Err())
		}
	}
}

func allocateAll(ctx context.Context, s *addresses.Service) error {
	errs := make([]error, allocators)
	var given sync.Map
	var wg sync.WaitGroup
	for i := range allocators {
		wg.Go(func() {
			for j := range allocations / allocators {
				owner := world.Owner{Namespace: "bench", Name: fmt.Sprintf("pod-%d-%d", i, j), UID: fmt.Sprintf("uid-%d-%d", i, j)}
				addrs, err := s.Allocate(ctx, ipam.Request{Subnet: "default", V4: true, Owner: owner})
				if err == nil {
					err = unique(&given, addrs)
				}
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// unique is the least that a benchmark of an allocator must check.
func unique(given *sync.Map, addrs []netip.Addr) error {
	for _, a := range addrs {
		if _, twice := given.LoadOrStore(a, true); twice {
			return fmt.Errorf("%s was given twice", a)
		}
	}
	return nil
}
