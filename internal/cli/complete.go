package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// completeTimeout bounds how long somebody who pressed Tab waits.
const completeTimeout = 2 * time.Second

// completeObject completes the kind and the name of an object.
func (a *app) completeObject(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeObjects(cmd, args, text)
}

// completeObjects completes a kind and any number of names.
func (a *app) completeObjects(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		var out []string
		for _, k := range datastore.Kinds() {
			if r, err := datastore.Lookup(k); err == nil {
				out = append(out, r.Plural)
			}
		}
		if cmd.Name() == "get" {
			out = append(out, "peers")
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	if args[0] == "peers" {
		return a.completeNodes(cmd, args, "")
	}
	kind, err := datastore.ParseKind(args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeNames(cmd.Context(), kind)
}

func (a *app) completeNames(ctx context.Context, kind datastore.Kind) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	var out []string
	err := a.withStore(ctx, func(ctx context.Context, s datastore.Store) error {
		list, err := s.List(ctx, kind)
		for _, o := range list.Items {
			out = append(out, datastore.KeyOf(o).String())
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
