package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/controller/plan"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/lease"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// LeaseName is the Lease that controllers stand for, in lease.DefaultNamespace.
const LeaseName = "fairlead-controller"

// The components whose health a controller reports.
const (
	componentDatastore  = "datastore"
	componentLeader     = "leader"
	componentWrites     = "writes"
	componentCollection = "collection"
)

// Config of a Controller.
type Config struct {
	Store datastore.Store
	// Identity of this process, different from every other candidate's.
	Identity string
	// Grace is how long what has lost its Node, or its Namespace, is kept.
	Grace time.Duration
	// DefaultSubnet is created if there is no Subnet of its name; nil creates none.
	DefaultSubnet *v1alpha1.Subnet
	// NodeConditions says that there are kubelets and a scheduler: Nodes get the condition
	// NetworkUnavailable.
	NodeConditions bool
	// LeaseDuration, RenewDeadline and RetryPeriod of the election; 0 means the defaults
	// of package lease.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	Logger  *slog.Logger
	Health  *health.Registry
	Metrics *Metrics
}

// Controller is one candidate. Make it with New.
type Controller struct {
	Config
	world *world.Store
	feed  *feed.Feed
	cache *cache
}

// New checks the configuration.
func New(c Config) (*Controller, error) {
	switch {
	case c.Store == nil || c.Identity == "" || c.Logger == nil || c.Health == nil || c.Metrics == nil:
		return nil, errors.New("controller: Store, Identity, Logger, Health and Metrics are needed")
	case c.Grace <= 0:
		return nil, fmt.Errorf("controller: the grace period %s is not positive", c.Grace)
	}
	ctl := &Controller{Config: c, world: world.NewStore(nil), cache: newCache(c.NodeConditions)}
	f, err := feed.New(feed.Config{Store: c.Store, World: ctl.world, Logger: c.Logger, Seen: ctl.cache.seen})
	if err != nil {
		return nil, err
	}
	ctl.feed = f
	return ctl, nil
}

// Run follows the datastore and leads when it is elected, until ctx ends; it has then
// given up the Lease. An error means that the process must not go on.
func (c *Controller) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.feed.Run(ctx) })
	g.Go(func() error { c.watchFeed(ctx); return nil })
	g.Go(func() error { c.followServiceRanges(ctx); return nil })
	g.Go(func() error { return c.campaign(ctx) })
	return g.Wait()
}

// campaign stands for election again and again.
func (c *Controller) campaign(ctx context.Context) error {
	e := lease.Elector{
		Store: c.Store, Name: LeaseName, Identity: c.Identity, Logger: c.Logger,
		Duration: c.LeaseDuration, RenewDeadline: c.RenewDeadline, Retry: c.RetryPeriod,
	}
	for {
		c.Health.Set(componentLeader, health.OK, "standing by")
		err := e.Run(ctx, c.lead)
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, lease.ErrLost):
			return err
		}
	}
}

// Ready is nil once every kind of object has been listed.
func (c *Controller) Ready() error {
	status, _ := c.feed.Status()
	var missing []string
	for _, s := range status {
		if s.Phase == feed.Syncing {
			missing = append(missing, string(s.Kind))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("waiting for the datastore's first list of %s", strings.Join(missing, ", "))
	}
	return nil
}

// watchFeed reports how the datastore's watches are.
func (c *Controller) watchFeed(ctx context.Context) {
	for {
		status, changed := c.feed.Status()
		level, message := feedHealth(status)
		c.Health.Set(componentDatastore, level, message)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func feedHealth(status []feed.KindStatus) (health.Level, string) {
	for _, s := range status {
		switch {
		case s.Suspicious != "":
			return health.Degraded, fmt.Sprintf("%s: %s", s.Kind, s.Suspicious)
		case s.Phase == feed.Disconnected:
			return health.Degraded, fmt.Sprintf("%s: not connected since %s: %s", s.Kind, s.Since.UTC().Format(time.RFC3339), s.LastError)
		case s.Phase == feed.Syncing && s.LastError != "":
			return health.Degraded, fmt.Sprintf("%s: not listed yet: %s", s.Kind, s.LastError)
		}
	}
	return health.OK, ""
}

// collectionHealth says when many nodes are missing at once: an administrator may want
// to stop the controller before the grace period ends.
func collectionHealth(p plan.Plan) (health.Level, string) {
	n := len(p.Vanished)
	switch {
	case n >= 3 && n*5 > p.Nodes:
		due := p.Vanished[0].Due
		for _, v := range p.Vanished {
			if v.Due.Before(due) {
				due = v.Due
			}
		}
		return health.Degraded, fmt.Sprintf("%d of %d nodes have no Node object: their blocks are freed from %s on unless they return", n, p.Nodes, due.UTC().Format(time.RFC3339))
	case len(p.Held) > 0:
		return health.Degraded, fmt.Sprintf("%s %s", p.Held[0].Key, p.Held[0].Message)
	}
	return health.OK, ""
}
