package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/lab/process"
)

// podInterface is the interface of a pod, as every runtime names it.
const podInterface = "eth0"

// network calls the CNI plugins that the node's configuration names.
type network struct {
	cni *libcni.CNIConfig
}

func newNetwork(table *process.Table, path []string) *network {
	return &network{cni: libcni.NewCNIConfigWithCacheDir(path, cniDir+"/cache", &executor{table: table})}
}

// config reads the node's network configuration, as kubelets do: the first file in
// the order of names.
func (n *network) config() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(cniConfig, []string{".conflist"})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", cniConfig, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no network configuration (*.conflist) in %s", cniConfig)
	}
	return libcni.NetworkConfFromFile(files[0])
}

// attachment is what identifies a pod's interface to the plugins.
func attachment(pod *corev1.Pod, sandbox string) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{ContainerID: sandbox, IfName: podInterface, NetNS: netnsDir + "/" + netnsName(sandbox)}
	if pod != nil {
		rt.Args = [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", pod.Namespace},
			{"K8S_POD_NAME", pod.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", sandbox},
			{"K8S_POD_UID", string(pod.UID)},
		}
	}
	return rt
}

// add attaches a pod and returns its addresses.
func (n *network) add(ctx context.Context, pod *corev1.Pod, sandbox string) ([]netip.Addr, error) {
	list, err := n.config()
	if err != nil {
		return nil, err
	}
	raw, err := n.cni.AddNetworkList(ctx, list, attachment(pod, sandbox))
	if err != nil {
		return nil, err
	}
	result, err := types100.NewResultFromResult(raw)
	if err != nil {
		return nil, fmt.Errorf("result of CNI ADD: %w", err)
	}
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	if len(addrs) == 0 {
		return nil, errors.New("result of CNI ADD: it has no address")
	}
	return addrs, nil
}

func (n *network) del(ctx context.Context, pod *corev1.Pod, sandbox string) error {
	list, err := n.config()
	if err != nil {
		return err
	}
	return n.cni.DelNetworkList(ctx, list, attachment(pod, sandbox))
}

// status is nil if pods can be attached.
func (n *network) status(ctx context.Context) error {
	list, err := n.config()
	if err != nil {
		return err
	}
	return n.cni.GetStatusNetworkList(ctx, list)
}

// gc tells the plugins which attachments are still there.
func (n *network) gc(ctx context.Context, sandboxes []string) error {
	list, err := n.config()
	if err != nil {
		return err
	}
	args := &libcni.GCArgs{ValidAttachments: []cnitypes.GCAttachment{}}
	for _, s := range sandboxes {
		args.ValidAttachments = append(args.ValidAttachments, cnitypes.GCAttachment{ContainerID: s, IfName: podInterface})
	}
	return n.cni.GCNetworkList(ctx, list, args)
}

// check asks the plugins whether an attachment is as it should be.
func (n *network) check(ctx context.Context, pod *corev1.Pod, sandbox string) error {
	list, err := n.config()
	if err != nil {
		return err
	}
	return n.cni.CheckNetworkList(ctx, list, attachment(pod, sandbox))
}

// tryAgain tells whether a plugin asked for the same call again (code 11).
func tryAgain(err error) bool {
	var e *cnitypes.Error
	return errors.As(err, &e) && e.Code == cnitypes.ErrTryAgainLater
}

// executor runs plugins as children of this program, which collects all its
// children itself (see package process).
type executor struct {
	version.PluginDecoder
	table *process.Table
}

// ExecPlugin implements invoke.Exec.
func (e *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	c := process.Command{Path: path, Args: []string{path}, Env: environ, Dir: "/"}
	stdout, stderr, exit, err := e.table.Output(ctx, c, stdin)
	if err != nil {
		return nil, err
	}
	if exit == 0 {
		return stdout, nil
	}
	var refusal cnitypes.Error
	if json.Unmarshal(stdout, &refusal) == nil && (refusal.Code != 0 || refusal.Msg != "") {
		return nil, &refusal
	}
	return nil, fmt.Errorf("CNI plugin %s: exit status %d: %s", path, exit,
		strings.TrimSpace(string(stdout)+" "+string(stderr)))
}

// FindInPath implements invoke.Exec.
func (e *executor) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

func netnsName(sandbox string) string { return "cni-" + sandbox[:min(len(sandbox), 16)] }
