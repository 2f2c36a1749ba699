package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// whatifReport is what a change would do (docs/cli.md: fields are added, never renamed).
type whatifReport struct {
	// Changes are the objects that would be created, changed or deleted.
	Changes []whatifChange `json:"changes"`
	// Reach are the pairs that could talk and cannot any more, or the other way round.
	Reach []reachGroup `json:"reach"`
	// Pairs were judged, each with a port and an address family; Changed of them change.
	Pairs   int `json:"pairs"`
	Changed int `json:"changed"`
	// Limited says what was not looked at; empty: everything was.
	Limited string `json:"limited,omitempty"`
	// Flows that exist and would break.
	Flows []brokenFlow `json:"flows"`
	// Unknown: nodes whose flows could not be read, and why.
	Unknown []string `json:"unknown"`
	// Problems of the policies of the files.
	Problems []policyProblem `json:"problems"`
	Notes    []string        `json:"notes,omitempty"`

	// sizes are the pods of each namespace that were judged.
	sizes map[string]int
}

// whatifChange is one object of the files.
type whatifChange struct {
	// Action is "create", "change", "delete", or "none".
	Action string `json:"action"`
	Object string `json:"object"`
}

func (a *app) policyWhatifCommand() *cobra.Command {
	var files []string
	var namespace string
	var remove, noFlows bool
	cmd := &cobra.Command{
		Use: "whatif -f FILE", Short: "Show who could reach whom if objects were applied, and which flows would break", Args: usage.Arguments(0, 0),
		Long: `Show what would change if the objects of files were applied, or, with --delete, deleted:
who could reach whom, and which flows that exist would break. Nothing is changed.

Every pair of pods is judged on the container ports of the one that receives, nodes and
addresses outside by a few that stand for all. The exit code is 1 if a flow would break,
or if a node could not be asked for its flows.`,
	}
	format := outputFlag(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file, directory, or - for standard input; may be repeated")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of objects that name none (default: the context's, or \"default\")")
	cmd.Flags().BoolVar(&remove, "delete", false, "look at what deleting the objects would do")
	cmd.Flags().BoolVar(&noFlows, "no-flows", false, "do not ask nodes for flows")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		manifests, err := a.read(files, namespace)
		if err != nil {
			return err
		}
		return a.useStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			r, err := a.whatif(ctx, s, manifests, remove, !noFlows)
			if err != nil {
				return err
			}
			if err := a.printWhatif(format, r); err != nil {
				return err
			}
			if len(r.Flows)+len(r.Unknown) > 0 {
				return exitError(exitFailed)
			}
			return nil
		})
	}
	return cmd
}

func (a *app) whatif(ctx context.Context, s datastore.Store, manifests []manifest, remove, flows bool) (*whatifReport, error) {
	reading, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	before, err := readWorld(reading, s)
	if err != nil {
		return nil, err
	}
	o := overlay{store: s, world: world.NewStore(before), report: &whatifReport{
		Changes: []whatifChange{}, Reach: []reachGroup{}, Flows: []brokenFlow{}, Unknown: []string{}, Problems: []policyProblem{},
	}, staged: map[datastore.Kind]map[datastore.Key]datastore.Object{}}
	if err := o.all(reading, manifests, remove); err != nil {
		return nil, err
	}
	after, _ := o.world.Snapshot()
	c := newComparison(before, after)
	if err := c.run(ctx, o.report); err != nil {
		return nil, err
	}
	o.report.sizes = c.sizes()
	if !remove {
		o.report.Problems = append(o.report.Problems, problemsOf(after, o.policies)...)
	}
	if flows {
		a.findBroken(ctx, c, o.report)
	}
	return o.report, nil
}

// stagedVersion is the resourceVersion of objects that only the files create.
const stagedVersion = "1"

// overlay lays the objects of files over a world, as the datastore would take them.
type overlay struct {
	store  datastore.Store
	world  *world.Store
	report *whatifReport
	// staged are the objects of the files as they would be stored; nil: deleted.
	staged map[datastore.Kind]map[datastore.Key]datastore.Object
	// policies of the files.
	policies []policyRef
}

