package switchdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb"
)

// ErrForeign says that a bridge or port of the name is there and bears no mark of
// ours: somebody else's, which is left alone.
var ErrForeign = errors.New("it belongs to somebody else")

// ErrUnrealised says that the database holds what was asked for but ovs-vswitchd did
// not take it up.
var ErrUnrealised = errors.New("ovs-vswitchd has not taken it up: is it running?")

// ErrNoBridge says that ovs-vswitchd could not make a bridge, and kept the reason to
// itself: with the datapath type "system", mostly that the kernel has no module
// openvswitch.
var ErrNoBridge = errors.New("ovs-vswitchd did not make the bridge, its log says why")

// ErrRestarted says that the connection to the database broke after the change was
// made and before ovs-vswitchd had taken it up: apply again.
var ErrRestarted = errors.New("the connection to the OVSDB server broke while waiting for ovs-vswitchd")

// Mark is the pair of external_ids that says that a row is ours.
type Mark struct{ Key, Value string }

// Config says which Open vSwitch, and how our rows are marked.
type Config struct {
	// Socket is the path of the database's unix socket.
	Socket string
	Mark   Mark
	// Probe is how long ovsdb-server may say nothing, see ovsdb.Config.
	Probe  time.Duration
	Logger *slog.Logger
}

// Bridge is a bridge with its ports. Its local port, of the same name, is implied.
type Bridge struct {
	Name string
	// DatapathType is "system" or "netdev".
	DatapathType string
	// FailMode is "secure" (no flow, no traffic) or "standalone".
	FailMode string
	// Protocols are the versions of OpenFlow that it speaks, "OpenFlow15".
	Protocols []string
	// OtherConfig and ExternalIDs are the columns of that name; the mark is added.
	OtherConfig, ExternalIDs map[string]string
	// MTU of the local port, 0 leaves it.
	MTU   uint16
	Ports []Port
}

// Port is a port with one interface of the same name.
type Port struct {
	Name string
	// Type is "" for a link of the host, "internal", "vxlan", "geneve", "patch", ….
	Type string
	// Options of the interface, for tunnels and patch ports.
	Options map[string]string
	// ExternalIDs of port and interface; the mark is added.
	ExternalIDs map[string]string
	// OFPort is the number to ask for, 0 leaves the choice to the switch.
	OFPort uint16
	// MTU to ask for, 0 leaves it.
	MTU uint16
}

// maxOFPort is the largest number that may be asked for (ovs-vswitchd.conf.db(5)).
const maxOFPort = 65279

// Options of one Apply.
type Options struct {
	// AddOnly adds what is missing, and neither changes nor removes what exists.
	AddOnly bool
}

// Report says what an Apply did.
type Report struct {
	// Changes that were made, in order, for people.
	Changes []string
	// Ports are the OpenFlow numbers of the ports that exist, local ones too.
	Ports map[string]uint32
	// Failed bridges and ports, sorted.
	Failed []Failure
}

// Failure is what is wrong with a bridge (Port is empty) or a port; a bridge's local
// port bears its name.
type Failure struct {
	Bridge, Port string
	Err          error
}

// Error implements error.
func (f Failure) Error() string {
	if f.Port == "" {
		return fmt.Sprintf("bridge %s: %v", f.Bridge, f.Err)
	}
	return fmt.Sprintf("port %s of bridge %s: %v", f.Port, f.Bridge, f.Err)
}

// Unwrap implements the contract of errors.Is and errors.As.
func (f Failure) Unwrap() error { return f.Err }

const (
	tableRoot      = "Open_vSwitch"
	tableBridge    = "Bridge"
	tablePort      = "Port"
	tableInterface = "Interface"
)

// watched are the columns that decide what there is to do, and what became of it.
// Statistics change all the time and are read when asked for.
func watched() map[string][]string {
	return map[string][]string{
		tableRoot:   {"bridges", "cur_cfg", "datapath_types", "iface_types", "next_cfg", "other_config", "ovs_version"},
		tableBridge: {"controller", "datapath_type", "external_ids", "fail_mode", "name", "other_config", "ports", "protocols"},
		tablePort:   {"external_ids", "interfaces", "name"},
		tableInterface: {
			"error", "external_ids", "mtu_request", "name", "ofport", "ofport_request", "options", "type",
		},
	}
}

func needed() map[string][]string {
	return map[string][]string{tableInterface: {"admin_state", "link_state", "mtu", "statistics"}}
}

// DB is the database of one Open vSwitch. It is safe for use by several goroutines;
// Run must be running for anything to happen.
type DB struct {
	client *ovsdb.Client
	mark   Mark
}

