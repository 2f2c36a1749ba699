package openflowconn

import (
	"encoding/binary"
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
