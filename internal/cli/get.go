package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

func (a *app) getCommand() *cobra.Command {
	var namespace, node string
	var everywhere bool
	cmd := &cobra.Command{
		Use: "get KIND[,KIND…] [NAME]", Short: "List objects, or show one", Args: usage.Arguments(1, 2),
		Long: `List objects of a kind, or of several, or show one: KIND NAME or KIND/NAME. NAME may be
NAMESPACE/NAME.

Kinds may be written as kubectl takes them (pods, po, subnet, netns, …). "get peers [NODE]"
asks the nodes' agents how packets reach the other nodes, or the one that is named.`,
		Example:           "  fairlead get pods\n  fairlead get pod shop/web -o yaml\n  fairlead get vpcs,subnets\n  fairlead get peers node-2 --node node-1",
		ValidArgsFunction: a.completeObject,
	}
	format := outputFlag(cmd)
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "objects of all namespaces: the default, but for a cluster")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only objects of this namespace; with NAME, its namespace (default: the context's; without one, all, and with NAME \"default\")")
	usage.Contradict(cmd, "all-namespaces", "namespace")
	cmd.Flags().StringVar(&node, "node", "", "with peers: only as this node sees them")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if strings.EqualFold(args[0], "peers") || strings.EqualFold(args[0], "peer") {
			if namespace != "" {
				return usagef("peers are nodes, which have no namespace: leave out -n")
			}
			return a.getPeers(cmd.Context(), node, strings.Join(args[1:], ""), format)
		}
		if node != "" {
			return usagef("--node goes with get peers only")
		}
		kinds, name, err := readTarget(args)
		if err != nil {
			return usageError(err)
		}
		var key datastore.Key
		in := namespace
		switch {
		case name != "":
			key, err = a.keyFor(kinds[0], namespace, name)
		case slices.ContainsFunc(kinds, isNamespaced) && !everywhere:
			in, err = a.namespace(namespace)
		}
		if err != nil {
			return err
		}
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			if name != "" {
				return a.getOne(ctx, s, kinds[0], key, key.Namespace != "" && namespace == "" && !strings.Contains(name, "/"), format)
			}
			return a.getAll(ctx, s, kinds, in, format)
		})
	}
	return cmd
}

// readTarget reads what to get: KIND[,KIND…], KIND NAME, or KIND/NAME. Without a name it
// is all objects of the kinds.
func readTarget(args []string) (kinds []datastore.Kind, name string, err error) {
	words, name, slash := strings.Cut(args[0], "/")
	switch {
	case slash && (name == "" || words == ""):
		return nil, "", fmt.Errorf("%q is not KIND/NAME, such as pod/web", args[0])
	case slash && len(args) > 1:
		return nil, "", fmt.Errorf("%q names an object already: one at a time, %q is one too many", args[0], args[1])
	case len(args) > 1:
		if name = args[1]; name == "" {
			return nil, "", errors.New("the name is empty")
		}
	}
	if strings.Contains(name, ",") {
		return nil, "", fmt.Errorf("%q names more than one object: a list is of kinds (get vpcs,subnets), a name stands alone (get vpc/NAME)", strings.Join(args, " "))
	}
	for _, word := range strings.Split(words, ",") {
		kind, err := datastore.ParseKind(word)
		if err != nil {
			return nil, "", err
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	if name != "" && len(kinds) > 1 {
		return nil, "", fmt.Errorf("a name goes with one kind, not with %d", len(kinds))
	}
	return kinds, name, nil
}

func isNamespaced(kind datastore.Kind) bool {
	r, err := datastore.Lookup(kind)
	return err == nil && r.Namespaced
}

func (a *app) eventsCommand() *cobra.Command {
	var namespace string
	var everywhere bool
	cmd := &cobra.Command{Use: "events", Short: "List events: what is wrong with objects that have no status", Args: usage.Arguments(0, 0)}
	format := outputFlag(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only events of this namespace (default: the context's; without one, all)")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "events of all namespaces: the default, but for a cluster")
	usage.Contradict(cmd, "all-namespaces", "namespace")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if !everywhere {
			if namespace, err = a.namespace(namespace); err != nil {
				return err
			}
		}
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			return a.getAll(ctx, s, []datastore.Kind{datastore.KindEvent}, namespace, format)
		})
	}
	return cmd
}

// keyFor builds a key from what a person typed: "ns/name", or name with the namespace of -n,
// else the context's, else "default". What -n and the name say must not contradict.
func (a *app) keyFor(kind datastore.Kind, given, name string) (datastore.Key, error) {
	r, err := datastore.Lookup(kind)
	if err != nil {
		return datastore.Key{}, usageError(err)
	}
	key := datastore.Key{Name: name}
	ns, rest, found := strings.Cut(name, "/")
	switch {
	case !r.Namespaced && given != "":
		return datastore.Key{}, usagef("%s have no namespace: leave out -n", r.Plural)
	case !r.Namespaced:
	case found && given != "" && given != ns:
		return datastore.Key{}, usagef("%s is in namespace %s, and -n says %s: leave out one of them", name, ns, given)
	case found:
		key = datastore.Key{Namespace: ns, Name: rest}
	default:
		in, err := a.namespace(given)
		if err != nil {
			return datastore.Key{}, err
		}
		key.Namespace = cmp.Or(in, metav1.NamespaceDefault)
	}
	if err := r.CheckKey(key); err != nil {
		return datastore.Key{}, usageError(err)
	}
	return key, nil
}

// getOne shows one object; assumed says that nobody has named its namespace.
func (a *app) getOne(ctx context.Context, s datastore.Store, kind datastore.Kind, key datastore.Key, assumed bool, format *outputFormat) error {
	o, err := s.Get(ctx, kind, key)
	if apierrors.IsNotFound(err) && assumed {
		return fmt.Errorf("%w in namespace %s; name another with -n, or as NAMESPACE/NAME", err, key.Namespace)
	}
	if err != nil {
		return err
	}
	withKind(kind, o)
	return a.printObjects(ctx, s, kind, format, o, []datastore.Object{o})
}

// objectList is a List as kubectl prints it.
type objectList struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ListMeta    `json:"metadata"`
	Items           []datastore.Object `json:"items"`
}

