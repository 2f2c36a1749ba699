package spec

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/process"
	"github.com/fairlead-sdn/fairlead/lab/topology"
)

// Options of a lab. The zero value of a field means its default.
type Options struct {
	// Name of the lab; default "default". At most 32 characters of a DNS label.
	Name string `json:"name"`
	// Root is the directory that labs live in; default DefaultRoot.
	Root string `json:"root"`
	// Nodes, default 3.
	Nodes int `json:"nodes"`
	// Segments is the number of L2 segments that the nodes are spread over, with a
	// router between them; default 1.
	Segments int `json:"segments"`
	// Plane is the data plane of the agents: "linux" (the default), "ovs", or a list with
	// commas, whose entries the nodes take in turns.
	Plane string `json:"plane"`
	// Encapsulation of the default Subnet: "VXLAN" (the default), "CrossSubnet" or
	// "None".
	Encapsulation string `json:"encapsulation"`
	// Subnets are the CIDRs of the default Subnet: IPv4, IPv6 or both; default
	// 10.128.0.0/14.
	Subnets []netip.Prefix `json:"subnets"`
	// NATOutgoing of the default Subnet; default true.
	NATOutgoing *bool `json:"natOutgoing"`
	// MTU of the underlay in bytes; default 1500.
	MTU int `json:"mtu"`
	// Underlay are the prefixes of the nodes' own addresses: an IPv4 /16, an IPv6
	// /32, or both; default topology.DefaultUnderlay.
	Underlay []netip.Prefix `json:"underlay"`
	// Etcd is the program that serves etcd: empty for the one that is built in, or
	// the path of an etcd binary.
	Etcd string `json:"etcd,omitempty"`
	// Agent, Controller and CNI are the paths of the programs; default beside the
	// running executable.
	Agent      string `json:"agent"`
	Controller string `json:"controller"`
	CNI        string `json:"cni"`
	// AgentEnv is added to the environment of every agent.
	AgentEnv []string `json:"agentEnv,omitempty"`
	// Conflist is a network configuration instead of Fairlead's own, and CNIPath
	// are directories with further plugins: for comparisons.
	Conflist string   `json:"conflist,omitempty"`
	CNIPath  []string `json:"cniPath,omitempty"`
	// LogLevel of the daemons; default "info".
	LogLevel string `json:"logLevel"`
	// Wait bounds how long Up waits for the nodes to be ready; default a minute.
	Wait time.Duration `json:"wait"`
}

// PlaneOf is the data plane of a node, counted from 0.
func (o Options) PlaneOf(node int) string {
	list := o.Planes()
	return list[node%len(list)]
}

// Planes are the data planes as they were given.
func (o Options) Planes() []string { return strings.Split(o.Plane, ",") }

// HasOVS reports whether a node runs the plane ovs.
func (o Options) HasOVS() bool { return slices.Contains(o.Planes(), "ovs") }

// DefaultRoot is the directory that labs live in.
const DefaultRoot = "/run/fairlead-lab"

// Files and directories of a lab's directory.
const (
	FileLock       = "lock"
	FileOptions    = "options.json"
	FileSupervisor = "supervisor.json"
	FileLog        = "supervisor.log"
	SocketAPI      = "supervisor.sock"
	SocketEtcd     = "etcd.sock"
	DirEtcd        = "etcd"
	DirNodes       = "nodes"
	FileController = "controller.yaml"
	LogController  = "controller.log"
	LogEtcd        = "etcd.log"
	SocketNode     = "node.sock"
)

// Supervisor says which process keeps a lab.
type Supervisor struct {
	Pid int `json:"pid"`
}

// Step is a step of Up, as it begins or gets on. Err is set on the last one if Up
// failed.
type Step struct {
	Name   string `json:"name"`
	Detail string `json:"detail,omitempty"`
	// Done of Total parts are done; Total is 0 where there is nothing to count.
	Done  int `json:"done,omitempty"`
	Total int `json:"total,omitempty"`
	// Elapsed since Up began.
	Elapsed time.Duration `json:"elapsed"`
	// Ready is the last step of a success, Err that of a failure.
	Ready bool   `json:"ready,omitempty"`
	Err   string `json:"err,omitempty"`
}

// Status is how a lab is.
type Status struct {
	Name       string         `json:"name"`
	Directory  string         `json:"directory"`
	Pid        int            `json:"pid"`
	Started    time.Time      `json:"started"`
	Options    Options        `json:"options"`
	Datastore  Datastore      `json:"datastore"`
	Controller process.Status `json:"controller"`
	Nodes      []Node         `json:"nodes"`
	Outside    []netip.Addr   `json:"outside"`
	Control    []netip.Addr   `json:"control"`
	Spaces     []Space        `json:"spaces"`
	// Problems of the lab itself: what it could not do of late.
	Problems []string `json:"problems,omitempty"`
}

// Datastore is the lab's etcd.
type Datastore struct {
	Process process.Status `json:"process"`
	// Endpoint for programs on the host, and URLs for those inside of the lab.
	Endpoint string   `json:"endpoint"`
	URLs     []string `json:"urls"`
}

// Node is how a node is.
type Node struct {
	Name      string         `json:"name"`
	Segment   string         `json:"segment"`
	Addresses []netip.Prefix `json:"addresses"`
	// Power is "on" or "off", Link "up" or "cut".
	Power string `json:"power"`
	Link  string `json:"link"`
	// Pid of the node's process 1, in the numbers of the host.
	Pid   int           `json:"pid,omitempty"`
	Boots int           `json:"boots"`
	State machine.State `json:"state"`
}

// Space is a network namespace beside those of nodes and pods, with the path at
// which the host can open it.
type Space struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// Plan is the topology that the options describe.
func (o *Options) Plan() (*topology.Plan, error) {
	return topology.New(o.Nodes, o.Segments, o.Underlay)
}

// Subnet is the default Subnet that the options describe. Its blocks are as large as
// its smallest CIDR where that is smaller than a block usually is.
func (o *Options) Subnet() *v1alpha1.Subnet {
	s := &v1alpha1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.SubnetSpec{
		VPC: v1alpha1.DefaultVPCName, Transport: v1alpha1.TransportOverlay,
		Encapsulation: v1alpha1.Encapsulation(o.Encapsulation), NATOutgoing: o.NATOutgoing,
	}}
	if s.Spec.Encapsulation == v1alpha1.EncapsulationNone {
		s.Spec.Transport = v1alpha1.TransportRouted
	}
	v1alpha1.DefaultSubnet(s)
	for _, p := range o.Subnets {
		s.Spec.CIDRs = append(s.Spec.CIDRs, p.String())
		block := &s.Spec.BlockSize.V6
		if p.Addr().Is4() {
			block = &s.Spec.BlockSize.V4
		}
		*block = max(*block, int32(p.Bits()))
	}
	return s
}
