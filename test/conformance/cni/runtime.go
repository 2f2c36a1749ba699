package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// environment is the CNI_* part of a plugin's environment.
type environment map[string]string

// output is what one execution left.
type output struct {
	stdout, stderr []byte
	exit           int
}

// run executes a program on the node.
func (s *suite) run(ctx context.Context, path string, stdin []byte, env []string) (output, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &stdout, &stderr
	err := s.target.RunIn(cmd.Run)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return output{}, fmt.Errorf("execute %s: %w", path, err)
	}
	return output{stdout.Bytes(), stderr.Bytes(), cmd.ProcessState.ExitCode()}, nil
}

// execute executes the i-th plugin of the list with exactly this environment,
// past libcni's own validation. CNI_PATH is set if env does not.
func (s *suite) execute(ctx context.Context, i int, stdin []byte, env environment) (output, error) {
	path, err := invoke.FindInPath(s.list.Plugins[i].Network.Type, s.target.PluginDirs)
	if err != nil {
		return output{}, err
	}
	full := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CNI_") })
	if _, ok := env["CNI_PATH"]; !ok {
		full = append(full, "CNI_PATH="+strings.Join(s.target.PluginDirs, ":"))
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		full = append(full, name+"="+env[name])
	}
	return s.run(ctx, path, stdin, full)
}

// refusalOf returns the CNI error that an execution reported, or what is wrong with
// the report: a failure must be an error object on standard output and an exit
// status that is not 0.
func refusalOf(out output) (*types.Error, error) {
	var object struct {
		types.Error
		Code       *uint   `json:"code"`
		CNIVersion *string `json:"cniVersion"`
	}
	switch err := json.Unmarshal(out.stdout, &object); {
	case out.exit == 0:
		return nil, fmt.Errorf("exit status 0, want a failure; stdout %.300q", out.stdout)
	case out.exit < 0:
		return nil, fmt.Errorf("the plugin was killed; stderr %.300q", out.stderr)
	case err != nil:
		return nil, fmt.Errorf("exit status %d without an error object: %w; stdout %.300q, stderr %.300q", out.exit, err, out.stdout, out.stderr)
	case object.Code == nil || *object.Code == 0:
		return nil, fmt.Errorf("the error object has no code: %.300q", out.stdout)
	case object.Msg == "":
		return nil, fmt.Errorf("the error object has no msg: %.300q", out.stdout)
	case object.CNIVersion != nil && !slices.Contains(version.All.SupportedVersions(), *object.CNIVersion):
		return nil, fmt.Errorf("the error object's cniVersion is none: %.300q", out.stdout)
	}
	object.Error.Code = *object.Code
	return &object.Error, nil
}

// nodeExec runs libcni's executions on the node and keeps the last one's output.
type nodeExec struct {
	version.PluginDecoder
	s    *suite
	last output
}

func (e *nodeExec) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

func (e *nodeExec) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	out, err := e.s.run(ctx, path, stdin, env)
	e.last = out
	if err != nil || out.exit == 0 {
		return out.stdout, err
	}
	refusal, err := refusalOf(out)
	if err != nil {
		return nil, err
	}
	return nil, refusal
}

// container is a sandbox with an id that no other has.
type container struct {
	*sandbox
	id string
}

func (s *suite) newContainer(t *testing.T) *container {
	t.Helper()
	id := <-s.ids
	return &container{s.newSandbox(t, id), id}
}

// attachment is one interface of a container, seen by a runtime.
type attachment struct {
	s    *suite
	box  *container
	list *libcni.NetworkConfigList
	rt   *libcni.RuntimeConf
	cni  *libcni.CNIConfig
	exec *nodeExec
}

// attach prepares an attachment in the given version of the specification. What
// is left of it is deleted when the test ends.
func (s *suite) attach(t *testing.T, c *container, ifName, cniVersion string) *attachment {
	t.Helper()
	list := *s.list
	list.CNIVersion = cniVersion
	run := &nodeExec{s: s}
	a := &attachment{
		s: s, box: c, list: &list, exec: run,
		rt:  &libcni.RuntimeConf{ContainerID: c.id, NetNS: c.path, IfName: ifName, Args: s.target.Args},
		cni: libcni.NewCNIConfigWithCacheDir(s.target.PluginDirs, t.TempDir(), run),
	}
	t.Cleanup(func() {
		// The test's own context has ended by now.
		if err := a.del(context.Background()); err != nil {
			t.Errorf("the last DEL of %s in %s: %v", ifName, c.id, err)
		}
	})
	return a
}

// eth0 attaches a new container's eth0 in the newest version.
func (s *suite) eth0(t *testing.T) *attachment {
	t.Helper()
	return s.attach(t, s.newContainer(t), "eth0", s.newest())
}

func (a *attachment) add(ctx context.Context) (*types100.Result, error) {
	result, err := a.cni.AddNetworkList(ctx, a.list, a.rt)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(result)
}

// mustAdd ends the test if ADD fails.
func (a *attachment) mustAdd(t *testing.T) *types100.Result {
	t.Helper()
	result, err := a.add(t.Context())
	if err != nil {
		t.Fatalf("ADD: %v", err)
	}
	if len(result.IPs) == 0 {
		t.Fatalf("ADD gave no address: %s", a.exec.last.stdout)
	}
	return result
}

func (a *attachment) check(ctx context.Context) error {
	return a.cni.CheckNetworkList(ctx, a.list, a.rt)
}

func (a *attachment) del(ctx context.Context) error {
	return a.cni.DelNetworkList(ctx, a.list, a.rt)
}

func (a *attachment) mustDel(t *testing.T) {
	t.Helper()
	if err := a.del(t.Context()); err != nil {
		t.Fatalf("DEL: %v", err)
	}
}

// wantRefused checks that err is a CNI error of the plugin.
func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	if refusal := (*types.Error)(nil); err == nil {
		t.Errorf("%s succeeded, want a CNI error", what)
	} else if !errors.As(err, &refusal) {
		t.Errorf("%s failed, but not with a CNI error: %v", what, err)
	}
}

// config returns the i-th plugin's configuration as libcni would pass it, with
// more keys. A nil value removes nothing: it becomes null.
func (s *suite) config(i int, cniVersion string, more map[string]any) ([]byte, error) {
	keys := map[string]any{"name": s.list.Name, "cniVersion": cniVersion}
	maps.Copy(keys, more)
	conf, err := libcni.InjectConf(s.list.Plugins[i], keys)
	if err != nil {
		return nil, err
	}
	return conf.Bytes, nil
}

// mustConfig ends the test if the configuration cannot be made.
func (s *suite) mustConfig(t *testing.T, i int, cniVersion string, more map[string]any) []byte {
	t.Helper()
	conf, err := s.config(i, cniVersion, more)
	if err != nil {
		t.Fatalf("make the configuration: %v", err)
	}
	return conf
}
