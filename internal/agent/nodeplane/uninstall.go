package nodeplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/agent"
	"github.com/fairlead-sdn/fairlead/internal/apply/preflight"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/serve/socket"
)

// Uninstall takes everything of Fairlead away from this node.
type Uninstall struct {
	Config config.Agent
	// Plugin says where the container runtime finds the CNI plugin.
	Plugin agent.Plugin
	// Patience is how long an agent that is ending is waited for.
	Patience time.Duration
	Log      *slog.Logger
}

// Found lists what is on this node and is Fairlead's, sorted by what it is. Nothing is
// changed.
func (u Uninstall) Found() ([]string, error) {
	kernel, err := preflight.Ours(u.Config.BPFDir)
	if err != nil {
		return nil, err
	}
	plugin, err := u.Plugin.Installed()
	if err != nil {
		return nil, err
	}
	var files []string
	for _, path := range append(plugin, agent.Files(u.Config)...) {
		if _, err := os.Lstat(path); err == nil {
			files = append(files, "file "+path)
		}
	}
	return append(kernel, files...), nil
}

// Run removes it, and returns what was there and is there no more. Pods lose their network.
func (u Uninstall) Run(ctx context.Context) (removed []string, err error) {
	found, err := u.Found()
	if err != nil {
		return nil, err
	}
	done, err := u.keepAgentOff(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	before, err := u.Found()
	if err != nil {
		return nil, err
	}
	// What holds agents off is removed by done, and told only if it was there already.
	ours := func(s string) bool { return strings.HasPrefix(s, "file "+u.socket()) }
	before = slices.DeleteFunc(before, func(s string) bool { return ours(s) && !slices.Contains(found, s) })
	if err := u.Check(before); err != nil {
		return nil, err
	}
	failed := u.remove(ctx)
	after, err := u.Found()
	if err = errors.Join(failed, err); err != nil {
		return gone(before, after), err
	}
	if left := slices.DeleteFunc(after, ours); len(left) > 0 {
		return gone(before, after), fmt.Errorf("still there: %s", strings.Join(left, ", "))
	}
	return before, nil
}

// Check refuses to remove half of what Found has found: the linux plane does not know what
// that of Open vSwitch has made.
func (u Uninstall) Check(found []string) error {
	if u.Config.Plane == config.PlaneOVS || !slices.Contains(found, "link "+claims.OVSBridge) {
		return nil
	}
	return fmt.Errorf("nothing is removed: this node has the bridge %s of Open vSwitch, and the configuration does not say plane: %s; give the agent's with --config FILE",
		claims.OVSBridge, config.PlaneOVS)
}

// gone are those of before that are not in after.
func gone(before, after []string) []string {
	return slices.DeleteFunc(slices.Clone(before), func(s string) bool { return slices.Contains(after, s) })
}

func (u Uninstall) remove(ctx context.Context) error {
	// First, so that the runtime makes no more pods.
	if err := u.Plugin.Remove(); err != nil {
		return err
	}
	if err := remove(ctx, u.Config, u.Log); err != nil {
		return err
	}
	// Only now: what is left of an uninstall that failed can still be told apart.
	return agent.RemoveFiles(u.Config)
}

func (u Uninstall) socket() string { return filepath.Join(u.Config.RunDir, "cni.sock") }

// keepAgentOff waits until no agent runs on this node, and keeps one from starting until the
// returned function is called.
func (u Uninstall) keepAgentOff(ctx context.Context) (done func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, u.Patience)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		l, err := socket.Listen(u.socket(), "CNI", u.Log)
		if err == nil {
			return func() error { return errors.Join(l.Close(), l.Remove()) }, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("nothing was removed, a running agent would put it back: %w", err)
		}
	}
}
