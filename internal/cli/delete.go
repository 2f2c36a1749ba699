package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

func (a *app) deleteCommand() *cobra.Command {
	var files, keys []string
	var namespace string
	var o deletion
	cmd := &cobra.Command{
		Use: "delete KIND NAME… | delete -f FILE | delete --key KEY", Short: "Delete objects", ValidArgsFunction: a.completeObjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(keys) > 0 {
				if len(args)+len(files) > 0 {
					return usagef("delete by --key, by -f or by KIND NAME: one of them")
				}
				return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
					return a.deleteKeys(ctx, s, keys, o)
				})
			}
			targets, err := a.targets(files, namespace, args)
			if err != nil {
				return err
			}
			return a.useStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
				return a.deleteAll(ctx, s, targets, o)
			})
		},
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "delete what these files describe")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of objects that name none (default: the context's, or \"default\")")
	cmd.Flags().StringArrayVar(&keys, "key", nil, "delete a key of etcd that is no object's, as status names it")
	cmd.Flags().BoolVar(&o.ignore, "ignore-not-found", false, "what is not there is no error")
	cmd.Flags().BoolVar(&o.force, "force", false, "delete a Subnet or an IPBlock whose addresses pods have, or a VPC that has Subnets: the pods lose their network")
	return cmd
}

type target struct {
	kind datastore.Kind
	key  datastore.Key
}

func (a *app) targets(files []string, namespace string, args []string) ([]target, error) {
	switch {
	case len(files) > 0 && len(args) > 0:
		return nil, usagef("delete by -f or by KIND NAME, not both")
	case len(files) > 0:
		manifests, err := a.read(files, namespace)
		if err != nil {
			return nil, err
		}
		var out []target
		// What came last may need what came first.
		for _, m := range slices.Backward(manifests) {
			for _, o := range slices.Backward(m.objects) {
				kind, err := datastore.KindOf(o)
				if err != nil {
					return nil, usageError(err)
				}
				out = append(out, target{kind, datastore.KeyOf(o)})
			}
		}
		return out, nil
	case len(args) == 1 && strings.Contains(args[0], "/"):
		args = strings.SplitN(args[0], "/", 2) // KIND/NAME, as get takes it
	case len(args) < 2:
		return nil, usagef("say what to delete: KIND NAME, KIND/NAME, or -f FILE; such as fairlead delete pod shop/web")
	}
	kind, err := datastore.ParseKind(args[0])
	if err != nil {
		return nil, usageError(err)
	}
	var out []target
	for _, name := range args[1:] {
		key, err := a.keyFor(kind, namespace, name)
		if err != nil {
			return nil, err
		}
		out = append(out, target{kind, key})
	}
	return out, nil
}

// deletion is how delete goes about it.
type deletion struct{ ignore, force bool }