// New makes a DB. It does nothing until Run.
func New(c Config) *DB {
	return &DB{mark: c.Mark, client: ovsdb.New(ovsdb.Config{
		Socket: c.Socket, Database: tableRoot, Watch: watched(), Need: needed(), Probe: c.Probe, Logger: c.Logger,
	})}
}

// Run keeps the connection until ctx ends.
func (d *DB) Run(ctx context.Context) error { return d.client.Run(ctx) }

// Changed returns a channel that is closed at the next change of the database's
// watched part or of the connection.
func (d *DB) Changed() <-chan struct{} {
	_, changed := d.client.Snapshot()
	return changed
}

// Status is what is known of the Open vSwitch.
type Status struct {
	// Connected says that the database is there; Err says why it is not.
	Connected bool
	Err       error
	// Schema and Version of Open vSwitch; Version is empty until ovs-vswitchd ran.
	Schema, Version string
	// DatapathTypes and InterfaceTypes are what ovs-vswitchd was built with.
	DatapathTypes, InterfaceTypes []string
	// Behind says that ovs-vswitchd has not taken up what the database holds.
	Behind bool
}

// Status returns what is known now.
func (d *DB) Status() Status {
	s, _ := d.client.Snapshot()
	status := Status{Connected: s.Synced, Err: s.Err, Schema: s.Version}
	_, root := rootOf(s)
	status.Version = root["ovs_version"].Atom().Text()
	status.DatapathTypes, status.InterfaceTypes = texts(root["datapath_types"]), texts(root["iface_types"])
	status.Behind = integer(root["cur_cfg"]) < integer(root["next_cfg"])
	return status
}

func texts(v ovsdb.Value) []string {
	var all []string
	for _, k := range v.Keys {
		all = append(all, k.Text())
	}
	return all
}

func integer(v ovsdb.Value) int64 { return v.Atom().Int() }

// rootOf returns the only row of the root table, nil if there is none yet.
func rootOf(s *ovsdb.Snapshot) (ovsdb.UUID, ovsdb.Row) {
	for u, row := range s.Rows(tableRoot) {
		return u, row
	}
	return "", nil
}

// Audit says, for people, what Apply would change, and what it would refuse.
func (d *DB) Audit(ctx context.Context, desired []Bridge) ([]string, []Failure, error) {
	s, err := d.client.Await(ctx, synced)
	if err != nil {
		return nil, nil, err
	}
	p := planFor(s, d.mark, desired, Options{})
	return p.changes, p.failed, nil
}

func synced(*ovsdb.Snapshot) bool { return true }

// attempts bounds how often Apply looks again when somebody else changed the database
// between its look and its transaction.
const attempts = 5

// Apply makes our bridges and ports those that are desired, and waits until
// ovs-vswitchd has taken them up or ctx ends. What is wrong with single bridges and
// ports is in the Report, which is valid even with an error.
func (d *DB) Apply(ctx context.Context, desired []Bridge, o Options) (Report, error) {
	s, err := d.Submit(ctx, desired, o)
	if err != nil {
		return s.Report, err
	}
	return s.Wait(ctx)
}

// Submission is what the database holds now and ovs-vswitchd may not have taken up yet.
type Submission struct {
	// Report lacks the numbers, and the failures that ovs-vswitchd will see.
	Report Report
	// Added are the ports that were added, sorted; Otherwise says that more was changed.
	Added     []string
	Otherwise bool

	db         *DB
	connection uint64
	target     int64
	accepted   []Bridge
}

// Submit makes our bridges and ports in the database those that are desired.
func (d *DB) Submit(ctx context.Context, desired []Bridge, o Options) (Submission, error) {
	out := Submission{db: d}
	for try := 1; ; try++ {
		s, err := d.client.Await(ctx, synced)
		if err != nil {
			return out, err
		}
		p := planFor(s, d.mark, desired, o)
		_, root := rootOf(s)
		out.target = integer(root["next_cfg"])
		if len(p.ops) > 0 {
			results, err := d.client.Transact(ctx, p.ops...)
			if raced(err) && try < attempts {
				continue
			}
			if err != nil {
				out.Report.Failed = p.failed
				return out, p.explain(err)
			}
			if out.target, err = realisedAt(results); err != nil {
				return out, err
			}
		}
		out.Report.Changes, out.Report.Failed = p.changes, p.failed
		out.Added, out.Otherwise = slices.Sorted(slices.Values(p.added)), len(p.added) != len(p.changes)
		out.connection, out.accepted = s.Connection, p.accepted
		return out, nil
	}
}

