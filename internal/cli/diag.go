package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// bundle is what "fairlead diag" gathers: text and values, no secrets (Fairlead reads
// none, and objects' annotations of others are not in it).
type bundle struct {
	Time    time.Time                  `json:"time"`
	Version string                     `json:"version"`
	Cluster *clusterStatus             `json:"cluster,omitempty"`
	Nodes   map[string]map[string]any  `json:"nodes"`
	Objects map[string][]objectSummary `json:"objects"`
	Errors  []string                   `json:"errors,omitempty"`
}

type objectSummary struct {
	Name            string `json:"name"`
	ResourceVersion string `json:"resourceVersion"`
	Spec            any    `json:"spec,omitempty"`
	Status          any    `json:"status,omitempty"`
}

// diagPaths are what every agent is asked for.
var diagPaths = []string{"status", "audit", "peers", "attachments", "ipam", "intent", "config", "journal"}

func (a *app) diagCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "diag -o FILE", Short: "Gather what a person needs to find a fault, into one JSON file", Args: noArgs,
		Long: `Gather the state of all agents and of Fairlead's own objects into one JSON file, which only
its owner may read. Pods, Secrets, environments and annotations are not in it. What cannot be
had is named in the file and on standard error, and is no failure.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usagef("say where to write with -o FILE")
			}
			return a.diag(cmd.Context(), file)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write; it must not exist")
	return cmd
}

// diag makes the file first: gathering takes time, and a wrong name none.
func (a *app) diag(ctx context.Context, file string) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the bundle (an existing file is not overwritten): %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(file))
		}
	}()
	b, err := a.gatherBundle(ctx)
	if err != nil {
		return err
	}
	raw, err := encode("json", b)
	if err != nil {
		return err
	}
	if _, err := f.Write(raw); err != nil {
		return err
	}
	for _, e := range b.Errors {
		fmt.Fprintln(a.err, "not in the bundle:", e)
	}
	return a.say("%s: %d bytes, %d nodes", file, len(raw), len(b.Nodes))
}

// gatherBundle gathers what it can; what failed is in Errors. If neither the datastore
// nor a list of agents can be had, there is nothing to gather.
func (a *app) gatherBundle(ctx context.Context) (bundle, error) {
	b := bundle{Time: a.now().UTC(), Version: a.version, Nodes: map[string]map[string]any{}, Objects: map[string][]objectSummary{}}
	note := func(err error) {
		if err != nil {
			b.Errors = append(b.Errors, err.Error())
		}
	}
	stored := a.withStore(ctx, func(ctx context.Context, s datastore.Store) error {
		st, err := readStatus(ctx, s)
		if err == nil {
			b.Cluster = &st
		}
		for _, kind := range []datastore.Kind{datastore.KindVPC, datastore.KindSubnet, datastore.KindIPBlock, datastore.KindNodeNetwork, datastore.KindNetNamespace} {
			list, lerr := s.List(ctx, kind)
			err = errors.Join(err, lerr)
			for _, o := range list.Items {
				b.Objects[string(kind)] = append(b.Objects[string(kind)], summarize(o))
			}
		}
		return err
	})
	note(stored)
	agents, err := a.agents(ctx, nil)
	if note(err); err != nil && stored != nil {
		return bundle{}, errors.Join(stored, err)
	}
	for _, n := range agents {
		b.Nodes[n.node] = map[string]any{}
		for i, path := range diagPaths {
			var v any
			if err := n.get(ctx, "/v1/"+path, &v); err != nil {
				note(err)
				if i == 0 { // An agent that cannot say how it is says nothing.
					break
				}
				continue
			}
			b.Nodes[n.node][path] = v
		}
		n.client.Close()
	}
	return b, ctx.Err()
}

func summarize(o datastore.Object) objectSummary {
	s := objectSummary{Name: o.GetName(), ResourceVersion: o.GetResourceVersion()}
	switch o := o.(type) {
	case *v1alpha1.VPC:
		s.Spec, s.Status = o.Spec, o.Status
	case *v1alpha1.Subnet:
		s.Spec, s.Status = o.Spec, o.Status
	case *v1alpha1.IPBlock:
		s.Spec = o.Spec
	case *v1alpha1.NodeNetwork:
		s.Spec, s.Status = o.Spec, o.Status
	case *v1alpha1.NetNamespace:
		s.Spec = o.Spec
	}
	return s
}
