package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// applyRetries bounds how often an object that somebody else changes meanwhile is
// read again.
const applyRetries = 5

// manifest is one file's objects.
type manifest struct {
	name    string
	objects []datastore.Object
}

func (a *app) applyCommand() *cobra.Command {
	var files []string
	var namespace string
	var check bool
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Create or change objects from YAML or JSON", Args: usage.Arguments(0, 0),
		Long: `Create or change objects from YAML or JSON.

Every file is read and decoded strictly before anything is changed: an unknown field
or a bad value names its document and path. A directory stands for its .yaml, .yml and
.json files, "-" for standard input.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			manifests, err := a.read(files, namespace)
			if err != nil {
				return err
			}
			if check {
				return a.checkOnly(manifests)
			}
			return a.useStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
				return a.applyAll(ctx, s, manifests)
			})
		},
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file, directory, or - for standard input; may be repeated")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of objects that name none (default: the context's, or \"default\")")
	cmd.Flags().BoolVar(&check, "dry-run", false, "only check the objects, change nothing")
	return cmd
}

// read reads and decodes every file.
func (a *app) read(files []string, namespace string) ([]manifest, error) {
	if len(files) == 0 {
		return nil, usagef("say what to read with -f FILE (a directory, or - for standard input)")
	}
	fallback, err := a.namespace(namespace)
	if err != nil {
		return nil, err
	}
	var out []manifest
	for _, f := range files {
		paths, err := expand(f)
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			m, err := a.readOne(p, namespace)
			if err != nil {
				return nil, err
			}
			datastore.DefaultNamespace(m.objects, cmp.Or(fallback, metav1.NamespaceDefault))
			out = append(out, m)
		}
	}
	return out, nil
}

// expand lists a directory's manifests.
func expand(path string) ([]string, error) {
	info, err := os.Stat(path)
	if path == "-" || err == nil && !info.IsDir() {
		return []string{path}, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("-f %s: there is no such file or directory", path)
	}
	if err != nil {
		return nil, usageError(err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, usagef("%s holds no .yaml, .yml or .json file", path)
	}
	return out, nil
}

// readOne reads one file. Its objects may not name another namespace than the one of -n.
func (a *app) readOne(path, given string) (manifest, error) {
	in, name := a.in, "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return manifest{}, usageError(err)
		}
		defer f.Close()
		in, name = f, path
	}
	objects, err := datastore.DecodeManifest(in)
	if err != nil {
		return manifest{}, usageError(fmt.Errorf("%s: %w", name, err))
	}
	if len(objects) == 0 {
		return manifest{}, usagef("%s holds no object", name)
	}
	for _, o := range objects {
		kind, err := datastore.KindOf(o)
		if err != nil {
			return manifest{}, usageError(fmt.Errorf("%s: %w", name, err))
		}
		if in := o.GetNamespace(); given != "" && in != "" && in != given && isNamespaced(kind) {
			return manifest{}, usagef("%s: %s names its namespace, and -n says %s: leave out one of them", name, label(kind, o), given)
		}
	}
	return manifest{name: name, objects: objects}, nil
}

// checkOnly validates as the datastore would, as far as one object tells.
func (a *app) checkOnly(manifests []manifest) error {
	bad := 0
	var good []datastore.Object
	for _, m := range manifests {
		for _, o := range m.objects {
			r, err := datastore.LookupObject(o)
			if err != nil {
				return usageError(err)
			}
			r.Default(o)
			if errs := r.Validate(o, nil); len(errs) > 0 {
				bad++
				fmt.Fprintf(a.err, "%s: %s: %v\n", m.name, label(r.Kind, o), errs.ToAggregate())
				continue
			}
			good = append(good, o)
			if err := a.say("%s is valid", label(r.Kind, o)); err != nil {
				return err
			}
		}
	}
	a.warnProblems(problemsAlone(good))
	if bad > 0 {
		return fmt.Errorf("%s not valid", count(bad, "object is", "objects are"))
	}
	return nil
}

// label is how a person names an object, "pod/shop/web".
func label(kind datastore.Kind, o datastore.Object) string {
	return strings.ToLower(string(kind)) + "/" + datastore.KeyOf(o).String()
}

// applyAll applies namespaces first, then everything in the order of the files. One
// bad object does not stop the others.
func (a *app) applyAll(ctx context.Context, s datastore.Store, manifests []manifest) error {
	var objects []datastore.Object
	for _, m := range manifests {
		objects = append(objects, m.objects...)
	}
	slices.SortStableFunc(objects, func(x, y datastore.Object) int { return rank(x) - rank(y) })
	failed := 0
	var applied []datastore.Object
	for _, o := range objects {
		kind, err := datastore.KindOf(o)
		if err != nil {
			return usageError(err)
		}
		did, err := applyOne(ctx, s, kind, o)
		if isAway(err) {
			return fmt.Errorf("apply stopped after %d of %s: %w", len(applied), count(len(objects), "object", "objects"), err)
		}
		if err != nil {
			failed++
			fmt.Fprintf(a.err, "%s: %v\n", label(kind, o), err)
			continue
		}
		applied = append(applied, o)
		if err := a.say("%s %s", label(kind, o), did); err != nil {
			return err
		}
		if slices.Contains(unenforced, kind) {
			fmt.Fprintf(a.err, "warning: %s is stored, but has no effect in this version\n", label(kind, o))
		}
	}
	a.warnOfPolicies(ctx, s, policyRefs(applied))
	if failed > 0 {
		return fmt.Errorf("%d of %s refused; what was not is applied", failed, count(len(objects), "object was", "objects were"))
	}
	return nil
}

// isAway tells an error of the datastore as a whole from one of an object: others would fail alike.
func isAway(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsUnauthorized(err) || errors.As(err, new(net.Error))
}

// unenforced are kinds that are taken because the same YAML must work in a cluster,
// and that have no effect yet.
var unenforced = []datastore.Kind{datastore.KindService}

func rank(o datastore.Object) int {
	if _, ok := o.(*corev1.Namespace); ok {
		return 0
	}
	return 1
}

// applyOne creates the object, or replaces the spec of the one that is there, whatever
// version the manifest was read from.
func applyOne(ctx context.Context, s datastore.Store, kind datastore.Kind, o datastore.Object) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for try := 1; ; try++ {
		have, err := s.Get(ctx, kind, datastore.KeyOf(o))
		if apierrors.IsNotFound(err) {
			o.SetResourceVersion("")
			o.SetUID("")
			if _, err = s.Create(ctx, o); err == nil {
				return "created", nil
			}
			if apierrors.IsAlreadyExists(err) && try < applyRetries {
				continue
			}
			return "", err
		}
		if err != nil {
			return "", err
		}
		o.SetResourceVersion(have.GetResourceVersion())
		o.SetUID(have.GetUID())
		keepBinding(o, have)
		after, err := s.Update(ctx, o)
		switch {
		case apierrors.IsConflict(err) && try < applyRetries:
			continue
		case err != nil:
			return "", err
		case after.GetResourceVersion() == have.GetResourceVersion():
			return "unchanged", nil
		}
		return "changed", nil
	}
}

// keepBinding leaves a pod where it was put: manifests rarely say where.
func keepBinding(o, have datastore.Object) {
	want, isPod := o.(*corev1.Pod)
	is, _ := have.(*corev1.Pod)
	if isPod && is != nil && want.Spec.NodeName == "" {
		want.Spec.NodeName = is.Spec.NodeName
	}
}

// count writes "1 object", "2 objects".
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
