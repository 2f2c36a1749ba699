// Command fairlead-controller does for the whole cluster what no node can do alone:
// default objects, VNIs, the status of VPCs and Subnets, Events, and collection of what
// vanished nodes have left. Several may run; one leads.
//
// It exits with 0 after SIGTERM or SIGINT, 2 if its arguments or its configuration are
// wrong, and 1 if it cannot go on.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/controller"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/internal/datastore/kube"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/run/observe"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = "dev"

const (
	defaultConfig = "/etc/fairlead/controller.yaml"

	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2

	// kubeQPS bounds the requests a second to an API server: one controller writes for a
	// whole cluster.
	kubeQPS = 100
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := command(stderr)
	root.SetArgs(args)
	root.SetOut(stdout)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, new(runFailure)):
		return exitFailed // It is logged.
	}
	fmt.Fprintf(stderr, "fairlead-controller: %s\n", oneLine(err))
	return exitUsage
}

// runFailure is an error of the running controller, as opposed to one of its user.
type runFailure struct{ error }

func (f runFailure) Unwrap() error { return f.error }

func command(stderr io.Writer) *cobra.Command {
	var path string
	root := &cobra.Command{
		Use: "fairlead-controller", Short: "Do for the whole cluster what no node can do alone. Several may run; one leads",
		Version: fmt.Sprintf("%s (%s, %s/%s)", version, runtime.Version(), runtime.GOOS, runtime.GOARCH),
		Args:    usage.Arguments(0, 0), CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, _ []string) error { return control(cmd.Context(), path, stderr) },
	}
	root.Flags().StringVar(&path, "config", defaultConfig, "configuration file")
	usage.Strict(root)
	return root
}

// control runs the controller of a configuration until ctx ends.
func control(ctx context.Context, path string, stderr io.Writer) error {
	c, subnet, err := load(path)
	if err != nil {
		return err
	}
	store, logger, err := open(c, stderr)
	if err != nil {
		return fmt.Errorf("%s: datastore: %w", path, err)
	}
	defer func() { _ = store.Close() }() // The process ends anyway.
	if err := serve(ctx, c, subnet, store, logger); err != nil {
		logger.Error("the controller cannot go on", "err", err)
		return runFailure{err}
	}
	logger.Info("ended")
	return nil
}

// oneLine joins the lines of an error that lists several mistakes.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}

// load reads the configuration and makes the Subnet that it wants to exist.
func load(path string) (config.Controller, *v1alpha1.Subnet, error) {
	c, err := config.LoadController(path)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: write it, or name another with --config", err)
	}
	if err != nil || c.DefaultSubnet == nil {
		return c, nil, err
	}
	s := &v1alpha1.Subnet{Spec: v1alpha1.SubnetSpec{
		CIDRs: c.DefaultSubnet.CIDRs, Transport: v1alpha1.Transport(c.DefaultSubnet.Transport),
		Encapsulation: v1alpha1.Encapsulation(c.DefaultSubnet.Encapsulation), NATOutgoing: c.DefaultSubnet.NATOutgoing,
	}}
	s.Name = v1alpha1.DefaultSubnetName
	v1alpha1.DefaultSubnet(s)
	if errs := v1alpha1.ValidateSubnet(s, nil); len(errs) > 0 {
		return c, nil, fmt.Errorf("%s: defaultSubnet: %w", path, errs.ToAggregate())
	}
	return c, s, nil
}

// open prepares the connection to the datastore. It does not wait for it.
func open(c config.Controller, stderr io.Writer) (datastore.Store, *slog.Logger, error) {
	logger := c.Log.Logger(stderr)
	if k := c.Datastore.Kubernetes; k != nil {
		store, err := kube.New(kube.Config{
			Kubeconfig: k.Kubeconfig, Context: k.Context, UserAgent: "fairlead-controller/" + version, Lean: true,
			QPS: kubeQPS, Burst: 2 * kubeQPS, Logger: logger,
		})
		return store, logger, err
	}
	e := c.Datastore.Etcd
	store, err := etcd.New(etcd.Config{
		Endpoints: e.Endpoints, CA: e.CA, Cert: e.Cert, Key: e.Key, Prefix: e.Prefix,
		OnCorrupt: func(key string, err error) {
			logger.Error("the datastore holds a value that cannot be read", "key", key, "err", err)
		},
	})
	return store, logger, err
}

// serve runs the controller, and its metrics and health if they are configured, until
// ctx ends.
func serve(ctx context.Context, c config.Controller, subnet *v1alpha1.Subnet, store datastore.Store, logger *slog.Logger) error {
	states := health.NewRegistry(time.Now)
	registry := prometheus.NewRegistry()
	ctl, err := controller.New(controller.Config{
		// A restarted process is another candidate than its former life.
		Store: store, Identity: c.Identity + "-" + rand.Text()[:8],
		Grace: c.VanishedNodeGrace.Duration, DefaultSubnet: subnet, NodeConditions: c.Datastore.Kubernetes != nil,
		LeaseDuration: c.LeaderElection.LeaseDuration.Duration, RenewDeadline: c.LeaderElection.RenewDeadline.Duration,
		RetryPeriod: c.LeaderElection.RetryPeriod.Duration,
		Logger:      logger, Health: states, Metrics: controller.NewMetrics(registry),
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	if listen := c.Metrics.Listen; listen != "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
		if err != nil {
			return fmt.Errorf("metrics.listen: %w", err)
		}
		g.Go(func() error { return serveHTTP(ctx, l, observe.Handler(registry, states, ctl.Ready)) })
	}
	logger.Info("starting", "version", version, "identity", c.Identity, "metrics", c.Metrics.Listen)
	g.Go(func() error { return ctl.Run(ctx) })
	return g.Wait()
}

// serveHTTP answers until ctx ends.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopped()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics at %s: %w", l.Addr(), err)
	}
	return nil
}
