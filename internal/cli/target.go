package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/internal/datastore/kube"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
)

// callTimeout bounds what a command asks of the datastore.
const callTimeout = 30 * time.Second

// targetFlags say which network a command is about.
type targetFlags struct {
	lab, root     string
	etcd          []string
	ca, cert, key string
	prefix        string
	// kubeconfig and context name a cluster; plugin says that we are called as
	// "kubectl fairlead", where they have defaults.
	kubeconfig, context string
	plugin              bool
	// agentNamespace is where the agents' pods of a cluster are.
	agentNamespace string
}

// isPlugin tells whether the program is called by kubectl.
func isPlugin(program string) bool { return strings.HasPrefix(filepath.Base(program), "kubectl-") }

// kubernetes tells whether the flags name a cluster.
func (f *targetFlags) kubernetes() bool {
	return f.kubeconfig != "" || f.context != "" || f.plugin && f.lab == "" && len(f.etcd) == 0
}

// check refuses flags that name two networks.
func (f *targetFlags) check() error {
	var named []string
	if f.lab != "" {
		named = append(named, "--lab")
	}
	if len(f.etcd) > 0 {
		named = append(named, "--etcd")
	}
	if f.kubeconfig != "" || f.context != "" {
		named = append(named, "--kubeconfig and --context")
	}
	if len(named) > 1 {
		return usagef("%s each name a network: give one", strings.Join(named, ", "))
	}
	return nil
}

// kubeconfigs are the files that kubectl would read.
func (f *targetFlags) kubeconfigs() string {
	return cmp.Or(f.kubeconfig, os.Getenv("KUBECONFIG"), kube.HomeConfig())
}

func (f *targetFlags) register(root *cobra.Command) {
	p := root.PersistentFlags()
	p.StringVar(&f.lab, "lab", "", "name of the lab (default: the only one that runs, else \"default\")")
	p.StringVar(&f.root, "lab-root", lab.DefaultRoot, "directory that labs live in")
	p.StringSliceVar(&f.etcd, "etcd", nil, "URLs of an etcd, instead of a lab")
	p.StringVar(&f.ca, "etcd-ca", "", "PEM file of the etcd servers' authority")
	p.StringVar(&f.cert, "etcd-cert", "", "PEM file of the client's certificate")
	p.StringVar(&f.key, "etcd-key", "", "PEM file of the client's key")
	p.StringVar(&f.prefix, "etcd-prefix", etcd.DefaultPrefix, "prefix of Fairlead's keys in etcd")
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of a cluster, instead of a lab (default with --context and as a plugin of kubectl: as kubectl's)")
	p.StringVar(&f.context, "context", "", "context of the kubeconfig (default: its current one)")
	p.StringVar(&f.agentNamespace, "agent-namespace", defaultAgentNamespace, "namespace of the agents' pods in a cluster")
	// The only mistake is a flag that does not exist, which a test finds.
	_ = root.RegisterFlagCompletionFunc("lab", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		labs, err := lab.List(f.root)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, l := range labs {
			names = append(names, l.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}

// openLab finds the lab that the flags name.
func (a *app) openLab() (*lab.Lab, error) {
	if err := a.flags.check(); err != nil {
		return nil, err
	}
	if len(a.flags.etcd) > 0 || a.flags.kubeconfig != "" || a.flags.context != "" {
		return nil, usagef("this command is about a lab: leave out --etcd, --kubeconfig and --context")
	}
	return lab.Open(a.flags.root, a.flags.lab)
}

// targetStore opens the datastore that the flags name.
func (a *app) targetStore() (datastore.Store, error) {
	if err := a.flags.check(); err != nil {
		return nil, err
	}
	if a.flags.kubernetes() {
		return a.kubeStore(a.flags.kubeconfigs())
	}
	if len(a.flags.etcd) > 0 {
		return a.etcdStore(a.flags.etcd)
	}
	l, err := lab.Open(a.flags.root, a.flags.lab)
	switch {
	case err == nil:
		return a.etcdStore([]string{l.Datastore()})
	case errors.Is(err, lab.ErrNotFound) && kube.InPod():
		return a.kubeStore("")
	case errors.Is(err, lab.ErrNotFound):
		return nil, fmt.Errorf("%w; for a cluster give --kubeconfig FILE or --context NAME, or its etcd with --etcd URL", err)
	}
	return nil, err
}

func (a *app) etcdStore(endpoints []string) (datastore.Store, error) {
	return etcd.New(etcd.Config{
		Endpoints: endpoints, CA: a.flags.ca, Cert: a.flags.cert, Key: a.flags.key, Prefix: a.flags.prefix,
		OnCorrupt: func(key string, err error) {
			// A command may read a value several times, and from several goroutines.
			if _, before := a.unreadable.LoadOrStore(key, err); !before {
				fmt.Fprintf(a.err, "warning: %s cannot be read: %v\n", key, err)
			}
		},
	})
}

// kubeStore connects to the cluster of a kubeconfig, or without one to that of this pod.
func (a *app) kubeStore(kubeconfig string) (datastore.Store, error) {
	return kube.New(kube.Config{
		Kubeconfig: kubeconfig, Context: a.flags.context, UserAgent: "fairlead/" + a.version,
		Logger: slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelError})),
	})
}

// withStore runs f with the datastore and a bounded context.
func (a *app) withStore(ctx context.Context, f func(context.Context, datastore.Store) error) error {
	return a.useStore(ctx, func(ctx context.Context, s datastore.Store) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return f(ctx, s)
	})
}