// Wait waits until ovs-vswitchd has taken up what was submitted, or ctx ends.
func (s Submission) Wait(ctx context.Context) (Report, error) {
	report := s.Report
	report.Failed = slices.Clone(report.Failed)
	err := s.db.realise(ctx, s.connection, s.target, s.accepted, &report)
	return report, err
}

// Numbered are the OpenFlow numbers of an interface.
type Numbered struct {
	// OFPort is what it has, 0 if it has none; Request what it asks for, 0 for any.
	OFPort, Request uint32
}

// Numbers are those of all interfaces, whosever they are.
func (d *DB) Numbers(ctx context.Context) (map[string]Numbered, error) {
	s, err := d.client.Await(ctx, synced)
	if err != nil {
		return nil, err
	}
	out := map[string]Numbered{}
	for name, row := range interfaces(s) {
		n := Numbered{Request: uint32(max(0, integer(row["ofport_request"])))}
		if number, err := outcome(row); err == nil {
			n.OFPort = number
		}
		out[name] = n
	}
	return out, nil
}

// raced reports whether a transaction failed because the database was no longer as it
// was looked at.
func raced(err error) bool {
	return ovsdb.Refused(err, ovsdb.TimedOut) || ovsdb.Refused(err, ovsdb.ConstraintViolation) || ovsdb.Refused(err, ovsdb.ReferentialIntegrity)
}

// realisedAt reads the configuration's number from the results of a plan, whose last
// operation selects it.
func realisedAt(results []ovsdb.Result) (int64, error) {
	last := results[len(results)-1]
	if len(last.Rows) != 1 {
		return 0, fmt.Errorf("read next_cfg back: %d rows", len(last.Rows))
	}
	return integer(last.Rows[0]["next_cfg"]), nil
}

// realise waits until ovs-vswitchd has taken up the configuration of the number and
// adds to the report what became of each port.
func (d *DB) realise(ctx context.Context, connection uint64, target int64, bridges []Bridge, report *Report) error {
	s, err := d.client.Await(ctx, func(s *ovsdb.Snapshot) bool {
		_, root := rootOf(s)
		return s.Connection != connection || integer(root["cur_cfg"]) >= target
	})
	var late error
	switch {
	case err != nil && ctx.Err() != nil:
		late = fmt.Errorf("%w: %w", ErrUnrealised, ctx.Err())
		s, _ = d.client.Snapshot()
	case err != nil:
		return err
	case s.Connection != connection:
		return ErrRestarted
	}
	report.Ports = map[string]uint32{}
	refused := map[Failure]bool{}
	for _, f := range report.Failed {
		refused[Failure{Bridge: f.Bridge, Port: f.Port}] = true
	}
	byName := interfaces(s)
	for _, b := range bridges {
		report.add(b, byName, refused, late == nil)
	}
	slices.SortStableFunc(report.Failed, compareFailures)
	return late
}

// add adds to the report what became of a bridge and its ports.
func (r *Report) add(b Bridge, byName map[string]ovsdb.Row, refused map[Failure]bool, realised bool) {
	if local := byName[b.Name]; realised && local != nil && len(local["ofport"].Keys) == 0 && local["error"].Atom().Text() == "" {
		r.Failed = append(r.Failed, Failure{b.Name, "", fmt.Errorf("of datapath type %q: %w", b.DatapathType, ErrNoBridge)})
		return
	}
	for _, name := range append([]string{b.Name}, names(b.Ports)...) {
		if refused[Failure{Bridge: b.Name, Port: name}] {
			continue
		}
		number, err := outcome(byName[name])
		if err != nil && !realised {
			err = ErrUnrealised
		}
		if err != nil {
			r.Failed = append(r.Failed, Failure{b.Name, name, err})
		} else {
			r.Ports[name] = number
		}
	}
}

func names(ports []Port) []string {
	all := make([]string, len(ports))
	for i, p := range ports {
		all[i] = p.Name
	}
	return all
}

func interfaces(s *ovsdb.Snapshot) map[string]ovsdb.Row {
	byName := make(map[string]ovsdb.Row, len(s.Rows(tableInterface)))
	for _, row := range s.Rows(tableInterface) {
		byName[row["name"].Atom().Text()] = row
	}
	return byName
}

// outcome is what ovs-vswitchd made of an interface.
func outcome(row ovsdb.Row) (uint32, error) {
	if row == nil {
		return 0, errors.New("it vanished from the database meanwhile")
	}
	if e := row["error"].Atom().Text(); e != "" {
		return 0, errors.New(e)
	}
	number := integer(row["ofport"])
	if number <= 0 {
		return 0, ErrUnrealised
	}
	return uint32(number), nil
}
