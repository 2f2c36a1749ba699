package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const agent = `apiVersion: fairlead.dev/config/v1alpha1
kind: AgentConfig
node: n1
datastore:
  etcd:
    endpoints: [https://10.0.0.1:2379]
`

func inCluster(connection string) string {
	return "apiVersion: fairlead.dev/config/v1alpha1\nkind: AgentConfig\nnode: n1\ndatastore: {kubernetes: " + connection + "}\n"
}

func TestKubernetes(t *testing.T) {
	for _, connection := range []string{"{}", "{kubeconfig: /etc/fairlead/kubeconfig}", "{kubeconfig: /etc/fairlead/kubeconfig, context: prod}"} {
		c, err := LoadAgent(write(t, inCluster(connection)))
		if err != nil || c.Datastore.Kubernetes == nil || c.Datastore.Etcd != nil {
			t.Errorf("%s: %+v, %v", connection, c.Datastore, err)
		}
	}
}

func TestAgentDefaults(t *testing.T) {
	c, err := LoadAgent(write(t, agent))
	if err != nil {
		t.Fatal(err)
	}
	if c.Plane != "linux" || c.StateDir != "/var/lib/fairlead" || c.Resync.Duration != 5*time.Minute || c.Log.Level != "info" {
		t.Errorf("defaults: %+v", c)
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown field", agent + "mtuu: 1400\n", `unknown field "mtuu"`},
		{"doubled field", agent + "node: n2\n", `"node" already set`},
		{"wrong kind", strings.Replace(agent, "AgentConfig", "Pod", 1), `want fairlead.dev/config/v1alpha1 and AgentConfig`},
		{"small MTU", agent + "mtu: 100\n", "mtu: 100 is not 0"},
		{"plane", agent + "plane: dpdk\n", `plane: "dpdk" is not supported`},
		{"datapath", agent + "plane: ovs\novs: {datapath: kernel}\n", `ovs.datapath: "kernel" is not auto, system or netdev`},
		{"ovs sockets", agent + "plane: ovs\novs: {runDir: here}\n", `ovs.runDir: "here" is not an absolute path`},
		{"duration", agent + "resync: often\n", `"often" is not a duration`},
		{"log level", agent + "log: {level: loud}\n", `log.level: "loud"`},
		{"relative path", agent + "stateDir: state\n", `stateDir: "state" is not an absolute path`},
		{"no datastore", "apiVersion: fairlead.dev/config/v1alpha1\nkind: AgentConfig\nnode: n1\n", "datastore: is missing: want kubernetes or etcd"},
		{"two datastores", agent + "  kubernetes: {}\n", "kubernetes and etcd are given: want one"},
		{"relative kubeconfig", inCluster("{kubeconfig: admin.conf}"), `datastore.kubernetes.kubeconfig: "admin.conf" is not an absolute path`},
		{"context of nothing", inCluster("{context: prod}"), `datastore.kubernetes.context: "prod" is given, but no kubeconfig`},
		{"not YAML", "{", "config.yaml"},
		{"empty", "", `kind ""`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := LoadAgent(write(t, tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// S10: what is wrong with a password is said without it.
func TestPasswordIsNotRepeated(t *testing.T) {
	_, err := LoadAgent(write(t, "apiVersion: fairlead.dev/config/v1alpha1\nkind: AgentConfig\ndatastore: {etcd: {endpoints: ['https://user:canary@192.0.2.1:2379', 'https://u:canary@%zz']}}\n"))
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("%v: want a refusal that does not repeat the endpoint", err)
	}
}

func TestEveryMistakeIsReported(t *testing.T) {
	_, err := LoadAgent(write(t, agent+"mtu: 1\nplane: x\nlog: {format: xml}\n"))
	for _, want := range []string{"mtu:", "plane:", "log.format:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

func TestController(t *testing.T) {
	text := `apiVersion: fairlead.dev/config/v1alpha1
kind: ControllerConfig
identity: c1
datastore: {etcd: {endpoints: ["http://127.0.0.1:2379"]}}
defaultSubnet: {cidrs: [10.128.0.0/14]}
`
	path := write(t, text)
	c, err := LoadController(path)
	if err != nil || c.LeaderElection.LeaseDuration.Duration != 15*time.Second {
		t.Fatalf("%+v, %v", c, err)
	}
	if kind, err := Check(path); kind != KindController || err != nil {
		t.Errorf("Check: %q, %v", kind, err)
	}
	_, err = LoadController(write(t, text+"leaderElection: {renewDeadline: 20s}\n"))
	if err == nil || !strings.Contains(err.Error(), "leaderElection: want retryPeriod 2s < renewDeadline 20s < leaseDuration 15s") {
		t.Errorf("got %v", err)
	}
	_, err = LoadController(write(t, strings.Replace(text, "10.128.0.0/14", "10.128.0.1/14", 1)))
	if err == nil || !strings.Contains(err.Error(), "defaultSubnet.cidrs[0]") {
		t.Errorf("got %v", err)
	}
}

// FuzzLoad reads what somebody wrote into a daemon's file: it is understood or refused.
func FuzzLoad(f *testing.F) {
	f.Add(agent)
	f.Add("a: &a [*a, *a]\n")
	f.Add("{}")
	path := filepath.Join(f.TempDir(), "config.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := LoadAgent(path); err == nil && c.Node == "" {
			t.Errorf("%q is a configuration without a node", text)
		}
		_, _ = LoadController(path)
	})
}
