package labtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/fabric"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// Runtime is a container runtime on one node that does exactly what a test says: it
// makes sandboxes and executes the CNI plugin. Its methods may be called from any
// goroutine.
type Runtime struct {
	node   string
	plugin string
	in     func(func() error) error
	// Network is the name of the network configuration, and Subnet, if set, the Subnet
	// that it asks for.
	Network, Subnet string
}

// Runtime makes one. It ends with the test or when the node is powered off.
func (l *Lab) Runtime(node string) *Runtime {
	l.t.Helper()
	return &Runtime{node: node, plugin: l.Status().Options.CNI, in: l.InNode(node), Network: "labtest"}
}

// Sandbox is a container without processes: its id and its network namespace.
type Sandbox struct {
	ID string
	// Path of the network namespace as the node sees it.
	Path string
	// Pod that it belongs to, "NAMESPACE/NAME", and the pod's UID; both empty for an
	// attachment without a pod.
	Pod, UID string

	runtime *Runtime
	netns   *os.File
}

// Sandbox makes the network namespace of a container. What is left of it when the
// test ends is removed.
func (r *Runtime) Sandbox(t testing.TB, id string) *Sandbox {
	t.Helper()
	s, err := r.NewSandbox(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Remove() })
	return s
}

// NewSandbox is Sandbox for other goroutines than the test's; the caller removes it.
func (r *Runtime) NewSandbox(id string) (*Sandbox, error) {
	ns, err := netspace.New()
	if err != nil {
		return nil, err
	}
	s := &Sandbox{ID: id, Path: "/run/netns/" + id, runtime: r, netns: ns}
	// The node's /proc does not know this process, so that the namespace is taken
	// along as a mount that is nowhere yet.
	tree, err := unix.OpenTree(int(ns.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("clone the mount of a network namespace: %w", err)
	}
	defer unix.Close(tree)
	err = r.in(func() error {
		if err := os.MkdirAll(filepath.Dir(s.Path), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(s.Path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
		if err != nil {
			return err
		}
		return errors.Join(f.Close(), unix.MoveMount(tree, "", unix.AT_FDCWD, s.Path, unix.MOVE_MOUNT_F_EMPTY_PATH))
	})
	if err == nil {
		err = fabric.Prepare(ns, false)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make sandbox %s on %s: %w", id, r.node, err), s.Remove())
	}
	return s, nil
}

// Remove removes the network namespace, as when a container has died. It may be
// called again, and after the node has lost its power.
func (s *Sandbox) Remove() error {
	if s.netns == nil {
		return nil
	}
	err := s.netns.Close()
	s.netns = nil
	return errors.Join(err, s.runtime.in(func() error {
		if err := unix.Unmount(s.Path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", s.Path, err)
		}
		if err := os.Remove(s.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}))
}

// In calls fn on a thread inside the sandbox's network namespace.
func (s *Sandbox) In(fn func() error) error { return netspace.Do(s.netns, fn) }

// Answer of an ADD.
type Answer struct {
	*types100.Result
	Addresses []netip.Addr
}

// Add calls ADD for eth0. A refusal of the plugin is a *types.Error of CNI.
func (s *Sandbox) Add(ctx context.Context) (Answer, error) {
	out, err := s.runtime.Call(ctx, "ADD", s.config(nil), s.env("ADD"))
	if err != nil {
		return Answer{}, err
	}
	result, err := types100.NewResult(out)
	if err != nil {
		return Answer{}, fmt.Errorf("read the answer of ADD: %w", err)
	}
	a := Answer{Result: result.(*types100.Result)}
	for _, ip := range a.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			a.Addresses = append(a.Addresses, addr.Unmap())
		}
	}
	if len(a.Addresses) == 0 {
		return a, fmt.Errorf("the answer of ADD has no address: %s", out)
	}
	return a, nil
}

// Del calls DEL for eth0.
func (s *Sandbox) Del(ctx context.Context) error {
	_, err := s.runtime.Call(ctx, "DEL", s.config(nil), s.env("DEL"))
	return err
}

// DelWithoutNetns calls DEL for eth0 as runtimes do when the container is long gone.
func (s *Sandbox) DelWithoutNetns(ctx context.Context) error {
	env := s.env("DEL")
	delete(env, "CNI_NETNS")
	_, err := s.runtime.Call(ctx, "DEL", s.config(nil), env)
	return err
}

// Check calls CHECK for eth0 with the answer of its ADD.
func (s *Sandbox) Check(ctx context.Context, a Answer) error {
	_, err := s.runtime.Call(ctx, "CHECK", s.config(map[string]any{"prevResult": a.Result}), s.env("CHECK"))
	return err
}

// GC calls GC with a list of the attachments that are still there.
func (r *Runtime) GC(ctx context.Context, valid ...*Sandbox) error {
	list := []cnitypes.GCAttachment{}
	for _, s := range valid {
		list = append(list, cnitypes.GCAttachment{ContainerID: s.ID, IfName: "eth0"})
	}
	_, err := r.Call(ctx, "GC", r.config(map[string]any{"cni.dev/valid-attachments": list}), map[string]string{})
	return err
}

// Status calls STATUS: nil if pods can be attached.
func (r *Runtime) Status(ctx context.Context) error {
	_, err := r.Call(ctx, "STATUS", r.config(nil), map[string]string{})
	return err
}

func (s *Sandbox) config(more map[string]any) map[string]any { return s.runtime.config(more) }

func (r *Runtime) config(more map[string]any) map[string]any {
	c := map[string]any{"cniVersion": "1.1.0", "name": r.Network, "type": "fairlead-cni", "standalone": true}
	if r.Subnet != "" {
		c["subnet"] = r.Subnet
	}
	maps.Copy(c, more)
	return c
}

func (s *Sandbox) env(command string) map[string]string {
	env := map[string]string{"CNI_CONTAINERID": s.ID, "CNI_NETNS": s.Path, "CNI_IFNAME": "eth0"}
	if namespace, name, ok := strings.Cut(s.Pod, "/"); ok {
		env["CNI_ARGS"] = fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s", namespace, name, s.ID, s.UID)
	}
	return env
}

// Call executes the plugin once, with exactly this configuration and these CNI_*
// variables, and returns its standard output. A refusal is a *types.Error of CNI.
func (r *Runtime) Call(ctx context.Context, command string, config any, env map[string]string) ([]byte, error) {
	stdin, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, r.plugin)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = "/", bytes.NewReader(stdin), &stdout, &stderr
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + command, "CNI_PATH=" + filepath.Dir(r.plugin)}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	err = r.in(cmd.Run)
	if err == nil {
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", command, ctx.Err())
	}
	var refusal cnitypes.Error
	if json.Unmarshal(stdout.Bytes(), &refusal) == nil && refusal.Code != 0 {
		return nil, &refusal
	}
	return nil, fmt.Errorf("%s: %w: stdout %q, stderr %q", command, err, stdout.String(), stderr.String())
}

// CodeOf is the code of a CNI error, 0 for nil and for any other error.
func CodeOf(err error) uint {
	if e := (*cnitypes.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}
