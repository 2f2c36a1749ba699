package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// pathShare is how much of a hand-made path's performance ours must reach.
const pathShare = 0.95

// benchPath compares traffic between pods of the lab with that over a path built by
// hand, and the latter with itself over other connections.
func benchPath(ctx context.Context, e *environment) (_ []figure, err error) {
	l, err := e.lab(ctx)
	if err != nil {
		return nil, err
	}
	pods, err := e.pods(ctx, l, map[string]string{"a": "node-1", "b": "node-1", "c": "node-2"})
	if err != nil {
		return nil, err
	}
	spaces := map[string]*os.File{}
	defer func() {
		for _, f := range spaces {
			err = errors.Join(err, f.Close())
		}
	}()
	for name, p := range pods {
		if spaces[name], err = netspace.Open(p.netns); err != nil {
			return nil, err
		}
	}
	h, err := buildHand(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	var figures []figure
	for _, place := range []struct {
		name       string
		ours, base endpoints
	}{
		{"one node", endpoints{client: spaces["a"], server: spaces["b"], addr: firstIPv4(pods["b"].state.IPs)}, h.near()},
		{"across nodes", endpoints{client: spaces["a"], server: spaces["c"], addr: firstIPv4(pods["c"].state.IPs)}, h.far()},
	} {
		more, err := comparePaths(ctx, e, place.name, pathShare, pathLoads(), place.ours, place.base)
		figures = append(figures, more...)
		if err != nil {
			return figures, fmt.Errorf("%s: %w", place.name, err)
		}
	}
	return figures, nil
}

func firstIPv4(addrs []netip.Addr) netip.Addr {
	for _, a := range addrs {
		if a.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// pathLoad is what is done over a path: so many times in a batch, so many batches.
type pathLoad struct {
	name            string
	make            newLoad
	batches, batchN int
}

func pathLoads() []pathLoad {
	return []pathLoad{
		{"TCP, 1 stream (64 KiB)", streams(1), 300, 20},
		{"TCP, 4 streams (256 KiB)", streams(4), 200, 10},
		{"request and response", requests, 400, 50},
		{"connect and close", dials, 200, 20},
	}
}

// comparePaths measures loads over a path of ours and over the baseline, and over others,
// which are compared with the baseline beside.
func comparePaths(ctx context.Context, e *environment, place string, share float64, loads []pathLoad, ours, base endpoints, beside ...besidePath) ([]figure, error) {
	paths := []endpoints{base, ours, base}
	for _, b := range beside {
		paths = append(paths, b.endpoints)
	}
	var figures []figure
	for _, t := range loads {
		costs, err := interleave(ctx, t.make, paths, e.rounds(t.batches), t.batchN)
		if err != nil {
			return figures, fmt.Errorf("%s: %w", t.name, err)
		}
		goal := target{limit: share, least: true, ratio: true, noise: true}
		name := place + ", " + t.name
		figures = append(figures,
			figure{name: name + ": wall", ours: costs[1].wall, base: costs[0].wall, again: costs[2].wall, inverse: true, target: goal},
			figure{name: name + ": CPU", ours: costs[1].cpu, base: costs[0].cpu, again: costs[2].cpu, inverse: true, target: goal},
		)
		for i, b := range beside {
			figures = append(figures, figure{name: name + ": CPU, " + b.name, ours: costs[3+i].cpu, base: costs[0].cpu, again: costs[2].cpu, inverse: true})
		}
	}
	return figures, nil
}

// besidePath is a path that is measured for information.
type besidePath struct {
	name string
	endpoints
}

// interleave runs a load over several paths in turn.
func interleave(ctx context.Context, start newLoad, paths []endpoints, batches, n int) ([]cost, error) {
	var loads []*load
	defer func() {
		for _, l := range loads {
			l.close()
		}
	}()
	for _, p := range paths {
		l, err := start(p)
		if err != nil {
			return nil, err
		}
		loads = append(loads, l)
	}
	costs := make([]cost, len(paths))
	for b := range batches + 1 {
		for i := range loads {
			i = (i + b) % len(loads)
			into := &costs[i]
			if b == 0 { // fills caches and opens windows
				into = &cost{}
			}
			if err := loads[i].batch(ctx, n, into); err != nil {
				return nil, err
			}
		}
	}
	return costs, nil
}
