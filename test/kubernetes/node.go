package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/ovshost"
	"github.com/fairlead-sdn/fairlead/lab/process"
)

// Images in the order in which a node imports them: what a node needs to become ready,
// and what only tests need.
var (
	firstImages = []string{"pause", "fairlead", "coredns"}
	otherImages = []string{"busybox", "agnhost"}
)

const containerdSocket = "/run/containerd/containerd.sock"

// nodeMachine is a node: containerd, kubelet and kube-proxy.
func (l layout) nodeMachine(i int, cni string, ovs bool) (machine, error) {
	name := nodeName(i)
	m := machine{Name: name, Directory: l.machine(name), Node: true}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return m, fmt.Errorf("runc: %w; install it (make kube-packages)", err)
	}
	oom, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return m, err
	}
	configs := map[string]string{
		"containerd.toml": containerdConfig(runc), "resolv.conf": "",
		"kubelet.yaml":    l.kubeletConfig(m, i, strings.TrimSpace(string(oom))),
		"kube-proxy.yaml": l.proxyConfig(name, strings.TrimSpace(string(oom))),
	}
	if err := os.MkdirAll(m.Directory, 0o755); err != nil {
		return m, err
	}
	for file, text := range configs {
		if err := os.WriteFile(filepath.Join(m.Directory, file), []byte(text), 0o600); err != nil {
			return m, err
		}
	}
	if err := l.installPlugins(m, cni); err != nil {
		return m, err
	}
	if ovs {
		if err := m.openVSwitch(); err != nil {
			return m, err
		}
	}
	ctr := []string{l.bin("ctr"), "-a", containerdSocket, "-n", "k8s.io"}
	imports := func(names []string) {
		for _, image := range names {
			if _, err := os.Stat(l.image(image)); err != nil {
				continue
			}
			m.Steps = append(m.Steps, step{Name: "import-" + image, Command: append(ctr[:len(ctr):len(ctr)], "images", "import", "--local", l.image(image))})
		}
	}
	m.Steps = append(m.Steps,
		step{Name: "containerd", Daemon: true, Command: []string{l.bin("containerd"), "--config", filepath.Join(m.Directory, "containerd.toml")}},
		step{Name: "containerd-ready", Command: append(ctr[:len(ctr):len(ctr)], "version")})
	imports(firstImages)
	m.Steps = append(m.Steps,
		step{Name: "kubelet", Daemon: true, Command: []string{
			l.bin("kubelet"), "--config", filepath.Join(m.Directory, "kubelet.yaml"), "--kubeconfig", l.kubeconfig(name),
			"--hostname-override", name, "--node-ip", nodeAddress(i).String() + "," + nodeAddress6(i).String(), "--v=2",
		}},
		step{Name: "kube-proxy", Daemon: true, Command: []string{l.bin("kube-proxy"), "--config", filepath.Join(m.Directory, "kube-proxy.yaml"), "--v=2"}})
	imports(otherImages)
	return m, nil
}

// openVSwitch adds the daemons of an Open vSwitch of the node's own.
func (m *machine) openVSwitch() error {
	if err := ovshost.Installed(); err != nil {
		return err
	}
	// The database is below what only this machine has; the sockets are where agents look.
	h := ovshost.Host{Run: "/run/openvswitch", Data: filepath.Join(m.Directory, "openvswitch")}
	if err := os.MkdirAll(h.Data, 0o755); err != nil {
		return err
	}
	if err := h.Wipe(); err != nil {
		return err
	}
	m.Steps = append(m.Steps, step{Name: "ovs-directory", Command: []string{"/bin/mkdir", "-p", h.Run}})
	for name, command := range map[string]func() (process.Command, error){"ovsdb-server": h.DatabaseServer, "ovs-vswitchd": h.Switch} {
		c, err := command()
		if err != nil {
			return err
		}
		argv := append([]string{"/usr/bin/env"}, c.Env...)
		m.Steps = append(m.Steps, step{Name: name, Daemon: true, Command: append(append(argv, c.Path), c.Args[1:]...)})
	}
	return nil
}

// installPlugins puts the reference CNI plugins where the node will see them. Fairlead's own
// is brought by its DaemonSet.
func (l layout) installPlugins(m machine, cni string) error {
	dir := filepath.Join(m.Directory, "upper/opt/cni/bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	names := []string{"loopback", "portmap"}
	if cni == cniBridge {
		names = append(names, "bridge", "host-local")
	}
	for _, name := range names {
		raw, err := os.ReadFile(l.bin(filepath.Join("cni", name)))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o755); err != nil {
			return err
		}
	}
	// A configuration of the host's is none of the node's.
	return hide(filepath.Join(m.Directory, "upper/etc/cni/net.d"))
}

// hide makes a directory of an overlay's upper layer that shows nothing of the one below.
func hide(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Setxattr(dir, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		return fmt.Errorf("mark %s: %w", dir, err)
	}
	return nil
}

func containerdConfig(runc string) string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "%s"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  use_local_image_pull = true
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "registry.k8s.io/pause:3.10"
[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE nobody may lower an oom_score_adj.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "%s"
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
    # Else it starts a program for each pod, to set "lo" up.
    use_internal_loopback = true
`, containerdSocket, runc)
}

func (l layout) kubeletConfig(m machine, i int, oom string) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %[2]s}
authorization: {mode: Webhook}
tlsCertFile: %[3]s
tlsPrivateKeyFile: %[4]s
clusterDomain: cluster.local
clusterDNS: ["%[5]s"]
resolvConf: %[6]s
containerRuntimeEndpoint: unix://%[7]s
cgroupDriver: cgroupfs
cgroupRoot: /%[8]s
failCgroupV1: false
oomScoreAdj: %[9]s
failSwapOn: false
maxPods: 250
# No registry could give back what is collected.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%%, imagefs.available: 1%%}
`, nodeAddress(i), l.pki("ca.crt"), l.pki(m.Name+".crt"), l.pki(m.Name+".key"), clusterDNS,
		filepath.Join(m.Directory, "resolv.conf"), containerdSocket, cgroupName(m.Name), oom)
}

func (l layout) proxyConfig(node, oom string) string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: %s
hostnameOverride: %s
oomScoreAdj: %s
clientConnection: {kubeconfig: %s}
# The conntrack sysctls can only be written in the first network namespace.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, podCIDR+","+podCIDR6, node, oom, l.kubeconfig("kube-proxy"))
}