// useStore is withStore for f that bounds each of many calls by itself.
func (a *app) useStore(ctx context.Context, f func(context.Context, datastore.Store) error) (err error) {
	store, err := a.openStore()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return f(ctx, store)
}

// targetAgents returns a door to the agent of each node that is named, or of every node:
// in a lab its socket, in a cluster its pod. With an etcd alone only the agent of this very
// host can be asked.
func (a *app) targetAgents(ctx context.Context, names []string) ([]agentOf, error) {
	if err := a.flags.check(); err != nil {
		return nil, err
	}
	switch {
	case len(a.flags.etcd) > 0:
		return localAgent(ctx, claims.AdminSocket, names)
	case a.flags.kubernetes():
		return a.clusterAgents(ctx, names)
	}
	l, err := a.openLab()
	if errors.Is(err, lab.ErrNotFound) && kube.InPod() {
		if _, err := os.Stat(claims.AdminSocket); err == nil { // This is an agent's pod.
			return localAgent(ctx, claims.AdminSocket, names)
		}
		return a.clusterAgents(ctx, names)
	}
	if err != nil {
		return nil, err
	}
	s, err := l.Status(ctx)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, n := range s.Nodes {
		all = append(all, n.Name)
	}
	for _, n := range names {
		if !slices.Contains(all, n) {
			return nil, noNode(n, all)
		}
	}
	if len(names) == 0 {
		names = all
	}
	var out []agentOf
	for _, n := range names {
		out = append(out, agentOf{node: n, client: admin.NewClient(l.AdminSocket(n))})
	}
	return out, nil
}

// localAgent asks the agent of this host which node it is.
func localAgent(ctx context.Context, socket string, names []string) ([]agentOf, error) {
	if len(names) > 1 {
		return nil, usagef("with --etcd, and in an agent's pod, only the agent of this host can be asked: name one node, or none")
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client := admin.NewClient(socket)
	var s admin.Status
	if err := client.Get(ctx, "/v1/status", &s); err != nil {
		client.Close()
		return nil, fmt.Errorf("with --etcd, and in an agent's pod, only the agent of this host can be asked: run the command on the node: %w", err)
	}
	if len(names) == 1 && names[0] != s.Node {
		client.Close()
		return nil, usagef("with --etcd, and in an agent's pod, only the agent of this host can be asked, and this is %s: run the command on %s", s.Node, names[0])
	}
	return []agentOf{{node: s.Node, client: client}}, nil
}
