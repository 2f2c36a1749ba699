package ovsplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/switchdb"
	"github.com/fairlead-sdn/fairlead/internal/apply/rtnl"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// Options of Open.
type Options struct {
	// NS is the node's network namespace, in which ovs-vswitchd runs too. The caller
	// keeps it open until after Close.
	NS *netns.NS
	// RunDir is the directory of Open vSwitch's sockets and pid files,
	// /var/run/openvswitch.
	RunDir string
	// Datapath is "system" or "netdev"; "auto" chooses: system if the kernel has the module.
	Datapath string
	// SavedSysctls is the file that remembers the node's sysctls as they were, in a
	// directory that a reboot empties. Empty: Uninstall does not restore them.
	SavedSysctls string
	// PlainTable makes the nftables table without an owner, as on kernels before 6.9.
	PlainTable bool
	// Patience is how long an Apply waits for Open vSwitch. Default 2 s.
	Patience time.Duration
	// Now is the clock; nil is the machine's.
	Now func() time.Time
	Log *slog.Logger
}

// defaultPatience is longer than Open vSwitch takes to realise hundreds of ports.
const defaultPatience = 2 * time.Second

// Plane is an apply.Plane. Its methods may be called from several goroutines; applies
// follow one another.
type Plane struct {
	ns     *netns.NS
	host   *host
	links  *rtnl.Driver
	filter linuxplane.Filter
	// hostFlows are those that the host's own stack knows.
	hostFlows *conntrack.Table
	db        *switchdb.DB
	conn      *openflowconn.Conn
	// underlay is the bridge around the NIC.
	underlay *openflowconn.Conn
	control  openflowconn.Control
	datapath datapath
	patience time.Duration
	now      func() time.Time
	log      *slog.Logger

	// alive ends with stop, and with it what runs.
	alive   context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	// seen is the connection to the bridge that an Apply has read the flows of.
	seen atomic.Uint64
	// applied wakes Watch: what is desired, or known of the switch, is new.
	applied chan struct{}

	mu     sync.Mutex
	closed bool
	flows  flowState
	tracks tracks
	tunnel tunnelRoutes
	// strangers and underlayStrangers are the foreign flows in our bridges.
	strangers, underlayStrangers strangers
	// underlaid is the State of underlay in which its flow was seen to, whatever others did
	// to theirs.
	underlaid openflowconn.State
	// plain are the ports whose offloads we have turned off, and the index of the node's
	// end then.
	plain map[string]int
	// asked are the numbers that ports of pods ask for, 0 for any; nextNumber is where to look for
	// one more.
	asked      map[string]uint16
	nextNumber uint32
	// bridges are those of the last Apply; nil before.
	bridges []switchdb.Bridge
	last    *intent.Node
}

var _ apply.Plane = (*Plane)(nil)

// ErrClosed is the error of a Plane after Close.
var ErrClosed = errors.New("the ovs plane is closed")

// Open connects to the kernel, and begins to connect to Open vSwitch, which may be away. It
// claims the nftables table; traffic is not touched before the first Apply.
func Open(ctx context.Context, o Options) (*Plane, error) {
	p, err := open(ctx, o)
	if err == nil {
		p.followBridges()
	}
	return p, err
}

// open is Open without the bridges.
func open(ctx context.Context, o Options) (_ *Plane, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	p := &Plane{
		ns: o.NS, control: openflowconn.Control{Run: o.RunDir}, patience: cmp.Or(o.Patience, defaultPatience), now: o.Now, log: o.Log,
		applied: make(chan struct{}, 1), plain: map[string]int{},
	}
	var opened []func() error
	defer func() {
		if err == nil {
			return
		}
		err = fmt.Errorf("open the ovs plane: %w", err)
		for _, closer := range slices.Backward(opened) {
			err = errors.Join(err, closer())
		}
	}()
	if p.host, err = openHost(o.NS); err != nil {
		return nil, err
	}
	opened = append(opened, p.host.close)
	if p.hostFlows, err = conntrack.Open(o.NS); err != nil {
		return nil, err
	}
	opened = append(opened, p.hostFlows.Close)
	p.datapath = p.host.chooseDatapath(o.Datapath)
	driver, err := nft.Open(ctx, nft.Config{
		Table: claims.NFTTable, NetNS: fmt.Sprintf("/proc/self/fd/%d", o.NS.FD()), Plain: o.PlainTable, Logger: o.Log,
	})
	if err != nil {
		return nil, err
	}
	opened = append(opened, driver.Close)
	if p.filter, err = linuxplane.NewFilter(ctx, driver); err != nil {
		return nil, err
	}
	if p.links, err = rtnl.Open(rtnl.Config{NS: o.NS, SavedSysctls: o.SavedSysctls, Log: o.Log}); err != nil {
		return nil, err
	}
	p.connect(o)
	return p, nil
}

