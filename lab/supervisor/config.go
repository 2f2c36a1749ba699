package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/lab/topology"
)

// etcdPort is where etcd listens in the control namespace.
const etcdPort = 2379

// conflist is the network configuration of a node, unless the options bring one.
const conflist = `{
  "cniVersion": "1.1.0",
  "name": "fairlead",
  "plugins": [{"type": %q}]
}
`

// writeConfigs writes the agent's configuration and the node's network
// configuration. A file that somebody edited is overwritten with the next boot.
func (n *node) writeConfigs() error {
	c := config.Agent{
		Header: config.Header{APIVersion: config.APIVersion, Kind: config.KindAgent},
		Node:   n.host.Name, Datastore: n.s.datastoreConfig(), Plane: n.plane(),
		Underlay: config.Underlay{Interface: "eth0"}, StateDir: machine.StateDir, RunDir: machine.RunDir,
		OVS:     config.OVS{RunDir: machine.OVSRunDir},
		Metrics: config.Metrics{Listen: "127.0.0.1:9090"}, Log: config.Log{Level: n.s.options.LogLevel},
	}
	etc := filepath.Join(n.dir, machine.DirEtc)
	if err := writeYAML(filepath.Join(etc, "agent.yaml"), c); err != nil {
		return err
	}
	list := fmt.Appendf(nil, conflist, filepath.Base(n.s.options.CNI))
	if path := n.s.options.Conflist; path != "" {
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("network configuration: %w", err)
		}
		list = raw
	}
	return writeFile(filepath.Join(etc, "cni", "net.d", "10-lab.conflist"), list)
}

// plane is the node's data plane.
func (n *node) plane() string {
	i := slices.IndexFunc(n.s.plan.Nodes, func(h topology.Host) bool { return h.Name == n.host.Name })
	return n.s.options.PlaneOf(max(i, 0))
}

func (s *supervisor) datastoreConfig() config.Datastore {
	return config.Datastore{Etcd: &config.Etcd{Endpoints: s.etcdURLs()}}
}

func (s *supervisor) writeControllerConfig() (string, error) {
	c := config.Controller{
		Header:   config.Header{APIVersion: config.APIVersion, Kind: config.KindController},
		Identity: "lab", Datastore: s.datastoreConfig(),
		Metrics: config.Metrics{Listen: "127.0.0.1:9091"}, Log: config.Log{Level: s.options.LogLevel},
	}
	path := filepath.Join(s.dir, spec.FileController)
	return path, writeYAML(path, c)
}

func writeYAML(path string, value any) error {
	raw, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return writeFile(path, raw)
}

func writeFile(path string, raw []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o600)
}