func (a *app) getAll(ctx context.Context, s datastore.Store, kinds []datastore.Kind, namespace string, format *outputFormat) error {
	if i := slices.IndexFunc(kinds, func(k datastore.Kind) bool { return !isNamespaced(k) }); namespace != "" && i >= 0 {
		r, err := datastore.Lookup(kinds[i])
		if err != nil {
			return usageError(err)
		}
		return usagef("%s have no namespace: leave out -n", r.Plural)
	}
	all := objectList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: []datastore.Object{}}
	for _, kind := range kinds {
		items, version, err := listIn(ctx, s, kind, namespace)
		if err != nil {
			return err
		}
		if len(kinds) == 1 {
			all.Metadata.ResourceVersion = version
		}
		all.Items = append(all.Items, items...)
		if !format.forPeople() || len(items) == 0 {
			continue
		}
		if len(all.Items) > len(items) {
			fmt.Fprintln(a.out)
		}
		if err := a.printObjects(ctx, s, kind, format, nil, items); err != nil {
			return err
		}
	}
	if format.forPeople() && len(all.Items) > 0 {
		return nil
	}
	return a.print(format, all, func(bool) table { return table{} })
}

// listIn lists the objects of a kind that are in a namespace, or all.
func listIn(ctx context.Context, s datastore.Store, kind datastore.Kind, namespace string) (items []datastore.Object, resourceVersion string, err error) {
	list, err := s.List(ctx, kind)
	if err != nil {
		return nil, "", err
	}
	items = slices.DeleteFunc(list.Items, func(o datastore.Object) bool { return namespace != "" && o.GetNamespace() != namespace })
	for _, o := range items {
		withKind(kind, o)
	}
	if kind == datastore.KindEvent {
		slices.SortStableFunc(items, func(x, y datastore.Object) int { return lastSeen(x).Compare(lastSeen(y)) })
	}
	return items, list.ResourceVersion, nil
}

// printObjects prints value, or the table of items.
func (a *app) printObjects(ctx context.Context, s datastore.Store, kind datastore.Kind, format *outputFormat, value any, items []datastore.Object) error {
	var more []column
	if format.forPeople() {
		var err error
		if more, err = policyColumns(ctx, s, kind, items); err != nil {
			return err
		}
	}
	return a.print(format, value, func(wide bool) table { return a.drawObjects(kind, items, wide, more...) })
}

// lastSeen is when an object was news: events are counted, others are made once.
func lastSeen(o datastore.Object) time.Time {
	if e, ok := o.(*corev1.Event); ok && !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return o.GetCreationTimestamp().Time
}

// withKind fills in what typed objects leave out, so that what is printed can be
// applied again.
func withKind(kind datastore.Kind, o datastore.Object) {
	if r, err := datastore.Lookup(kind); err == nil {
		o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
	}
}
