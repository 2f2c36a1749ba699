package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard()) // what servers of tests have to say
	// client-go's ping of a WebSocket notices up to five seconds late that it is closed.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"))
}

// The objects of a cluster are made at created, commands are run at now.
var (
	created = time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	now     = created.Add(3 * time.Hour)
)

// cluster is what the commands of a test are about.
type cluster struct {
	t     *testing.T
	store *memory.Store
	dir   string
	// sockets of the agents, by node.
	sockets map[string]string
	// asked is what agents were asked to explain.
	asked []admin.Question
	// open replaces the store that commands see.
	open func() (datastore.Store, error)
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	uids := 0
	c := &cluster{t: t, dir: t.TempDir(), sockets: map[string]string{}}
	c.store = memory.New(memory.Config{Admission: datastore.Admission{
		Now:    func() time.Time { return created },
		NewUID: func() types.UID { uids++; return types.UID(fmt.Sprintf("uid-%d", uids)) },
	}})
	t.Cleanup(func() {
		if err := c.store.Close(); err != nil {
			t.Error(err)
		}
	})
	c.open = func() (datastore.Store, error) { return kept{c.store}, nil }
	return c
}

// kept is a store that outlives a command.
type kept struct{ datastore.Store }

func (kept) Close() error { return nil }

// load stores the objects of a manifest, with their status.
func (c *cluster) load(manifest string) {
	c.t.Helper()
	objects, err := datastore.DecodeManifest(strings.NewReader(manifest))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, o := range objects {
		r, err := datastore.LookupObject(o)
		if err != nil {
			c.t.Fatal(err)
		}
		made, err := c.store.Create(c.t.Context(), o)
		if err == nil && r.HasStatus {
			o.SetResourceVersion(made.GetResourceVersion())
			_, err = c.store.UpdateStatus(c.t.Context(), o)
		}
		if err != nil {
			c.t.Fatalf("%s: %v", label(r.Kind, o), err)
		}
	}
}

func (c *cluster) loadFile(name string) {
	c.t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		c.t.Fatal(err)
	}
	c.load(string(raw))
}

// write makes a file and returns its path.
func (c *cluster) write(name, text string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return path
}

// serve runs the admin server of a node until the test ends.
func (c *cluster) serve(node string, handlers map[string]admin.Handler) {
	c.t.Helper()
	c.serveStreams(node, handlers, nil)
}

func (c *cluster) serveStreams(node string, handlers map[string]admin.Handler, streams map[string]admin.Stream) {
	c.t.Helper()
	path := filepath.Join(c.dir, node+".sock")
	s := &admin.Server{Socket: path, Log: slog.New(slog.DiscardHandler), Handlers: handlers, Streams: streams}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err := os.Stat(path); err == nil {
			break
		}
		select {
		case err := <-done:
			c.t.Fatalf("admin server: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			c.t.Fatal("the admin socket does not appear")
		}
	}
	c.sockets[node] = path
}

func (c *cluster) agents(_ context.Context, names []string) ([]agentOf, error) {
	var all []string
	for n := range c.sockets {
		all = append(all, n)
	}
	slices.Sort(all)
	if len(names) == 0 {
		names = all
	}
	if len(names) == 0 {
		return nil, errors.New("there are no agents")
	}
	// Which nodes there are is known before any is asked.
	var out []agentOf
	for _, n := range names {
		if _, ok := c.sockets[n]; !ok {
			return nil, noNode(n, all)
		}
		out = append(out, agentOf{node: n, client: admin.NewClient(c.sockets[n])})
	}
	return out, nil
}

// result is how a command ended.
type result struct {
	code     int
	out, err string
}

func (c *cluster) runWith(stdin string, args ...string) result {
	c.t.Helper()
	var out, errs bytes.Buffer
	a := &app{
		version: "v1.2.3", in: strings.NewReader(stdin), out: &out, err: clean{&errs}, now: func() time.Time { return now },
		openStore: func() (datastore.Store, error) { return c.open() }, agents: c.agents,
	}
	code := a.run(c.t.Context(), args)
	// The folder is another in every run.
	short := strings.NewReplacer(c.dir, "DIR")
	return result{code, short.Replace(out.String()), short.Replace(errs.String())}
}

func (c *cluster) run(args ...string) result { c.t.Helper(); return c.runWith("", args...) }

// transcript runs command lines and compares what a terminal shows, with exit codes
// other than 0, with testdata/NAME.txt. "|" before a line marks standard error.
func (c *cluster) transcript(name string, lines ...string) {
	c.t.Helper()
	var b strings.Builder
	for _, line := range lines {
		args := strings.Fields(strings.ReplaceAll(line, "DIR", c.dir))
		r := c.run(args...)
		fmt.Fprintf(&b, "$ fairlead %s\n%s", line, r.out)
		if r.out != "" && !strings.HasSuffix(r.out, "\n") {
			c.t.Errorf("%s: the output does not end its last line", line)
			b.WriteByte('\n')
		}
		for text := range strings.SplitAfterSeq(r.err, "\n") {
			if text != "" {
				b.WriteString("| " + text)
			}
		}
		if r.code != 0 {
			fmt.Fprintf(&b, "exit %d\n", r.code)
		}
		b.WriteByte('\n')
	}
	golden(c.t, name+".txt", b.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test -update makes it)", err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

// failing is a store that is away.
type failing struct{ datastore.Store }

func (failing) Get(context.Context, datastore.Kind, datastore.Key) (datastore.Object, error) {
	return nil, apierrors.NewServiceUnavailable("etcd is away")
}

func (failing) List(context.Context, datastore.Kind) (datastore.List, error) {
	return datastore.List{}, apierrors.NewServiceUnavailable("etcd is away")
}

func (failing) Close() error { return nil }
