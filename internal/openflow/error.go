package openflow

import "fmt"

// errorExperimenter is the type of errors that are extensions.
const errorExperimenter = 0xffff

// Error is a switch's refusal. Its header bears the xid of the message that was
// refused.
type Error struct {
	Type, Code uint16
	// Experimenter is whose extension the error is, 0 for those of OpenFlow; then
	// Code is the extension's type of error.
	Experimenter uint32
	// Failed is the message that was refused, or its first bytes (at least 64 of
	// them). In a bundle it is the message that added it (TypeBundleAdd) or what
	// that held. For a refused hello it is a text.
	Failed []byte
}

func (r *reader) errorMessage() Body {
	e := Error{Type: r.u16(), Code: r.u16()}
	if e.Type == errorExperimenter {
		e.Experimenter = r.u32()
	}
	e.Failed = r.rest()
	return e
}

// Name is the error's name as ovs-ofctl prints it.
func (e Error) Name() string {
	name := errorNames[[2]uint16{e.Type, e.Code}]
	if e.Type == errorExperimenter {
		name = ""
		if e.Experimenter == vendorNicira || e.Experimenter == vendorONF {
			name = extensionErrorNames[e.Code]
		}
	}
	if name == "" {
		return fmt.Sprintf("error of type %d, code %d", e.Type, e.Code)
	}
	return name
}

// Error says what was refused and why.
func (e Error) Error() string {
	h, err := e.FailedHeader()
	if err != nil {
		return "openflow: the switch says " + e.Name()
	}
	return fmt.Sprintf("openflow: the switch refused the message of type %d with xid %d: %s", h.Type, h.XID, e.Name())
}

// FailedHeader is the header of the message that was refused.
func (e Error) FailedHeader() (Header, error) { return ParseHeader(e.Failed) }

// FailedFlow is the part of the refused flow that the error shows: table,
// priority and cookie, and the match if that was not cut off. It gives false if
// what was refused is not a change of a flow.
func (e Error) FailedFlow() (Flow, bool) {
	r := reader{b: append([]byte(nil), e.Failed...)}
	h, err := ParseHeader(r.take(min(HeaderLen, len(e.Failed))))
	if err != nil {
		return Flow{}, false
	}
	if h.Type == TypeBundleAdd {
		r.take(8)
		if h, err = ParseHeader(r.take(min(HeaderLen, r.left()))); err != nil {
			return Flow{}, false
		}
	}
	if h.Type != TypeFlowMod {
		return Flow{}, false
	}
	f := Flow{Cookie: r.u64()}
	r.u64()
	f.Table = r.u8()
	r.u8()
	f.IdleTimeout, f.HardTimeout, f.Priority = r.u16(), r.u16(), r.u16()
	r.take(16)
	if r.err != nil {
		return Flow{}, false
	}
	f.Match = r.match()
	return f, true
}
