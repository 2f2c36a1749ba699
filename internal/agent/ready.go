package agent

import (
	"errors"
	"time"
)

// catchUpTime is how long after its first pass an agent that does not hear from the
// datastore says that it is not ready. One that does hear is not ready until it has
// applied what it hears, however long that takes.
const catchUpTime = 2 * time.Second

// ready returns why the node is not as its agent wants it. Beyond what STATUS says, which is
// whether pods can be attached, the agent must have removed what went while it was away:
// until it has seen a whole view of the cluster, it only adds. Without a datastore it is
// ready with what it knew.
func (a *Agent) ready() error {
	if err := a.attachments.Ready(); err != nil {
		return err
	}
	select {
	case <-a.settled:
		return nil
	default:
	}
	snapshot, _ := a.world.Snapshot()
	select {
	case <-a.passed:
		if !snapshot.AllSynced() && time.Since(a.passedAt) >= catchUpTime {
			return nil
		}
	default:
	}
	return errors.New("what changed in the cluster while the agent was away is not applied yet")
}
