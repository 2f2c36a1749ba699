package main

import (
	"fmt"
	"os"
)

// auditPolicy records what Fairlead's own accounts do, and nothing else.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["system:serviceaccount:kube-system:fairlead-agent", "system:serviceaccount:kube-system:fairlead-controller"]
- level: None
`

// controlMachine is the machine of the control plane.
func (l layout) controlMachine(nodeCIDRs bool) (machine, error) {
	for path, text := range map[string]string{l.run("conf", "audit.yaml"): auditPolicy, l.apiServerExtra(): ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return machine{}, err
		}
	}
	if err := os.MkdirAll(l.run("etcd"), 0o700); err != nil {
		return machine{}, err
	}
	m := machine{Name: "control", Directory: l.machine("control")}
	const etcd = "http://127.0.0.1:2379"
	daemon := func(name string, args ...string) {
		m.Steps = append(m.Steps, step{Name: name, Command: append([]string{l.bin(name)}, args...), Daemon: true})
	}
	// The cluster is disposable: it need not survive the loss of power.
	daemon("etcd", "--data-dir", l.run("etcd"), "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", "http://127.0.0.1:2380")
	// What is in the file is added whenever the API server is started again.
	m.Steps = append(m.Steps, step{Name: "kube-apiserver", Daemon: true, Command: append([]string{
		"/bin/sh", "-c", `exec "$0" "$@" $(cat ` + l.apiServerExtra() + `)`, l.bin("kube-apiserver"),
	}, l.apiServerFlags(etcd)...)})
	admin := l.kubeconfig("admin")
	m.Steps = append(m.Steps, step{Name: "ready", Command: []string{l.bin("kubectl"), "--kubeconfig", admin, "get", "--raw", "/readyz"}})
	flags := []string{
		"--bind-address=127.0.0.1", "--kubeconfig=" + l.kubeconfig("kube-controller-manager"), "--leader-elect=false",
		"--use-service-account-credentials=true", "--service-account-private-key-file=" + l.pki("sa.key"), "--root-ca-file=" + l.pki("ca.crt"),
		"--cluster-signing-cert-file=" + l.pki("ca.crt"), "--cluster-signing-key-file=" + l.pki("ca.key"),
		"--service-cluster-ip-range=" + serviceCIDR, "--profiling=false", fmt.Sprintf("--allocate-node-cidrs=%t", nodeCIDRs),
	}
	if nodeCIDRs {
		flags = append(flags, "--cluster-cidr="+podCIDR, "--node-cidr-mask-size=24")
	}
	daemon("kube-controller-manager", flags...)
	daemon("kube-scheduler", "--bind-address=127.0.0.1", "--kubeconfig="+l.kubeconfig("kube-scheduler"), "--leader-elect=false", "--profiling=false")
	return m, nil
}

// apiServerExtra is the file of further flags of the API server.
func (l layout) apiServerExtra() string { return l.run("conf", "apiserver-flags") }

func (l layout) apiServerFlags(etcd string) []string {
	return []string{
		"--etcd-servers=" + etcd,
		"--bind-address=" + controlAddress().String(), "--secure-port=6443", "--advertise-address=" + controlAddress().String(),
		"--tls-cert-file=" + l.pki("apiserver.crt"), "--tls-private-key-file=" + l.pki("apiserver.key"), "--client-ca-file=" + l.pki("ca.crt"),
		"--service-account-key-file=" + l.pki("sa.pub"), "--service-account-signing-key-file=" + l.pki("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-cluster-ip-range=" + serviceCIDR, "--allow-privileged=true",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + l.pki("apiserver-kubelet-client.crt"), "--kubelet-client-key=" + l.pki("apiserver-kubelet-client.key"),
		"--kubelet-certificate-authority=" + l.pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + l.pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + l.pki("front-proxy-client.crt"), "--proxy-client-key-file=" + l.pki("front-proxy-client.key"),
		"--enable-aggregator-routing=true", "--profiling=false",
		"--audit-policy-file=" + l.run("conf", "audit.yaml"), "--audit-log-path=" + l.run("audit.log"),
		"--audit-log-maxsize=1000", "--audit-log-maxbackup=1",
	}
}

// outsideMachine is a server beyond the cluster's router.
func (l layout) outsideMachine() machine {
	return machine{Name: "outside", Directory: l.machine("outside"), Steps: []step{{
		Name: "server", Daemon: true, Command: []string{l.bin("agnhost"), "netexec", fmt.Sprintf("--http-port=%d", outsidePort), fmt.Sprintf("--udp-port=%d", outsidePort)},
	}}}
}

// fabricMachine holds the bridges and routes between all others.
func (l layout) fabricMachine() machine {
	return machine{Name: "fabric", Directory: l.machine("fabric")}
}
