package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/rpc"
	"github.com/fairlead-sdn/fairlead/lab/spec"
)

// ErrNotFound says that there is no lab of that name.
var ErrNotFound = errors.New("there is no such lab")

// ErrNotRunning says that of a lab only remains are left, which Down removes.
var ErrNotRunning = errors.New("the lab does not run")

// Lab is a lab that is or was running.
type Lab struct {
	name, root string
}

// Info is an entry of List.
type Info struct {
	Name string `json:"name"`
	// Running is false for what a killed supervisor or a reboot of the machine left.
	Running bool `json:"running"`
}

// List lists the labs in the directory root (empty: DefaultRoot), by name.
func List(root string) ([]Info, error) {
	root, err := absRoot(root)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 {
		return nil, fmt.Errorf("list labs: %w: they are root's: run it with sudo", err)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	out := []Info{}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		running, err := (&Lab{name: e.Name(), root: root}).running()
		if err != nil {
			return nil, err
		}
		out = append(out, Info{Name: e.Name(), Running: running})
	}
	return out, nil
}

func absRoot(root string) (string, error) {
	if root == "" {
		root = DefaultRoot
	}
	return filepath.Abs(root)
}

// Open finds a running lab: the one named, or, if name is empty, the only one that
// runs, or else the one called default. The errors ErrNotFound and ErrNotRunning say
// which labs there are.
func Open(root, name string) (*Lab, error) {
	l, running, err := find(root, name)
	if err != nil {
		return nil, err
	}
	if !running {
		return nil, fmt.Errorf("lab %s: %w: remove what is left of it with fairlead lab down --lab %s", l.name, ErrNotRunning, l.name)
	}
	return l, nil
}

// Down ends a lab, running or not, as Open finds it, and waits until nothing is left.
func Down(ctx context.Context, root, name string) error {
	l, _, err := find(root, name)
	if err != nil {
		return err
	}
	return l.Down(ctx)
}

func find(root, name string) (*Lab, bool, error) {
	root, err := absRoot(root)
	if err != nil {
		return nil, false, err
	}
	labs, err := List(root)
	if err != nil {
		return nil, false, err
	}
	unnamed := name == ""
	if unnamed {
		name = DefaultName
		running := slices.DeleteFunc(slices.Clone(labs), func(i Info) bool { return !i.Running })
		if len(running) == 1 {
			name = running[0].Name
		} else if len(running) == 0 && len(labs) == 1 {
			name = labs[0].Name
		}
	}
	var names []string
	for _, i := range labs {
		if i.Name == name {
			return &Lab{name: name, root: root}, i.Running, nil
		}
		names = append(names, i.Name)
	}
	if len(names) == 0 {
		return nil, false, fmt.Errorf("lab %s: %w: start one with fairlead lab up", name, ErrNotFound)
	}
	if unnamed {
		return nil, false, fmt.Errorf("no lab is named, and %w as %q; those that there are: %s; name one with --lab", ErrNotFound, name, strings.Join(names, ", "))
	}
	return nil, false, fmt.Errorf("lab %s: %w; those that there are: %s; name one with --lab", name, ErrNotFound, strings.Join(names, ", "))
}

// Name of the lab.
func (l *Lab) Name() string { return l.name }

// Directory of the lab on the host.
func (l *Lab) Directory() string { return l.dir() }

// Datastore is the endpoint of the lab's etcd for programs on the host, as
// datastore/etcd takes it.
func (l *Lab) Datastore() string { return "unix://" + l.path(spec.SocketEtcd) }

// AdminSocket is the path on the host of the admin socket of a node's agent.
func (l *Lab) AdminSocket(node string) string {
	return l.path(spec.DirNodes, node, machine.DirRun, "fairlead", "admin.sock")
}

// NodeDirectory is what a node has on disk: run, var, etc and log.
func (l *Lab) NodeDirectory(node string) string { return l.path(spec.DirNodes, node) }

// ContainerLog is the file that a container's output goes to.
func (l *Lab) ContainerLog(node string, pod *corev1.Pod, container string) string {
	return l.path(spec.DirNodes, node, machine.DirLog, fmt.Sprintf("%s_%s_%s.log", pod.Namespace, pod.Name, container))
}

// Status tells how the lab is.
func (l *Lab) Status(ctx context.Context) (Status, error) {
	var s Status
	err := l.call(ctx, http.MethodGet, "/v1/status", nil, &s)
	return s, err
}

// Faults lists what Fault can do.
func Faults() []FaultInfo { return spec.Faults() }

// Fault breaks or repairs something, and returns when that is done.
func (l *Lab) Fault(ctx context.Context, f Fault) error {
	return l.call(ctx, http.MethodPost, "/v1/fault", f, nil)
}

func (l *Lab) call(ctx context.Context, method, path string, in, out any) error {
	client := rpc.NewClient(l.path(spec.SocketAPI))
	defer client.CloseIdleConnections()
	if err := rpc.Call(ctx, client, method, path, in, out); err != nil {
		return fmt.Errorf("lab %s: %w", l.name, err)
	}
	return nil
}

func (l *Lab) dir() string { return filepath.Join(l.root, l.name) }

func (l *Lab) path(parts ...string) string {
	return filepath.Join(append([]string{l.dir()}, parts...)...)
}

// running tells whether a supervisor holds the lab's lock.
func (l *Lab) running() (bool, error) {
	f, err := os.OpenFile(l.path(spec.FileLock), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lab %s: %w", l.name, err)
	}
	defer f.Close()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case err == nil:
		return false, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	default:
		return false, fmt.Errorf("lab %s: read its lock: %w", l.name, err)
	}
}

// supervisor is the pid of the lab's supervisor.
func (l *Lab) supervisor() (int, error) {
	raw, err := os.ReadFile(l.path(spec.FileSupervisor))
	var s spec.Supervisor
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err == nil && s.Pid <= 0 {
		err = errors.New("no pid in it")
	}
	if err != nil {
		return 0, fmt.Errorf("lab %s: read the supervisor's pid: %w", l.name, err)
	}
	return s.Pid, nil
}
