package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/run/journal"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func agentIn(dir string, log *bytes.Buffer) *Agent {
	return &Agent{Config: Config{Agent: config.Agent{StateDir: dir}, Logger: slog.New(slog.NewTextHandler(log, nil))}}
}

func wholeWorld() *world.Snapshot {
	changes := []world.Change{
		{Kind: world.KindNode, Key: world.Key{Name: "n1"}, Object: &world.Node{Name: "n1"}},
		{Kind: world.KindPod, Key: world.Key{Namespace: "ns", Name: "p"}, Object: &world.Pod{Namespace: "ns", Name: "p", UID: "u"}},
	}
	for _, k := range world.DatastoreKinds() {
		changes = append(changes, world.Change{Kind: k, ResourceVersion: "7", Synced: true})
	}
	return world.NewStore(nil).Apply(changes...)
}

func TestCheckpoint(t *testing.T) {
	var log bytes.Buffer
	a := agentIn(t.TempDir(), &log)
	if got := a.loadCheckpoint(); got != nil || log.Len() > 0 {
		t.Errorf("without a file: %v, log %s", got, log.String())
	}
	s := wholeWorld()
	for range 2 { // The second replaces the first.
		if err := a.saveCheckpoint(s); err != nil {
			t.Fatal(err)
		}
	}
	got := a.loadCheckpoint()
	if got == nil {
		t.Fatalf("not loaded: %s", log.String())
	}
	if got.AllSynced() || len(got.Synced) > 0 {
		t.Error("what was loaded counts as in step with the datastore")
	}
	pod, ok := got.Pods.Get(world.Key{Namespace: "ns", Name: "p"})
	if !ok || pod.UID != "u" || got.Nodes.Len() != 1 {
		t.Errorf("loaded: %+v, %d nodes", pod, got.Nodes.Len())
	}
	if d := cmp.Diff(s.Position, got.Position); d != "" {
		t.Errorf("position (-want +got):\n%s", d)
	}
	info, err := os.Stat(a.checkpointPath())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 600 (%v)", info.Mode(), err)
	}
}

// A file that is torn anywhere, or is something else, is as good as none; the log says
// so, and the agent starts.
func TestTornCheckpoint(t *testing.T) {
	var log bytes.Buffer
	a := agentIn(t.TempDir(), &log)
	if err := a.saveCheckpoint(wholeWorld()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(a.checkpointPath())
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, content := range map[string][]byte{
		"empty": {}, "header only": whole[:8], "half": whole[:len(whole)/2], "last byte lost": whole[:len(whole)-1],
		"a bit flipped": flipped, "longer": append(bytes.Clone(whole), 0), "foreign": []byte("not a world\n"),
	} {
		if err := os.WriteFile(a.checkpointPath(), content, 0o600); err != nil {
			t.Fatal(err)
		}
		log.Reset()
		if got := a.loadCheckpoint(); got != nil {
			t.Errorf("%s: was believed", name)
		}
		if !strings.Contains(log.String(), "the checkpoint of the world is not usable") {
			t.Errorf("%s: the log says %q", name, log.String())
		}
	}
}

func TestCheckpointThatCannotBeWritten(t *testing.T) {
	a := agentIn(filepath.Join(t.TempDir(), "missing"), new(bytes.Buffer))
	if err := a.saveCheckpoint(wholeWorld()); err == nil || !strings.Contains(err.Error(), "write the checkpoint of the world") {
		t.Errorf("got %v", err)
	}
}

// A checkpoint that could not be written is written as soon as the disk can be, and until then
// the disk is what is told of: the rest follows from it.
func TestCheckpointWhenTheDiskHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a := agentIn(filepath.Join(t.TempDir(), "state"), &log) // which does not exist
		a.health, a.writable = health.NewRegistry(time.Now), make(chan struct{}, 1)
		var err error
		if a.journal, err = journal.Open(t.TempDir()); err != nil {
			t.Fatal(err)
		}
		a.world = world.NewStore(nil)
		changes := []world.Change{}
		for _, k := range world.DatastoreKinds() {
			changes = append(changes, world.Change{Kind: k, ResourceVersion: "7", Synced: true})
		}
		a.world.Apply(changes...)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = a.keepCheckpoint(ctx) })
		wg.Go(func() { _ = a.watchDisk(ctx) })
		defer func() { cancel(); wg.Wait(); _ = a.journal.Close() }()
		synctest.Wait()
		if got := a.worst(); got.Component != "disk" || got.Level != health.Degraded {
			t.Errorf("the worst is %+v, want the disk", got)
		}
		if err := os.Mkdir(a.StateDir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookPeriod)
		synctest.Wait()
		if a.loadCheckpoint() == nil {
			t.Errorf("no checkpoint although the disk can be written: %s", log.String())
		}
		if got := a.worst(); got.Level != health.OK {
			t.Errorf("not well: %+v", got)
		}
	})
}

// The disk is looked at when a component changes, and is named before it.
func TestDiskIsNamedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		dir := filepath.Join(t.TempDir(), "state")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		a := agentIn(dir, &log)
		a.health, a.writable = health.NewRegistry(time.Now), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = a.watchDisk(ctx) })
		defer func() { cancel(); wg.Wait() }()
		synctest.Wait()
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		a.report("addresses", health.Degraded, errors.New("write addresses.json: no such file or directory"))
		synctest.Wait()
		if got := a.worst(); got.Component != "disk" {
			t.Errorf("the worst is %+v, want the disk", got)
		}
		a.report("plane", health.Failed, errors.New("broken"))
		if got := a.worst(); got.Component != "plane" {
			t.Errorf("the worst is %+v, want what has failed", got)
		}
	})
}