// connect prepares the connections to Open vSwitch, and keeps that to the database.
func (p *Plane) connect(o Options) {
	p.db = switchdb.New(switchdb.Config{
		Socket: o.RunDir + "/db.sock", Mark: switchdb.Mark{Key: claims.OVSIDKey, Value: claims.OVSIDValue}, Logger: o.Log,
	})
	bridge := openflowconn.Config{
		Socket: o.RunDir + "/" + claims.OVSBridge + ".mgmt",
		Owned: openflowconn.Owned{
			Cookie: claims.OVSCookie, Mask: claims.OVSCookieMask,
			Groups: openflowconn.Range{First: claims.OVSGroupFirst, Last: claims.OVSGroupLast},
			Meters: openflowconn.Range{First: claims.OVSMeterFirst, Last: claims.OVSMeterLast},
		},
		MaxBackoff: 200 * time.Millisecond, Logger: o.Log,
	}
	p.conn = openflowconn.New(bridge)
	// Not every intent has this bridge: that it is not there is no news.
	bridge.Socket, bridge.Logger = o.RunDir+"/"+claims.OVSUnderlayBridge+".mgmt", nil
	p.underlay = openflowconn.New(bridge)
	ctx, stop := context.WithCancel(context.Background())
	p.alive, p.stop = ctx, stop
	// It ends with ctx, without an error.
	p.running.Go(func() { _ = p.db.Run(ctx) })
}

// followBridges keeps the connections to our bridges.
func (p *Plane) followBridges() {
	p.running.Go(func() { _ = p.conn.Run(p.alive) })
	if p.datapath.kind == ovs.Netdev {
		p.running.Go(func() { _ = p.underlay.Run(p.alive) })
	}
}

// Close implements apply.Plane.
func (p *Plane) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.stop()
	p.running.Wait()
	return errors.Join(p.links.Close(), p.filter.Close(), p.hostFlows.Close(), p.host.close())
}

// Uninstall removes everything that is ours from the node: our bridges with their flows,
// links and with them the pods' network, routes, the table, and sets sysctls back. No Plane
// may be open.
func Uninstall(ctx context.Context, o Options) error {
	p, err := open(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(p.uninstall(ctx), p.Close())
}

func (p *Plane) uninstall(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	_, err := p.db.Apply(waiting, nil, switchdb.Options{})
	if err != nil {
		err = fmt.Errorf("remove our bridges from Open vSwitch: %w", err)
	}
	p.tunnel.forget(waiting, p.control)
	return errors.Join(err, p.links.Uninstall(ctx), p.filter.Delete(ctx))
}

// CheckPort compares one attachment with the kernel and with the bridge, for CNI CHECK.
func (p *Plane) CheckPort(ctx context.Context, port intent.Port, mtu int) ([]apply.Difference, error) {
	out, err := p.links.CheckLinks(ctx, port, mtu)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	numbers, err := p.numbers(ctx)
	if err != nil {
		return out, fmt.Errorf("check %s: %w", port.Ref(), err)
	}
	number, there := numbers[port.HostInterface]
	if !there {
		return append(out, apply.Difference{Subsystem: "ovs", Object: "port " + port.HostInterface, Problem: "missing"}), nil
	}
	classified, err := p.conn.Flows(ctx, of.FlowFilter{
		Table: ovs.TableClassify, Cookie: claims.OVSCookie, CookieMask: claims.OVSCookieMask, Match: of.NewMatch(of.Eq(of.InPort, uint64(number))),
	})
	if err != nil {
		return out, fmt.Errorf("check %s: %w", port.Ref(), err)
	}
	if len(classified) == 0 {
		out = append(out, apply.Difference{Subsystem: "ovs", Object: "flows of port " + port.HostInterface, Problem: "missing"})
	}
	return out, nil
}

// numbers are those that the switch says its ports have.
func (p *Plane) numbers(ctx context.Context) (ovs.Numbers, error) {
	if _, err := p.conn.Await(ctx); err != nil {
		return nil, err
	}
	ports, err := p.conn.Ports(ctx)
	if err != nil {
		return nil, err
	}
	numbers := ovs.Numbers{}
	for _, port := range ports {
		numbers[port.Name] = port.Port
	}
	return numbers, nil
}
