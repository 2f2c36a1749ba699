package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// APIVersion of the files that this version reads.
const APIVersion = "fairlead.dev/config/v1alpha1"

// The kinds of files.
const (
	KindAgent      = "AgentConfig"
	KindController = "ControllerConfig"
)

// nodeNameVariable is the environment variable that names the node: one file serves all.
const nodeNameVariable = "NODE_NAME"

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// Header is what every file begins with.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// Duration is a time.Duration written as "30s".
type Duration struct{ time.Duration }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 30s or 5m", s)
	}
	d.Duration = v
	return nil
}

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return []byte(`"` + d.String() + `"`), nil }

// Agent configures fairlead-agent.
type Agent struct {
	Header
	// Node is this node's name, that of its Node object. Default: the environment variable
	// NODE_NAME, as a DaemonSet sets it, else the host name.
	Node      string    `json:"node,omitempty"`
	Datastore Datastore `json:"datastore"`
	// Plane is PlaneLinux or PlaneOVS. Default linux.
	Plane    string   `json:"plane,omitempty"`
	OVS      OVS      `json:"ovs,omitzero"`
	Underlay Underlay `json:"underlay"`
	// MTU of pods in bytes; 0 (the default) is the largest that all nodes can carry.
	MTU int `json:"mtu,omitempty"`
	// StateDir holds what survives a reboot, RunDir the sockets.
	StateDir string `json:"stateDir,omitempty"`
	RunDir   string `json:"runDir,omitempty"`
	// BPFDir is where the tunnel programs are pinned: below a BPF file system.
	BPFDir string `json:"bpfDir,omitempty"`
	// FlowCache lets established flows between pods pass by the kernel's own path.
	// Default true.
	FlowCache *bool   `json:"flowCache,omitempty"`
	Metrics   Metrics `json:"metrics,omitempty"`
	Log       Log     `json:"log,omitempty"`
	// Resync is how often everything is read back from the kernel. Default 5m.
	Resync Duration `json:"resync,omitempty"`
}

// The data planes.
const (
	PlaneLinux = "linux"
	PlaneOVS   = "ovs"
)

// OVS says where the host's Open vSwitch is, for the plane of that name.
type OVS struct {
	// RunDir is the directory of its sockets and pid files. Default /var/run/openvswitch.
	RunDir string `json:"runDir,omitempty"`
	// Datapath is "system" (the kernel's), "netdev" (in userspace) or "auto", the default:
	// system if the kernel has the module, else netdev.
	Datapath string `json:"datapath,omitempty"`
}

// Controller configures fairlead-controller.
type Controller struct {
	Header
	// Identity distinguishes the candidates of an election. Default: the host name.
	Identity  string    `json:"identity,omitempty"`
	Datastore Datastore `json:"datastore"`
	// LeaderElection bounds how long a dead leader is waited for.
	LeaderElection LeaderElection `json:"leaderElection,omitempty"`
	// VanishedNodeGrace is how long a node without a Node object keeps its blocks.
	// Default 1m.
	VanishedNodeGrace Duration `json:"vanishedNodeGrace,omitempty"`
	// DefaultSubnet is created if there is no Subnet "default"; absent creates none.
	DefaultSubnet *DefaultSubnet `json:"defaultSubnet,omitempty"`
	Metrics       Metrics        `json:"metrics,omitempty"`
	Log           Log            `json:"log,omitempty"`
}

// Datastore says where the objects live: exactly one field is set.
type Datastore struct {
	Kubernetes *Kubernetes `json:"kubernetes,omitempty"`
	Etcd       *Etcd       `json:"etcd,omitempty"`
}

// Kubernetes is a connection to a Kubernetes API server.
type Kubernetes struct {
	// Kubeconfig is the file that says where it is and who we are. Default: the service
	// account of the pod that this process runs in.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Context of the kubeconfig. Default: its current one.
	Context string `json:"context,omitempty"`
}

// Etcd is a connection to an etcd cluster.
type Etcd struct {
	// Endpoints are URLs: "https://10.0.0.1:2379", or "unix:///path" for a local server.
	Endpoints []string `json:"endpoints"`
	// CA, Cert and Key are files in PEM form: the servers' authority, and this
	// client's certificate.
	CA   string `json:"ca,omitempty"`
	Cert string `json:"cert,omitempty"`
	Key  string `json:"key,omitempty"`
	// Prefix of every key. Default "/fairlead".
	Prefix string `json:"prefix,omitempty"`
}

// Underlay names the node's place on the network that joins the nodes.
type Underlay struct {
	// Interface whose addresses and MTU are the node's. Default: that of the default
	// route.
	Interface string `json:"interface,omitempty"`
}

// Metrics is where Prometheus metrics and health are served.
type Metrics struct {
	// Listen is "address:port"; empty serves nothing.
	Listen string `json:"listen,omitempty"`
}

// Log says what is logged.
type Log struct {
	// Level is debug, info, warn or error. Default info.
	Level string `json:"level,omitempty"`
	// Format is text or json. Default text.
	Format string `json:"format,omitempty"`
}

