package cli

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/controller/plan"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// diagRoot is the directory that everything in a bundle is in.
const diagRoot = "fairlead-diag"

// diagAtOnce bounds how many nodes are gathered, and held in memory, at the same time.
const diagAtOnce = 8

// diagIndex is the first file of a bundle to read.
type diagIndex struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version"`
	// Nodes whose agents were asked; versions are in their status.
	Nodes  []string `json:"nodes"`
	Errors []string `json:"errors,omitempty"`
}

type objectSummary struct {
	Namespace       string `json:"namespace,omitempty"`
	Name            string `json:"name"`
	ResourceVersion string `json:"resourceVersion"`
	Spec            any    `json:"spec,omitempty"`
	Status          any    `json:"status,omitempty"`
}

// diagPaths are what every agent is asked for, by file.
func diagPaths() []string {
	return []string{"status", "audit", "peers", "attachments", "ipam", "intent", "config", "journal"}
}

func (a *app) diagCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "diag -o FILE|-", Short: "Gather what a person needs to find a fault, into one archive", Args: usage.Arguments(0, 0),
		Long: `Gather the state of all agents, of Fairlead's own objects, policies and its Events into one archive
(tar, gzip), which only its owner may read: as JSON, and the tables that every node's kernel should
hold as text. Pods, Secrets, environments and annotations are not in it. What cannot be had is
named in its index.json and on standard error, and is no failure.`,
		Example: "  fairlead diag -o fairlead.tar.gz",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case file == "":
				return usagef("say where to write with -o FILE (- is standard output)")
			case file == "-" && a.terminal:
				return usagef("standard output is a terminal: give a FILE, or pipe it into a program")
			}
			return a.diag(cmd.Context(), file)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write, which must not exist unless it is a device or a pipe; - is standard output")
	return cmd
}

// diag makes the file first: gathering takes time, and a wrong name none.
func (a *app) diag(ctx context.Context, file string) (err error) {
	if file == "-" {
		size, b, err := a.writeBundle(ctx, a.out)
		if err == nil {
			fmt.Fprintf(a.err, "standard output: %s, %s\n", count(int(size), "byte", "bytes"), count(len(b.index.Nodes), "node", "nodes"))
		}
		return err
	}
	f, made, err := createOutput(file)
	if err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil && made {
			err = errors.Join(err, os.Remove(file))
		}
	}()
	size, b, err := a.writeBundle(ctx, f)
	if err != nil {
		return err
	}
	return a.say("%s: %s, %s", file, count(int(size), "byte", "bytes"), count(len(b.index.Nodes), "node", "nodes"))
}

// writeBundle gathers everything into w, and names what is missing.
func (a *app) writeBundle(ctx context.Context, w io.Writer) (size int64, b *diagBundle, err error) {
	out := &counting{w: w}
	b = newBundle(out, a.now().UTC(), a.version)
	if err := a.gather(ctx, b); err != nil {
		return 0, nil, err
	}
	if err := b.close(); err != nil {
		return 0, nil, fmt.Errorf("write the bundle: %w", err)
	}
	for _, e := range b.index.Errors {
		fmt.Fprintln(a.err, "not in the bundle:", e)
	}
	return out.n, b, nil
}

// gather gathers what it can; what failed is in the index. If neither the datastore nor a
// list of agents can be had, there is nothing to gather.
func (a *app) gather(ctx context.Context, b *diagBundle) error {
	stored := a.withStore(ctx, func(ctx context.Context, s datastore.Store) error { return b.addObjects(ctx, s) })
	b.note(stored)
	agents, err := a.agents(ctx, nil)
	if b.note(err); err != nil && stored != nil {
		return errors.Join(stored, err)
	}
	for some := range slices.Chunk(agents, diagAtOnce) {
		answers := make([][]diagFile, len(some))
		errs := make([][]error, len(some))
		var g errgroup.Group
		for i, n := range some {
			g.Go(func() error {
				answers[i], errs[i] = n.diag(ctx)
				return nil
			})
		}
		_ = g.Wait() // The errors are in errs.
		for i, n := range some {
			b.index.Nodes = append(b.index.Nodes, n.node)
			for _, f := range answers[i] {
				b.add(f)
			}
			for _, err := range errs[i] {
				b.note(err)
			}
		}
	}
	return ctx.Err()
}

