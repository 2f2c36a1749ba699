package sim

import (
	"fmt"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// Switch walks packets through a pipeline and keeps their connections. It is not safe
// for concurrent use. The fields may be exchanged between two packets.
type Switch struct {
	Pipeline  *Pipeline
	Conntrack Conntrack
	// Choose gives the index of the bucket that a select group takes for a packet, out of
	// the candidates, which have a weight; nil takes one by a hash of packet and weights.
	// A switch hashes differently: see Alternatives.
	Choose func(g of.Group, candidates []int, p Packet) int
	// Trace fills in Result.Trace, and TableName names the tables there; nil is no
	// names.
	Trace     bool
	TableName func(uint8) string
}

// Output is a packet that leaves the switch.
type Output struct {
	// Port is never PortInPort, but the number of that port. PortController is a packet
	// for the controller, PortLocal one for the bridge's own interface.
	Port of.Port
	// Packet as it leaves. Its tunnel fields are those that a tunnel port would use.
	Packet Packet
}

// TunnelKey is the key (VNI) that a tunnel port with key=flow puts on the wire.
func (o Output) TunnelKey() uint64 { return o.Packet.num(of.TunID) }

// Result is what became of a packet.
type Result struct {
	// Outputs in the order in which they leave; none is a drop.
	Outputs []Output
	// Why it was dropped, in a few words: the comment of the flow that dropped it, or what
	// happened last, if there is none.
	Why   string
	Trace Trace
}

// Dropped reports whether nothing left the switch.
func (r Result) Dropped() bool { return len(r.Outputs) == 0 }

// Limits of a switch: MAX_DEPTH and MAX_RESUBMITS of ofproto-dpif-xlate.c and
// MAX_RECIRC_DEPTH of odp-execute; and, of this simulator, of all recirculations
// together.
const (
	maxDepth         = 64
	maxResubmits     = maxDepth * maxDepth
	maxRecirculation = 6
	maxSteps         = 4 * maxResubmits
	maxOutputs       = 4096
)

// Receive walks a packet in from its InPort, at table 0. An error says what of the
// pipeline is not simulated, or where a switch would give up.
func (s *Switch) Receive(p Packet) (Result, error) {
	result := &Result{}
	if s.Pipeline == nil {
		return Result{}, fmt.Errorf("walk %s: there is no pipeline", p)
	}
	w := &walk{sw: s, p: p, run: &run{result: result}}
	if err := w.enter(visit{}); err != nil {
		return Result{}, fmt.Errorf("walk %s: %w", p, err)
	}
	if !result.Dropped() {
		result.Why = ""
	}
	return *result, nil
}

// maxAlternatives bounds Alternatives.
const maxAlternatives = 256

// Alternatives walks a packet in by every choice of buckets that select groups leave.
// Connections stay as they were.
func (s *Switch) Alternatives(p Packet) ([]Result, error) {
	var all []Result
	var path, width []int // The choices of this walk, and of how many they are.
	for {
		at := 0
		trial := *s
		trial.Conntrack = s.Conntrack.Clone()
		trial.Choose = func(_ of.Group, candidates []int, _ Packet) int {
			if at == len(path) {
				path, width = append(path, 0), append(width, len(candidates))
			}
			at++
			return candidates[min(path[at-1], len(candidates)-1)]
		}
		r, err := trial.Receive(p)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
		if len(all) > maxAlternatives {
			return nil, fmt.Errorf("walk %s: groups leave more than %d ways", p, maxAlternatives)
		}
		path, width = path[:at], width[:at]
		for len(path) > 0 && path[len(path)-1]+1 >= width[len(path)-1] {
			path, width = path[:len(path)-1], width[:len(path)-1]
		}
		if len(path) == 0 {
			return all, nil
		}
		path[len(path)-1]++
	}
}
