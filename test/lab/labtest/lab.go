package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
)

const (
	// upTimeout and downTimeout bound the start and the end of a lab.
	upTimeout   = 2 * time.Minute
	downTimeout = 2 * time.Minute
	// callTimeout bounds one question to a lab, an agent or the datastore.
	callTimeout = 30 * time.Second
)

// Main is the TestMain of a package whose tests run in labs: the processes of a lab
// are the test program itself. The shared labs are taken down at the end.
func Main(m *testing.M, shared ...*Shared) {
	if handled, exit := lab.Main(os.Args[1:]); handled {
		os.Exit(exit)
	}
	exit := m.Run()
	for _, s := range shared {
		if err := s.down(); err != nil {
			fmt.Fprintln(os.Stderr, "labtest:", err)
			exit = max(exit, 1)
		}
	}
	os.Exit(exit)
}

// Long skips the test unless FAIRLEAD_LONG=1: it takes longer than a minute.
func Long(t testing.TB) {
	t.Helper()
	if os.Getenv("FAIRLEAD_LONG") != "1" {
		t.Skip("long: runs in make test-long")
	}
}

// Lab is a running lab as one test sees it: every failure of a method ends that
// test, or, in another goroutine than the test's, must not happen (use the methods
// of the embedded lab there).
type Lab struct {
	*lab.Lab
	// Store is the lab's datastore.
	Store datastore.Store

	t testing.TB
}

// Up starts a lab for one test and takes it down when the test ends. The programs
// are those in FAIRLEAD_BIN, or in bin/ of this repository, and the plane is that of
// FAIRLEAD_PLANE, unless o names others; a name and a root directory are chosen here.
func Up(t testing.TB, o lab.Options) *Lab {
	t.Helper()
	Need(t)
	running, err := start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := running.down(); err != nil {
			t.Error(err)
		}
	})
	return running.view(t)
}

// Shared is one lab for several tests that do not disturb each other. It starts with
// the first Get and ends with Main.
type Shared struct {
	Options lab.Options

	mu  sync.Mutex
	run *running
	err error
}

// Get returns the lab, for one test.
func (s *Shared) Get(t testing.TB) *Lab {
	t.Helper()
	Need(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil && s.err == nil {
		// Not the test's context: the lab outlives it.
		s.run, s.err = start(context.WithoutCancel(t.Context()), s.Options)
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.run.view(t)
}

func (s *Shared) down() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		return nil
	}
	return s.run.down()
}

// running is a lab, and the directory that was made for it.
type running struct {
	lab   *lab.Lab
	store datastore.Store
	root  string
}

func start(ctx context.Context, o lab.Options) (*running, error) {
	bin, err := Bin()
	if err != nil {
		return nil, err
	}
	for path, name := range map[*string]string{&o.Agent: "fairlead-agent", &o.Controller: "fairlead-controller", &o.CNI: "fairlead-cni"} {
		if *path == "" {
			*path = filepath.Join(bin, name)
		}
	}
	if o.Plane == "" {
		o.Plane = os.Getenv("FAIRLEAD_PLANE")
	}
	// A root of its own: no other lab is found by commands without --lab, and none
	// of another program finds this one. Below /run, since paths of sockets are short.
	if o.Root, err = os.MkdirTemp("/run", "fairlead-test-"); err != nil {
		return nil, fmt.Errorf("make a directory for the lab: %w", err)
	}
	o.Name = "test"
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	l, err := lab.Up(ctx, o, nil)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(o.Root))
	}
	r := &running{lab: l, root: o.Root}
	if r.store, err = etcd.New(etcd.Config{Endpoints: []string{l.Datastore()}}); err != nil {
		return nil, errors.Join(err, r.down())
	}
	return r, nil
}

func (r *running) down() error {
	ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
	defer cancel()
	var err error
	if r.store != nil {
		err = r.store.Close()
	}
	return errors.Join(err, r.lab.Down(ctx), os.RemoveAll(r.root))
}

// view binds the lab to a test, and shows the logs if the test fails.
func (r *running) view(t testing.TB) *Lab {
	l := &Lab{Lab: r.lab, Store: r.store, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			l.dumpLogs()
		}
	})
	return l
}

// With is the same lab for a subtest.
func (l *Lab) With(t testing.TB) *Lab {
	out := *l
	out.t = t
	return &out
}

// OVS reports whether nodes of the lab forward with Open vSwitch.
func (l *Lab) OVS() bool {
	l.t.Helper()
	return l.Status().Options.HasOVS()
}

// Need skips the test where no lab can run.
func Need(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a lab needs root: it makes network namespaces")
	}
	bin, err := Bin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "fairlead-agent")); err != nil {
		t.Skipf("Fairlead's programs are missing: %v: run make build, or name their directory in FAIRLEAD_BIN", err)
	}
}

// Bin is the directory of Fairlead's programs: FAIRLEAD_BIN, or bin/ of this
// repository.
func Bin() (string, error) {
	if dir := os.Getenv("FAIRLEAD_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := Repository()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "bin"), nil
}

// Repository is the directory of this module.
func Repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("find the repository: no go.mod above the working directory")
}

const (
	logBytes = 64 << 10
	logLines = 40
)

// dumpLogs writes the ends of the lab's logs into the test's output.
func (l *Lab) dumpLogs() {
	paths, err := filepath.Glob(filepath.Join(l.NodeDirectory("*"), "log", "agent.log"))
	if err != nil {
		l.t.Log(err)
	}
	for _, name := range []string{"controller.log", "supervisor.log"} {
		paths = append(paths, filepath.Join(l.Directory(), name))
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			l.t.Logf("no log: %v", err)
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(raw[max(0, len(raw)-logBytes):])), "\n")
		l.t.Logf("the end of %s:\n%s", strings.TrimPrefix(path, l.Directory()+"/"), strings.Join(lines[max(0, len(lines)-logLines):], "\n"))
	}
}

// Admin asks a node's agent, as the CLI does: Get(path, into).
func (l *Lab) Admin(node string) *admin.Client {
	c := admin.NewClient(l.AdminSocket(node))
	l.t.Cleanup(c.Close)
	return c
}

// AdminGet asks a node's agent once.
func AdminGet[T any](l *Lab, node, path string) T {
	l.t.Helper()
	out, err := TryAdminGet[T](l, node, path)
	if err != nil {
		l.t.Fatalf("%s: %v", node, err)
	}
	return out
}

// TryAdminGet asks a node's agent, which may not be running, once.
func TryAdminGet[T any](l *Lab, node, path string) (T, error) {
	var out T
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	c := admin.NewClient(l.AdminSocket(node))
	defer c.Close()
	return out, c.Get(ctx, path, &out)
}