// diag asks an agent for everything.
func (n agentOf) diag(ctx context.Context) (files []diagFile, errs []error) {
	defer n.client.Close()
	dir := "nodes/" + n.node
	limit := askTimeout
	for i, what := range diagPaths() {
		var v any
		if err := n.getIn(ctx, limit, "/v1/"+what, &v); err != nil {
			errs = append(errs, err)
			if i == 0 { // An agent that cannot say how it is says nothing.
				return files, errs
			}
			continue
		}
		limit = longTimeout
		files = append(files, diagFile{path.Join(dir, what+".json"), v})
	}
	var t admin.Tables
	if err := n.getIn(ctx, longTimeout, "/v1/tables", &t); err != nil {
		return files, append(errs, err)
	}
	return append(files, diagFile{path.Join(dir, "tables.txt"), t.Text}), errs
}

// diagFile is a file of a bundle: a string as it is, all else as JSON.
type diagFile struct {
	name  string
	value any
}

// diagBundle writes an archive.
type diagBundle struct {
	zip   *gzip.Writer
	tar   *tar.Writer
	index diagIndex
	// failed is the first error of writing.
	failed error
}

func newBundle(w io.Writer, at time.Time, version string) *diagBundle {
	z := gzip.NewWriter(w)
	return &diagBundle{zip: z, tar: tar.NewWriter(z), index: diagIndex{Time: at, Version: version, Nodes: []string{}}}
}

// note remembers what is not in the bundle.
func (b *diagBundle) note(err error) {
	if err != nil {
		b.index.Errors = append(b.index.Errors, strings.Split(err.Error(), "\n")...)
	}
}

func (b *diagBundle) add(f diagFile) {
	if b.failed != nil {
		return
	}
	text, ok := f.value.(string)
	raw := []byte(text)
	if !ok {
		var err error
		if raw, err = encode("json", f.value); err != nil {
			b.note(fmt.Errorf("%s: %w", f.name, err))
			return
		}
	}
	b.failed = b.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: path.Join(diagRoot, f.name), Size: int64(len(raw)), Mode: 0o600, ModTime: b.index.Time,
	})
	if b.failed == nil {
		_, b.failed = b.tar.Write(raw)
	}
}

// close writes the index, which knows only now what is missing.
func (b *diagBundle) close() error {
	b.add(diagFile{"index.json", b.index})
	for _, closing := range []func() error{b.tar.Close, b.zip.Close} {
		if b.failed == nil { // Else it would be told again.
			b.failed = closing()
		}
	}
	return b.failed
}

// addObjects adds what the datastore knows.
func (b *diagBundle) addObjects(ctx context.Context, s datastore.Store) error {
	st, err := readStatus(ctx, s)
	if err == nil {
		b.add(diagFile{"status.json", st})
	}
	for _, kind := range []datastore.Kind{
		datastore.KindVPC, datastore.KindSubnet, datastore.KindIPBlock, datastore.KindNodeNetwork, datastore.KindNetNamespace,
		datastore.KindNetworkPolicy, datastore.KindClusterNetworkPolicy,
	} {
		list, lerr := s.List(ctx, kind)
		if lerr != nil {
			err = errors.Join(err, lerr)
			continue
		}
		objects := []objectSummary{}
		for _, o := range list.Items {
			objects = append(objects, summarize(o))
		}
		b.add(diagFile{"objects/" + string(kind) + ".json", objects})
	}
	events, lerr := ourEvents(ctx, s)
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	b.add(diagFile{"events.json", events})
	return err
}

// diagEvent is an Event of the controller's.
type diagEvent struct {
	Object  string    `json:"object"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Count   int32     `json:"count"`
}

// ourEvents are the Events that Fairlead has written: those of others are not its to tell.
func ourEvents(ctx context.Context, s datastore.Store) ([]diagEvent, error) {
	var list datastore.List
	var err error
	if sel, ok := s.(datastore.Selective); ok {
		list, err = sel.ListWhere(ctx, datastore.KindEvent, "source", plan.Component)
	} else {
		list, err = s.List(ctx, datastore.KindEvent)
	}
	if err != nil {
		return nil, err
	}
	out := []diagEvent{}
	for _, o := range list.Items {
		if e, ok := o.(*corev1.Event); ok && plan.OurEvent(e) {
			of := e.InvolvedObject
			out = append(out, diagEvent{
				Object: strings.TrimSuffix(of.Kind+" "+path.Join(of.Namespace, of.Name), " "), Reason: e.Reason, Message: e.Message,
				First: e.FirstTimestamp.UTC(), Last: e.LastTimestamp.UTC(), Count: e.Count,
			})
		}
	}
	return out, nil
}

func summarize(o datastore.Object) objectSummary {
	s := objectSummary{Namespace: o.GetNamespace(), Name: o.GetName(), ResourceVersion: o.GetResourceVersion()}
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
	case *networkingv1.NetworkPolicy:
		s.Spec = o.Spec
	case *policyv1beta1.ClusterNetworkPolicy:
		s.Spec, s.Status = o.Spec, o.Status
	}
	return s
}
