package machine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/offload"
	"github.com/fairlead-sdn/fairlead/lab/ovshost"
	"github.com/fairlead-sdn/fairlead/lab/process"
)

// OVSRunDir is where the node's Open vSwitch has its sockets.
const OVSRunDir = "/run/openvswitch"

// openvswitch is the node's own Open vSwitch: a service of the node, not of the agent. Its
// database survives a reboot.
type openvswitch struct {
	host             ovshost.Host
	database, daemon *process.Daemon
}

func newOpenvswitch(table *process.Table, changed func()) (*openvswitch, error) {
	o := &openvswitch{host: ovshost.Host{Run: OVSRunDir, Data: filepath.Join(HomeDir, "ovs")}}
	if err := o.host.Prepare(); err != nil {
		return nil, err
	}
	server, err := o.host.DatabaseServer()
	if err != nil {
		return nil, err
	}
	vswitch, err := o.host.Switch()
	if err != nil {
		return nil, err
	}
	o.database = process.NewDaemon(table, server, filepath.Join(HomeDir, DirLog, "ovsdb-server.log"), changed)
	o.daemon = process.NewDaemon(table, vswitch, filepath.Join(HomeDir, DirLog, "ovs-vswitchd.log"), changed)
	return o, nil
}

// start starts both; the switch waits for the database by itself.
func (o *openvswitch) start() error {
	return errors.Join(o.database.Start(nil), o.daemon.Start(nil))
}

func (o *openvswitch) act(action SwitchAction) error {
	switch action {
	case KillSwitch:
		return o.daemon.Signal(unix.SIGKILL)
	case StartSwitch:
		return o.daemon.Start(nil)
	case RestartSwitch:
		return errors.Join(o.daemon.Signal(unix.SIGKILL), o.daemon.Start(nil))
	case FreezeSwitch:
		return o.daemon.Signal(unix.SIGSTOP)
	case ContinueSwitch:
		return o.daemon.Signal(unix.SIGCONT)
	case KillDatabase:
		return o.database.Signal(unix.SIGKILL)
	case StartDatabase:
		return o.database.Start(nil)
	case RestartDatabase:
		return errors.Join(o.database.Signal(unix.SIGKILL), o.database.Start(nil))
	case WipeDatabase:
		return errors.Join(o.database.Signal(unix.SIGKILL), o.host.Wipe(), o.database.Start(nil))
	}
	return fmt.Errorf("unknown action %q on Open vSwitch", action)
}

// actOnSwitch does something to the node's Open vSwitch.
func (n *Node) actOnSwitch(_ context.Context, r SwitchRequest) (struct{}, error) {
	if n.ovs == nil {
		return struct{}{}, errors.New("it has no Open vSwitch: its plane is another")
	}
	return struct{}{}, n.ovs.act(r.Action)
}

// status adds how Open vSwitch is to a state.
func (o *openvswitch) status(s *State) {
	database, daemon := o.database.Status(), o.daemon.Status()
	s.Database, s.Switch = &database, &daemon
}

// finishFrames makes the NIC put finished frames on the wire.
func finishFrames(c Config) error {
	if !c.FinishFrames {
		return nil
	}
	_, err := offload.FinishFrames(c.Interface.Name)
	return err
}
