package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// checkpointPeriod is how old the checkpoint of a changing world gets at most.
const checkpointPeriod = 20 * time.Second

func (a *Agent) checkpointPath() string { return filepath.Join(a.StateDir, "world.checkpoint") }

// loadCheckpoint returns the world as it was when the last agent ended, marked as
// stale (nothing is synced); nil if there is none that can be read.
func (a *Agent) loadCheckpoint() *world.Snapshot {
	raw, err := os.ReadFile(a.checkpointPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var snap *world.Snapshot
	if err == nil {
		snap, err = world.Decode(raw)
	}
	if err != nil {
		a.Logger.Warn("the checkpoint of the world is not usable; the datastore must answer before anything is served", "file", a.checkpointPath(), "err", err)
		return nil
	}
	a.Logger.Info("world restored from checkpoint", "nodes", snap.Nodes.Len(), "pods", snap.Pods.Len(), "blocks", snap.Blocks.Len())
	return snap
}

// keepCheckpoint writes the world to disk while it changes, once it is whole: an
// incomplete world must not replace a complete one. One that could not be written is written
// again, whether the world changes or not.
func (a *Agent) keepCheckpoint(ctx context.Context) error {
	for {
		snap, changed := a.world.Snapshot()
		var err error
		if snap.AllSynced() {
			select {
			case <-a.writable: // before this attempt
			default:
			}
			err = a.saveCheckpoint(snap)
			a.report("checkpoint", health.Degraded, err)
			a.restAfter(ctx, err)
		}
		if err != nil && ctx.Err() == nil {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			// A clean end leaves the newest world behind.
			if snap, _ := a.world.Snapshot(); snap.AllSynced() {
				a.report("checkpoint", health.Degraded, a.saveCheckpoint(snap))
			}
			return nil
		}
	}
}

// restAfter waits until the next checkpoint may be written: after a failure no longer than until
// the disk can be written again.
func (a *Agent) restAfter(ctx context.Context, failure error) {
	healed := a.writable
	if failure == nil {
		healed = nil
	}
	period := time.NewTimer(checkpointPeriod)
	defer period.Stop()
	select {
	case <-healed:
	case <-period.C:
	case <-ctx.Done():
	}
}

func (a *Agent) saveCheckpoint(s *world.Snapshot) error {
	raw, err := world.Encode(s)
	if err == nil {
		err = renameio.WriteFile(a.checkpointPath(), raw, 0o600, renameio.WithTempDir(a.StateDir))
	}
	if err != nil {
		return fmt.Errorf("write the checkpoint of the world: %w", err)
	}
	return nil
}
