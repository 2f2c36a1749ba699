package openflowconn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/fairlead-sdn/fairlead/internal/openflow"
)

// Flow monitors (OpenFlow 1.5.1, 7.3.5.18).
const (
	multipartFlowMonitor = 16

	monitorAdd     = 1 << 1 // flags
	monitorRemoved = 1 << 2
	monitorModify  = 1 << 3

	updateAdded    = 1 // events
	updateRemoved  = 2
	updateModified = 3

	multipartHeader = 16
	updateFull      = 24 // an update's part before its match
	portAny         = 0xffffffff
)

// appendWatchRequest appends the request to tell of every change of a flow that
// another connection makes. What this connection does is abbreviated: it bears the
// event 4 and the xid only.
func appendWatchRequest(b []byte, xid uint32) []byte {
	const length = multipartHeader + 16 + 8
	be := binary.BigEndian
	b = append(b, openflow.Version, openflow.TypeMultipartRequest)
	b = be.AppendUint16(b, length)
	b = be.AppendUint32(b, xid)
	b = be.AppendUint16(b, multipartFlowMonitor)
	b = append(b, 0, 0, 0, 0, 0, 0) // flags, padding
	b = be.AppendUint32(b, xid)     // the monitor's number
	b = be.AppendUint32(b, portAny)
	b = be.AppendUint32(b, portAny) // any group
	b = be.AppendUint16(b, monitorAdd|monitorRemoved|monitorModify)
	b = append(b, openflow.TableAll, 0)      // command: add
	return append(b, 0, 1, 0, 4, 0, 0, 0, 0) // the empty match
}

// isFlowUpdate reports whether a message is one that a flow monitor sends.
func isFlowUpdate(frame []byte) bool {
	return len(frame) >= multipartHeader && frame[0] == openflow.Version && frame[1] == openflow.TypeMultipartReply &&
		binary.BigEndian.Uint16(frame[8:]) == multipartFlowMonitor
}

// flowUpdate counts the changes in a message of a flow monitor.
func (s *session) flowUpdate(frame []byte) error {
	touched, foreign, err := countTouched(frame[multipartHeader:], s.conn.config.Owned)
	if err != nil {
		return err
	}
	if touched+foreign > 0 {
		s.state.Touched += touched
		s.state.Foreign += foreign
		s.conn.publish(s.state)
	}
	return nil
}

// countTouched counts the changes of flows of ours, and of others.
func countTouched(b []byte, owned Owned) (touched, foreign uint64, err error) {
	for len(b) > 0 {
		if len(b) < 4 {
			return 0, 0, fmt.Errorf("read what a flow monitor says: %d bytes are left", len(b))
		}
		length, event := int(binary.BigEndian.Uint16(b)), binary.BigEndian.Uint16(b[2:])
		if length < 4 || length > len(b) {
			return 0, 0, fmt.Errorf("read what a flow monitor says: an update of %d bytes, %d are left", length, len(b))
		}
		full := event == updateAdded || event == updateRemoved || event == updateModified
		if full && length < updateFull {
			return 0, 0, fmt.Errorf("read what a flow monitor says: a flow of %d bytes", length)
		}
		switch {
		case !full:
		case owned.flow(binary.BigEndian.Uint64(b[16:])):
			touched++
		default:
			foreign++
		}
		b = b[length:]
	}
	return touched, foreign, nil
}

// ErrOtherNumber says that a port has another number than was asked for.
var ErrOtherNumber = errors.New("the switch gave a port another number")

// Messages by which a connection says what it wants to be told (OpenFlow 1.5.1, 7.3.2 and 7.3.10).
const (
	typeSetConfig = 9
	typeSetAsync  = 28

	asyncPacketIn    = 1 // properties of a connection that is not a slave
	asyncPortStatus  = 3
	asyncFlowRemoved = 5
)

// appendPortsRequest appends what makes the switch tell which ports it adds and deletes.
// Open vSwitch tells a connection to a management socket nothing until it has asked for
// some bytes of packets; packets it is not to send all the same.
func appendPortsRequest(b []byte, xid uint32) []byte {
	be := binary.BigEndian
	b = append(b, openflow.Version, typeSetConfig, 0, 12)
	b = be.AppendUint32(b, xid)
	b = append(b, 0, 0, 0, 64) // flags, bytes of a packet
	b = append(b, openflow.Version, typeSetAsync, 0, 32)
	b = be.AppendUint32(b, xid)
	for _, p := range []struct {
		property uint16
		reasons  uint32
	}{{asyncPacketIn, 0}, {asyncPortStatus, 1<<openflow.PortAdded | 1<<openflow.PortDeleted}, {asyncFlowRemoved, 0}} {
		b = be.AppendUint16(b, p.property)
		b = be.AppendUint16(b, 8)
		b = be.AppendUint32(b, p.reasons)
	}
	return b
}

// announce notes a port that the switch has added or deleted.
func (c *Conn) announce(s openflow.PortStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s.Change {
	case openflow.PortAdded:
		if c.ports == nil {
			c.ports = map[string]openflow.Port{}
		}
		c.ports[s.Port.Name] = s.Port.Port
	case openflow.PortDeleted:
		delete(c.ports, s.Port.Name)
	}
	close(c.portsChanged)
	c.portsChanged = make(chan struct{})
}

// AwaitPorts waits until the switch has said, on this connection, that it has added ports of
// these names and numbers; one with another number is ErrOtherNumber. It says so while it
// takes up a change of its database: what is sent at once is done before the change is
// said to be taken up. A switch that does not tell of ports is waited for until ctx ends.
func (c *Conn) AwaitPorts(ctx context.Context, want map[string]openflow.Port) error {
	for {
		c.mu.Lock()
		missing, changed := false, c.portsChanged
		var err error
		for name, number := range want {
			switch got, there := c.ports[name]; {
			case !there:
				missing = true
			case got != number:
				err = fmt.Errorf("%w: %s asked for %d and has %d", ErrOtherNumber, name, number, got)
			}
		}
		c.mu.Unlock()
		if err != nil || !missing {
			return err
		}
		select {
		case <-changed:
		case <-c.ended:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("wait for ports of the bridge: %w", ctx.Err())
		}
	}
}
