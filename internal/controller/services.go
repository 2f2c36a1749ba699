package controller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

const (
	// rangesRetry is the longest pause before the ranges of Services are listed again.
	rangesRetry = 2 * time.Second
	// rangesUnknown is the same where the kind cannot be had: API servers before 1.33 do not
	// have it, and an older ClusterRole does not allow to read it.
	rangesUnknown = 10 * time.Minute
)

// followServiceRanges keeps the ranges that Services get their addresses from, for the
// conditions of Subnets. It is no kind of the world's: no agent needs them.
func (c *Controller) followServiceRanges(ctx context.Context) {
	for {
		err := c.watchServiceRanges(ctx)
		pause := rangesRetry
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			pause = rangesUnknown
			c.Logger.Info("the ranges of Services cannot be read: it is not told of Subnets that overlap them", "because", err)
		case err != nil:
			c.Logger.Debug("the ranges of Services are read again", "because", err)
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// watchServiceRanges lists them and follows their changes until the watch ends. They are a
// few: what a lost watch has missed is listed.
func (c *Controller) watchServiceRanges(ctx context.Context) error {
	list, err := c.Store.List(ctx, datastore.KindServiceCIDR)
	if err != nil {
		return fmt.Errorf("list %s: %w", datastore.KindServiceCIDR, err)
	}
	known := map[datastore.Key][]netip.Prefix{}
	for _, o := range list.Items {
		known[datastore.KeyOf(o)] = rangesOf(o)
	}
	c.cache.setServiceRanges(known)
	w, err := c.Store.Watch(ctx, datastore.KindServiceCIDR, list.ResourceVersion)
	if err != nil {
		return fmt.Errorf("watch %s: %w", datastore.KindServiceCIDR, err)
	}
	defer w.Stop()
	for e := range w.Events() {
		switch {
		case e.Object == nil:
			continue
		case e.Type == datastore.Deleted:
			delete(known, datastore.KeyOf(e.Object))
		default:
			known[datastore.KeyOf(e.Object)] = rangesOf(e.Object)
		}
		c.cache.setServiceRanges(known)
	}
	return w.Err()
}

// rangesOf are the ranges of a ServiceCIDR, those that can be read.
func rangesOf(o datastore.Object) []netip.Prefix {
	s, ok := o.(*networkingv1.ServiceCIDR)
	if !ok {
		return nil
	}
	var out []netip.Prefix
	for _, text := range s.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// setServiceRanges takes the ranges of all ServiceCIDRs.
func (c *cache) setServiceRanges(known map[datastore.Key][]netip.Prefix) {
	var all []netip.Prefix
	for _, ranges := range known {
		all = append(all, ranges...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	all = slices.Compact(all)
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(c.serviceRanges, all) {
		return
	}
	c.serviceRanges = all
	close(c.changed)
	c.changed = make(chan struct{})
}