// LeaderElection of the controller (as in client-go's leaderelection).
type LeaderElection struct {
	// LeaseDuration until a leader that is not heard of has lost. Default 15s.
	LeaseDuration Duration `json:"leaseDuration,omitempty"`
	// RenewDeadline after which a leader that cannot renew gives up. Default 10s.
	RenewDeadline Duration `json:"renewDeadline,omitempty"`
	// RetryPeriod between attempts. Default 2s.
	RetryPeriod Duration `json:"retryPeriod,omitempty"`
}

// DefaultSubnet is the Subnet called "default".
type DefaultSubnet struct {
	CIDRs         []string `json:"cidrs"`
	Transport     string   `json:"transport,omitempty"`
	Encapsulation string   `json:"encapsulation,omitempty"`
	NATOutgoing   *bool    `json:"natOutgoing,omitempty"`
}

// LoadAgent reads and validates an agent's file.
func LoadAgent(path string) (Agent, error) {
	var c Agent
	if err := load(path, KindAgent, &c); err != nil {
		return Agent{}, err
	}
	setDefault(&c.Node, os.Getenv(nodeNameVariable))
	if c.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return Agent{}, fmt.Errorf("%s: node: no name is given and the host's is not known: %w", path, err)
		}
		c.Node = strings.ToLower(host)
	}
	c.setDefaults()
	return c, named(path, c.validate())
}

// DefaultAgent is what an agent's file says that says nothing.
func DefaultAgent() Agent {
	var c Agent
	c.setDefaults()
	return c
}

func (c *Agent) setDefaults() {
	setDefault(&c.Plane, PlaneLinux)
	setDefault(&c.OVS.RunDir, "/var/run/openvswitch")
	setDefault(&c.OVS.Datapath, "auto")
	setDefault(&c.StateDir, claims.StateDir)
	setDefault(&c.RunDir, claims.RunDir)
	setDefault(&c.BPFDir, claims.BPFPinDir)
	if c.FlowCache == nil {
		c.FlowCache = new(true)
	}
	setDefault(&c.Log.Level, "info")
	setDefault(&c.Log.Format, "text")
	setDefault(&c.Resync.Duration, 5*time.Minute)
}

// LoadController reads and validates a controller's file.
func LoadController(path string) (Controller, error) {
	var c Controller
	if err := load(path, KindController, &c); err != nil {
		return Controller{}, err
	}
	if c.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return Controller{}, fmt.Errorf("%s: identity: none is given and the host's name is not known: %w", path, err)
		}
		c.Identity = host
	}
	setDefault(&c.LeaderElection.LeaseDuration.Duration, 15*time.Second)
	setDefault(&c.LeaderElection.RenewDeadline.Duration, 10*time.Second)
	setDefault(&c.LeaderElection.RetryPeriod.Duration, 2*time.Second)
	setDefault(&c.VanishedNodeGrace.Duration, time.Minute)
	setDefault(&c.Log.Level, "info")
	setDefault(&c.Log.Format, "text")
	return c, named(path, c.validate())
}

