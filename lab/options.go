package lab

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/lab/topology"
)

// The values that the lab shares with its parts.
type (
	// Options of Up; the zero value of a field means its default.
	Options = spec.Options
	// Step is a step of Up.
	Step = spec.Step
	// Status is how a lab is.
	Status = spec.Status
	// Fault is something to do to a lab.
	Fault = spec.Fault
	// FaultInfo describes a kind of fault.
	FaultInfo = spec.FaultInfo
)

// DefaultRoot is the directory that labs live in.
const DefaultRoot = spec.DefaultRoot

// DefaultName is the name of a lab that is given none.
const DefaultName = "default"

// ErrPreflight is what makes a lab impossible here: not root, a kernel feature or a
// program missing, an option that makes no sense. Nothing was changed.
var ErrPreflight = errors.New("cannot start a lab")

// Limits of Options.
const (
	minMTU = 1280 // IPv6 needs it, RFC 8200 section 5
	maxMTU = 65535
	// A unix socket's path has 107 bytes: that of a node's agent is the longest.
	maxSocketPath = 107
)

var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// withDefaults fills in what was left out.
func withDefaults(o Options) (Options, error) {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set(&o.Name, DefaultName)
	set(&o.Root, DefaultRoot)
	set(&o.Plane, "linux")
	set(&o.Encapsulation, "VXLAN")
	set(&o.LogLevel, "info")
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.Segments == 0 {
		o.Segments = 1
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Wait == 0 {
		o.Wait = time.Minute
	}
	if len(o.Subnets) == 0 {
		o.Subnets = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}
	}
	if len(o.Underlay) == 0 {
		o.Underlay = topology.DefaultUnderlay()
	}
	self, err := os.Executable()
	if err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	beside := filepath.Dir(self)
	set(&o.Agent, filepath.Join(beside, "fairlead-agent"))
	set(&o.Controller, filepath.Join(beside, "fairlead-controller"))
	set(&o.CNI, filepath.Join(beside, "fairlead-cni"))
	for _, path := range append([]*string{&o.Root, &o.Agent, &o.Controller, &o.CNI}, optional(&o.Etcd, &o.Conflist)...) {
		if *path, err = filepath.Abs(*path); err != nil {
			return o, err
		}
	}
	return o, nil
}

// optional are the paths that were given.
func optional(paths ...*string) []*string {
	return slices.DeleteFunc(paths, func(p *string) bool { return *p == "" })
}

// validate says what is wrong with options that are complete.
func validate(o Options) error {
	if !nameForm.MatchString(o.Name) {
		return fmt.Errorf("lab name %q: want 1 to 32 lower case letters, digits and dashes, such as %q", o.Name, DefaultName)
	}
	plan, err := o.Plan()
	if err != nil {
		return err
	}
	last := plan.Nodes[len(plan.Nodes)-1].Name
	if longest := filepath.Join(o.Root, o.Name, spec.DirNodes, last, "run/fairlead/admin.sock"); len(longest) > maxSocketPath {
		return fmt.Errorf("the path %s is too long for a unix socket: choose a shorter lab name or root directory", longest)
	}
	if o.MTU < minMTU || o.MTU > maxMTU {
		return fmt.Errorf("MTU %d: want %d to %d, usually 1500 or 9000", o.MTU, minMTU, maxMTU)
	}
	for _, plane := range o.Planes() {
		if plane != "linux" && plane != "ovs" {
			return fmt.Errorf("plane %q: want linux, ovs, or a list such as ovs,linux, which the nodes take in turns", plane)
		}
	}
	if !slices.Contains([]string{"VXLAN", "None", "CrossSubnet"}, o.Encapsulation) {
		return fmt.Errorf("encapsulation %q: want VXLAN, CrossSubnet or None", o.Encapsulation)
	}
	if o.Wait < 0 {
		return fmt.Errorf("wait %s: want a positive duration", o.Wait)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return fmt.Errorf("log level %q: want debug, info, warn or error", o.LogLevel)
	}
	if err := validateUnderlay(o.Underlay); err != nil {
		return err
	}
	return validateSubnets(o)
}