func (o *overlay) all(ctx context.Context, manifests []manifest, remove bool) error {
	var errs []error
	for _, spaces := range []bool{true, false} { // Namespaces first, as apply does.
		for _, m := range manifests {
			for _, object := range m.objects {
				if (rank(object) == 0) != spaces {
					continue
				}
				if err := o.one(ctx, object, remove); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", m.name, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

func (o *overlay) one(ctx context.Context, object datastore.Object, remove bool) error {
	r, err := datastore.LookupObject(object)
	if err != nil {
		return usageError(err)
	}
	key := datastore.KeyOf(object)
	name := label(r.Kind, object)
	if staged, ok := o.staged[r.Kind][key]; ok && staged == nil && remove {
		return nil // Named twice, or taken along by its namespace.
	}
	have, err := o.get(ctx, r.Kind, key)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var next datastore.Object
	action := "none"
	switch {
	case remove && have == nil:
		o.report.Notes = append(o.report.Notes, name+" does not exist: deleting it changes nothing")
	case remove:
		action = "delete"
	case have == nil:
		action = "create"
		object.SetResourceVersion("")
		if next, err = new(datastore.Admission).Create(object, o.lister(ctx)); err == nil {
			err = o.hasHome(ctx, next)
		}
		if err == nil {
			next.SetResourceVersion(stagedVersion) // The files may name it again.
		}
	default:
		var changed bool
		object.SetResourceVersion(have.GetResourceVersion())
		object.SetUID(have.GetUID())
		keepBinding(object, have)
		next, changed, err = new(datastore.Admission).Update(object, have, o.lister(ctx))
		if changed {
			action = "change"
		}
	}
	if err == nil && next != nil {
		_, err = datastore.Encode(next) // Too large to be stored?
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	o.report.Changes = append(o.report.Changes, whatifChange{Action: action, Object: name})
	if action != "none" {
		o.stage(r.Kind, key, next)
	}
	if action == "delete" {
		return o.takeAlong(ctx, r.Kind, have)
	}
	return nil
}

// hasHome refuses an object in a namespace that does not exist, as a datastore does.
func (o *overlay) hasHome(ctx context.Context, object datastore.Object) error {
	home, needed := datastore.Home(object)
	if !needed {
		return nil
	}
	ns, err := o.get(ctx, datastore.KindNamespace, home)
	if err == nil && ns == nil {
		err = datastore.ErrNoHome(home)
	}
	return err
}

// takeAlong says what a deletion ends that pairs of addresses do not show, and deletes
// the pods of a namespace with it.
func (o *overlay) takeAlong(ctx context.Context, kind datastore.Kind, deleted datastore.Object) error {
	if pod, ok := deleted.(*corev1.Pod); ok && pod.Spec.HostNetwork {
		o.report.Notes = append(o.report.Notes, fmt.Sprintf("pod %s is in its node's network: which flows are its own is not known", datastore.KeyOf(pod)))
	}
	if kind != datastore.KindNamespace {
		return nil
	}
	pods, err := o.lister(ctx)(datastore.KindPod)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if pod.GetNamespace() != deleted.GetName() {
			continue
		}
		o.report.Changes = append(o.report.Changes, whatifChange{Action: "delete", Object: label(datastore.KindPod, pod)})
		o.stage(datastore.KindPod, datastore.KeyOf(pod), nil)
		if err := o.takeAlong(ctx, datastore.KindPod, pod); err != nil {
			return err
		}
	}
	return nil
}

// stage lays one object over the world.
func (o *overlay) stage(kind datastore.Kind, key datastore.Key, next datastore.Object) {
	if o.staged[kind] == nil {
		o.staged[kind] = map[datastore.Key]datastore.Object{}
	}
	o.staged[kind][key] = next
	change := world.Change{Kind: world.Kind(kind), Key: world.Key{Namespace: key.Namespace, Name: key.Name}}
	if next != nil {
		change.Object, _ = feed.Convert(change.Kind, next)
	}
	o.world.Apply(change)
	switch kind {
	case datastore.KindNetworkPolicy, datastore.KindClusterNetworkPolicy:
		if ref := (policyRef{change.Kind, change.Key}); !slices.Contains(o.policies, ref) {
			o.policies = append(o.policies, ref)
		}
	case datastore.KindPod:
		if next != nil && len(podAddressesOf(next)) == 0 {
			o.report.Notes = append(o.report.Notes, fmt.Sprintf("pod %s has no address yet: it is judged by none of its own", key))
		}
	case datastore.KindService, datastore.KindEndpointSlice:
		o.report.Notes = append(o.report.Notes, strings.ToLower(string(kind))+"/"+key.String()+" changes nothing: "+noServices)
	}
}

// get returns an object as it is, with what earlier objects of the files have changed.
func (o *overlay) get(ctx context.Context, kind datastore.Kind, key datastore.Key) (datastore.Object, error) {
	if x, staged := o.staged[kind][key]; staged {
		return x, nil
	}
	have, err := o.store.Get(ctx, kind, key)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return have, err
}

// lister is what admission compares with.
func (o *overlay) lister(ctx context.Context) datastore.Lister {
	return func(kind datastore.Kind) ([]datastore.Object, error) {
		list, err := o.store.List(ctx, kind)
		if err != nil {
			return nil, err
		}
		var out []datastore.Object
		for _, x := range list.Items {
			if _, staged := o.staged[kind][datastore.KeyOf(x)]; !staged {
				out = append(out, x)
			}
		}
		for _, x := range o.staged[kind] {
			if x != nil {
				out = append(out, x)
			}
		}
		return out, nil
	}
}