// deleteAll goes on where one cannot be deleted.
func (a *app) deleteAll(ctx context.Context, s datastore.Store, targets []target, o deletion) error {
	failed := 0
	for _, t := range targets {
		name := strings.ToLower(string(t.kind)) + "/" + t.key.String()
		err := permanent(t)
		if err == nil && !o.force {
			// What goes along with its users may have to wait until they are gone.
			err = unused(ctx, s, t, len(targets) > 1)
		}
		if err == nil {
			err = remove(ctx, s, t)
		}
		switch {
		case apierrors.IsNotFound(err) && o.ignore:
		case isAway(err):
			return fmt.Errorf("delete stopped at %s: %w", name, err)
		case err != nil:
			failed++
			fmt.Fprintf(a.err, "%s: %v\n", name, err)
		default:
			if err := a.say("%s deleted", name); err != nil {
				return err
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s not deleted", failed, count(len(targets), "object was", "objects were"))
	}
	return nil
}

// keyed is a datastore in which keys may be that are no object's.
type keyed interface {
	Strays(context.Context) ([]string, error)
	DeleteStray(ctx context.Context, key string) error
}

// deleteKeys deletes what nothing else can delete.
func (a *app) deleteKeys(ctx context.Context, s datastore.Store, keys []string, o deletion) error {
	in, ok := s.(keyed)
	if !ok {
		return usagef("--key is about an etcd of Fairlead's own: this datastore has none")
	}
	failed := 0
	for _, text := range keys {
		key := text
		if raw, err := strconv.Unquote(text); err == nil {
			key = raw
		}
		switch err := in.DeleteStray(ctx, key); {
		case apierrors.IsNotFound(err) && o.ignore:
		case apierrors.IsNotFound(err), apierrors.IsBadRequest(err):
			failed++
			fmt.Fprintf(a.err, "%v\n", err)
		case err != nil:
			return err
		default:
			if err := a.say("key %s deleted", text); err != nil {
				return err
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s not deleted", failed, count(len(keys), "key was", "keys were"))
	}
	return nil
}

// quoteKey is a key of etcd as a person can read it, and give it to delete --key.
func quoteKey(key string) string {
	if utf8.ValidString(key) && !strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) && !strings.HasPrefix(key, `"`) && !strings.Contains(key, "'") {
		return key
	}
	// In a shell it stands between single quotes.
	return strings.ReplaceAll(strconv.QuoteToASCII(key), "'", `\u0027`)
}

func remove(ctx context.Context, s datastore.Store, t target) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.Delete(ctx, t.kind, t.key, datastore.Preconditions{})
}

// How long a deletion waits for the pods that were deleted with it, and how often it
// looks.
const (
	unusedWait = 15 * time.Second
	unusedPoll = 100 * time.Millisecond
)

// unused refuses the deletion of what pods need. With wait it gives them time to go.
func unused(ctx context.Context, s datastore.Store, t target, wait bool) error {
	ctx, cancel := context.WithTimeout(ctx, unusedWait)
	defer cancel()
	for {
		why, err := users(ctx, s, t)
		if err != nil || why == "" {
			return err
		}
		refusal := fmt.Errorf("%s; delete what uses it first, or say --force", why)
		if !wait {
			return refusal
		}
		poll := time.NewTimer(unusedPoll)
		select {
		case <-poll.C:
		case <-ctx.Done():
			poll.Stop()
			return refusal
		}
	}
}

// permanent refuses the deletion of what every cluster has, whatever it is asked with.
func permanent(t target) error {
	switch {
	case t.kind == datastore.KindNamespace && slices.Contains([]string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}, t.key.Name):
		return fmt.Errorf("every cluster has this namespace, and it is never deleted; fairlead get pods -n %s lists what may be deleted in it", t.key.Name)
	case t.kind == datastore.KindVPC && t.key.Name == packet.DefaultVPC:
		return errors.New("what names no VPC is in this one, and the controller would make it again at once; fairlead apply changes it")
	}
	return nil
}

// users says what needs an object, empty if nothing does.
func users(ctx context.Context, s datastore.Store, t target) (string, error) {
	switch t.kind {
	case datastore.KindSubnet:
		return held(ctx, s, func(b *v1alpha1.IPBlock) bool { return b.Spec.Subnet == t.key.Name })
	case datastore.KindIPBlock:
		return held(ctx, s, func(b *v1alpha1.IPBlock) bool { return b.Name == t.key.Name })
	case datastore.KindVPC:
		subnets, err := listTyped[*v1alpha1.Subnet](ctx, s, datastore.KindSubnet)
		for _, n := range subnets {
			if n.Spec.VPC == t.key.Name {
				return "it has the Subnet " + n.Name, err
			}
		}
		return "", err
	}
	return "", nil
}

// held says how many addresses pods have of some blocks.
func held(ctx context.Context, s datastore.Store, of func(*v1alpha1.IPBlock) bool) (string, error) {
	blocks, err := listTyped[*v1alpha1.IPBlock](ctx, s, datastore.KindIPBlock)
	n := 0
	for _, b := range blocks {
		if !of(b) {
			continue
		}
		n += len(b.Spec.Lent)
		for _, o := range b.Spec.Allocations {
			if o.Namespace != "" {
				n++
			}
		}
	}
	if err != nil || n == 0 {
		return "", err
	}
	return fmt.Sprintf("pods have %s of it", count(n, "address", "addresses")), nil
}
