package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/fairlead-sdn/fairlead/internal/run/health"
)

// PluginType is what network configurations call the plugin, and its file's name.
const PluginType = "fairlead-cni"

// configurationPeriod is how often the runtime's directory is looked at: it has a handful
// of files, which change when somebody installs or removes a network.
const configurationPeriod = 2 * time.Second

// Plugin is where a container runtime finds the CNI plugin and its configuration.
type Plugin struct {
	// Program is the plugin, List the network configuration list, to be installed.
	Program, List string
	// BinDir and ConfDir are the runtime's directories.
	BinDir, ConfDir string
}

// Install puts the plugin where the runtime looks for it. It appears whole: a runtime
// starts it at any time.
func (p Plugin) Install() error {
	if err := os.MkdirAll(p.BinDir, 0o755); err != nil {
		return fmt.Errorf("install the CNI plugin: %w", err)
	}
	if err := copyInto(filepath.Join(p.BinDir, PluginType), p.Program); err != nil {
		return fmt.Errorf("install the CNI plugin in %s: %w", p.BinDir, err)
	}
	return nil
}

// Offer puts the network configuration where the runtime looks for it, whole, unless it is
// there already. The runtime takes the node for ready with it. It returns what a person
// should know: which configuration of another network the runtime takes instead of ours,
// or would take without ours.
func (p Plugin) Offer() (warning string, err error) {
	list, err := os.ReadFile(p.List)
	if err != nil {
		return "", fmt.Errorf("install the network configuration: %w", err)
	}
	if !ours(list) {
		return "", fmt.Errorf("install the network configuration: %s is not a list with the plugin %s", p.List, PluginType)
	}
	path := filepath.Join(p.ConfDir, filepath.Base(p.List))
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, list) {
		return p.others(filepath.Base(path))
	}
	if err := os.MkdirAll(p.ConfDir, 0o755); err != nil {
		return "", fmt.Errorf("install the network configuration: %w", err)
	}
	if err := renameio.WriteFile(path, list, 0o644, renameio.WithTempDir(p.ConfDir)); err != nil {
		return "", fmt.Errorf("install the network configuration in %s: %w", p.ConfDir, err)
	}
	return p.others(filepath.Base(path))
}

// others says which configurations are there beside ours. A runtime takes the first.
func (p Plugin) others(name string) (string, error) {
	names, err := configurations(p.ConfDir)
	if err != nil {
		return "", err
	}
	if len(names) > 0 && names[0] < name {
		return fmt.Sprintf("%s sorts before %s in %s: the container runtime uses it, and new pods get no network from Fairlead; remove it, or give our configuration a name that sorts first",
			names[0], name, p.ConfDir), nil
	}
	names = slices.DeleteFunc(names, func(other string) bool { return other == name || p.onlyLoopback(other) })
	if len(names) == 0 {
		return "", nil
	}
	return fmt.Sprintf("%s is also in %s: the container runtime would use it if %s were gone; remove the other network",
		strings.Join(names, ", "), p.ConfDir, name), nil
}

// onlyLoopback reports whether a configuration is no network, as some runtimes install.
func (p Plugin) onlyLoopback(name string) bool {
	var c struct {
		Type    string                  `json:"type"`
		Plugins []struct{ Type string } `json:"plugins"`
	}
	raw, err := os.ReadFile(filepath.Join(p.ConfDir, name))
	if err != nil || json.Unmarshal(raw, &c) != nil {
		return false
	}
	return c.Type == "loopback" || len(c.Plugins) == 1 && c.Plugins[0].Type == "loopback"
}

// offerPlugin offers the network configuration as soon as pods can be served, and keeps it
// there: a node that is ready has a network. An agent that was told of none offers none.
func (a *Agent) offerPlugin(ctx context.Context) error {
	if a.Plugin.List == "" {
		return nil
	}
	select {
	case <-a.settled:
	case <-ctx.Done():
		return nil
	}
	tick := time.NewTicker(configurationPeriod)
	defer tick.Stop()
	for offered := false; ; {
		// Once offered it stays: what the runtime asks from then on is STATUS.
		if offered = offered || a.attachments.Ready() == nil; offered {
			warning, err := a.Plugin.Offer()
			if err == nil && warning != "" {
				err = errors.New(warning)
			}
			a.report("cni configuration", health.Degraded, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// configurations are the names of a directory's network configurations, in the order in
// which runtimes read them.
func configurations(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read network configurations: %w", err)
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// Installed are the paths of the configurations that name our plugin, and of the plugin,
// those that there are.
func (p Plugin) Installed() ([]string, error) {
	names, err := configurations(p.ConfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, name := range names {
		path := filepath.Join(p.ConfDir, name)
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read network configurations: %w", err)
		}
		if ours(raw) {
			out = append(out, path)
		}
	}
	plugin := filepath.Join(p.BinDir, PluginType)
	if _, err := os.Lstat(plugin); err == nil {
		out = append(out, plugin)
	}
	return append(out, unfinished(p.BinDir, PluginType)...), nil
}

// Remove removes the configurations that name our plugin first, so that no runtime looks
// for it any more, and then the plugin. What others have installed stays.
func (p Plugin) Remove() error {
	paths, err := p.Installed()
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the CNI plugin and its configuration: %w", err)
		}
	}
	return nil
}

// ours reports whether a network configuration list begins with our plugin. In a list of
// somebody else's that chains it, it is not for us to remove.
func ours(raw []byte) bool {
	var list struct {
		Plugins []struct {
			Type string `json:"type"`
		} `json:"plugins"`
	}
	err := json.Unmarshal([]byte(strings.TrimSpace(string(raw))), &list)
	return err == nil && len(list.Plugins) > 0 && list.Plugins[0].Type == PluginType
}

// copyInto replaces a program, which may be running, in one step.
func copyInto(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := renameio.NewPendingFile(to, renameio.WithPermissions(0o755), renameio.WithTempDir(filepath.Dir(to)))
	if err != nil {
		return err
	}
	defer func() { _ = out.Cleanup() }() // After CloseAtomicallyReplace it does nothing.
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.CloseAtomicallyReplace()
}