// Check reads a file of either kind and returns its kind.
func Check(path string) (kind string, err error) {
	raw, err := read(path)
	if err != nil {
		return "", err
	}
	var h Header
	if err := yaml.Unmarshal(raw, &h); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	switch h.Kind {
	case KindAgent:
		_, err = LoadAgent(path)
	case KindController:
		_, err = LoadController(path)
	default:
		err = fmt.Errorf("%s: kind: %q is not %s or %s", path, h.Kind, KindAgent, KindController)
	}
	return h.Kind, err
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func named(path string, errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", path, errors.Join(errs...))
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	if len(raw) > maxFile {
		return nil, fmt.Errorf("read configuration %s: larger than %d bytes", path, maxFile)
	}
	return raw, nil
}

func load(path, kind string, into any) error {
	raw, err := read(path)
	if err != nil {
		return err
	}
	var h Header
	if err := yaml.Unmarshal(raw, &h); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if h.APIVersion != APIVersion || h.Kind != kind {
		return fmt.Errorf("%s: apiVersion %q and kind %q: want %s and %s", path, h.APIVersion, h.Kind, APIVersion, kind)
	}
	if err := yaml.UnmarshalStrict(bytes.TrimSpace(raw), into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

var dns1123 = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// problems collects what is wrong with fields.
type problems []error

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, fmt.Errorf(field+": "+format, args...))
}

func (c Agent) validate() []error {
	var p problems
	if len(c.Node) > 253 || !dns1123.MatchString(c.Node) {
		p.add("node", "%q is not the name of a Node (lower-case letters, digits, '-' and '.')", c.Node)
	}
	c.Datastore.validate(&p)
	if c.Plane != PlaneLinux && c.Plane != PlaneOVS {
		p.add("plane", "%q is not supported: want linux or ovs", c.Plane)
	}
	if d := c.OVS.Datapath; d != "auto" && d != "system" && d != "netdev" {
		p.add("ovs.datapath", "%q is not auto, system or netdev", d)
	}
	if c.MTU != 0 && (c.MTU < 1280 || c.MTU > 65535) {
		p.add("mtu", "%d is not 0 (automatic) and not between 1280 and 65535", c.MTU)
	}
	if len(c.Underlay.Interface) > 15 || strings.ContainsAny(c.Underlay.Interface, "/ \t\n") {
		p.add("underlay.interface", "%q is not the name of an interface", c.Underlay.Interface)
	}
	for _, d := range []struct{ field, path string }{
		{"stateDir", c.StateDir}, {"runDir", c.RunDir}, {"bpfDir", c.BPFDir}, {"ovs.runDir", c.OVS.RunDir},
	} {
		if !filepath.IsAbs(d.path) {
			p.add(d.field, "%q is not an absolute path", d.path)
		}
	}
	if c.Resync.Duration < time.Second {
		p.add("resync", "%s is shorter than 1s", c.Resync)
	}
	c.Metrics.validate(&p)
	c.Log.validate(&p)
	return p
}

func (c Controller) validate() []error {
	var p problems
	c.Datastore.validate(&p)
	l := c.LeaderElection
	if l.RetryPeriod.Duration <= 0 || l.RenewDeadline.Duration <= l.RetryPeriod.Duration || l.LeaseDuration.Duration <= l.RenewDeadline.Duration {
		p.add("leaderElection", "want retryPeriod %s < renewDeadline %s < leaseDuration %s", l.RetryPeriod, l.RenewDeadline, l.LeaseDuration)
	}
	if l.LeaseDuration.Duration%time.Second != 0 {
		p.add("leaderElection.leaseDuration", "%s is not in whole seconds", l.LeaseDuration)
	}
	if c.VanishedNodeGrace.Duration <= 0 {
		p.add("vanishedNodeGrace", "%s is not positive", c.VanishedNodeGrace)
	}
	if s := c.DefaultSubnet; s != nil {
		if len(s.CIDRs) == 0 {
			p.add("defaultSubnet.cidrs", "at least one is needed")
		}
		for i, cidr := range s.CIDRs {
			if x, err := netip.ParsePrefix(cidr); err != nil || x != x.Masked() {
				p.add(fmt.Sprintf("defaultSubnet.cidrs[%d]", i), "%q is not a CIDR such as 10.128.0.0/14", cidr)
			}
		}
	}
	c.Metrics.validate(&p)
	c.Log.validate(&p)
	return p
}

func (d Datastore) validate(p *problems) {
	switch {
	case d.Etcd == nil && d.Kubernetes == nil:
		p.add("datastore", "is missing: want kubernetes or etcd (\"kubernetes: {}\" is the cluster of the pod that this runs in)")
	case d.Etcd != nil && d.Kubernetes != nil:
		p.add("datastore", "kubernetes and etcd are given: want one")
	case d.Kubernetes != nil:
		d.Kubernetes.validate(p)
	default:
		d.Etcd.validate(p)
	}
}

func (k *Kubernetes) validate(p *problems) {
	if k.Kubeconfig != "" && !filepath.IsAbs(k.Kubeconfig) {
		p.add("datastore.kubernetes.kubeconfig", "%q is not an absolute path", k.Kubeconfig)
	}
	if k.Context != "" && k.Kubeconfig == "" {
		p.add("datastore.kubernetes.context", "%q is given, but no kubeconfig that has contexts", k.Context)
	}
}

func (e *Etcd) validate(p *problems) {
	if len(e.Endpoints) == 0 {
		p.add("datastore.etcd.endpoints", "at least one is needed, such as https://10.0.0.1:2379")
	}
	for i, endpoint := range e.Endpoints {
		u, err := url.Parse(endpoint)
		if strings.Contains(endpoint, "@") {
			p.add(fmt.Sprintf("datastore.etcd.endpoints[%d]", i), "holds a user name or password, which would get into logs: remove it, clients are known by their certificates")
		} else if err != nil || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "unix" {
			p.add(fmt.Sprintf("datastore.etcd.endpoints[%d]", i), "%q is not a URL with http, https or unix", endpoint)
		}
	}
	if (e.Cert == "") != (e.Key == "") {
		p.add("datastore.etcd", "cert and key go together")
	}
}

func (m Metrics) validate(p *problems) {
	if m.Listen == "" {
		return
	}
	if _, _, err := net.SplitHostPort(m.Listen); err != nil {
		p.add("metrics.listen", "%q is not address:port", m.Listen)
	}
}

func (l Log) validate(p *problems) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		p.add("log.level", "%q is not debug, info, warn or error", l.Level)
	}
	if l.Format != "text" && l.Format != "json" {
		p.add("log.format", "%q is not text or json", l.Format)
	}
}

// Logger returns a logger that writes to w as l says.
func (l Log) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	// Validated already; the zero level is info.
	_ = level.UnmarshalText([]byte(l.Level))
	o := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
