package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// settleLimit is how long nodes may take to tear down what was deleted.
const settleLimit = 2 * time.Minute

// churnOptions say how much comes and goes.
type churnOptions struct {
	pods, rounds int
	// fairlead is the program that checks the addresses.
	fairlead string
}

// churn makes pods on all nodes at once and deletes them again, for some rounds, and checks
// that nothing of them is left: no interface on a node, no address in a block.
func (c *cluster) churn(ctx context.Context, o churnOptions, w io.Writer) error {
	if o.pods < 1 || o.rounds < 1 {
		return errors.New("--pods and --rounds: want at least 1")
	}
	before, err := c.interfaces()
	if err != nil {
		return err
	}
	err = c.inBenchNamespace(ctx, func(ctx context.Context, a *api) error {
		ready := a.ready(ctx)
		for i := range o.rounds {
			if err := c.round(ctx, a, ready, fmt.Sprintf("churn%d", i), o.pods, true, w); err != nil {
				return fmt.Errorf("round %d: %w", i+1, err)
			}
			if err := a.deletePods(ctx); err != nil {
				return fmt.Errorf("round %d: %w", i+1, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if c.CNI != cniFairlead {
		return nil
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	// The API server forgets these pods at once; their nodes are still busy with them.
	err = poll(ctx, time.Second, func() error { return c.nothingLeft(before) })
	if err != nil {
		return err
	}
	var out string
	err = poll(ctx, time.Second, func() error {
		out, err = c.text(ctx, o.fairlead, "--kubeconfig", c.kubeconfig("admin"), "ipam", "check")
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d pods came and went %d times; %.1f s later nothing is left on any node, and ipam check is clean\n%s",
		o.pods, o.rounds, time.Since(start).Seconds(), out)
	return nil
}

// interfaces counts those of each node.
func (c *cluster) interfaces() (map[string]int, error) {
	out := map[string]int{}
	for i := 1; i <= c.Nodes; i++ {
		r, err := c.find(nodeName(i))
		if err != nil {
			return nil, err
		}
		ns, err := netspace.Open(fmt.Sprintf("/proc/%d/ns/net", r.Pid))
		if err != nil {
			return nil, err
		}
		var all []net.Interface
		err = netspace.Do(ns, func() error {
			all, err = net.Interfaces()
			return err
		})
		if err = errors.Join(err, ns.Close()); err != nil {
			return nil, fmt.Errorf("interfaces of %s: %w", r.Name, err)
		}
		out[r.Name] = len(all)
	}
	return out, nil
}

func (c *cluster) nothingLeft(before map[string]int) error {
	now, err := c.interfaces()
	if err != nil {
		return err
	}
	var left []string
	for node, n := range now {
		if n > before[node] {
			left = append(left, fmt.Sprintf("%s has %d interfaces, before it had %d", node, n, before[node]))
		}
	}
	if len(left) == 0 {
		return nil
	}
	slices.Sort(left)
	return errors.New(strings.Join(left, "; "))
}

// deletePods deletes all pods of the namespace, and waits until the API server has none.
func (a *api) deletePods(ctx context.Context) error {
	resp, err := a.do(ctx, http.MethodDelete, "namespaces/"+benchNamespace+"/pods", nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	return poll(ctx, 200*time.Millisecond, func() error {
		resp, err := a.do(ctx, http.MethodGet, "namespaces/"+benchNamespace+"/pods", nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var pods podList
		if err := json.NewDecoder(resp.Body).Decode(&pods); err != nil {
			return err
		}
		if n := len(pods.Items); n > 0 {
			return fmt.Errorf("%d pods are still there", n)
		}
		return nil
	})
}
