package sim

import (
	"fmt"
	"slices"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// output sends the packet to a port (xlate_output_action).
func (w *walk) output(a of.Action, port of.Port) error {
	from := of.Port(w.p.num(of.InPort))
	back := port == of.PortInPort
	if back {
		port = from
	}
	switch port {
	case of.PortNormal, of.PortFlood, of.PortAll, of.PortTable:
		return w.fault(a, "sending to %s is not simulated", port)
	case 0, of.PortAny:
		w.run.result.Why = "it was sent to no port"
		w.note(Ignored, a, "this is no port")
		return nil
	case from:
		if back {
			break
		}
		w.run.result.Why = "it would go back to where it came from"
		w.note(Ignored, a, "the packet came from port %s", port)
		return nil
	}
	if len(w.run.result.Outputs) >= maxOutputs {
		return w.fault(a, "one packet was sent %d times", maxOutputs)
	}
	w.run.result.Outputs = append(w.run.result.Outputs, Output{Port: port, Packet: w.sent()})
	w.note(Sent, a, "by port %s", port)
	return nil
}

// sent is the packet as it is on the wire.
func (w *walk) sent() Packet {
	p := w.p
	for _, t := range w.wire {
		p.Set(t.Field, t.Value)
	}
	return p
}

// outputField sends to a port that has a number of 16 bits (xlate_output_reg_action).
func (w *walk) outputField(a of.OutputField) error {
	v := w.p.part(a.Source)
	if v.BitLen() > 16 {
		w.run.result.Why = "the number of the port is out of range"
		w.note(Ignored, a, "%#x is no port", v.Lo)
		return nil
	}
	return w.output(a, port32(v.Lo))
}

// written forgets what was different on the wire: it is sent as the flow wrote it.
func (w *walk) written(f of.Field) {
	w.wire = slices.DeleteFunc(slices.Clone(w.wire), func(t of.Term) bool { return t.Field == f })
}

func (w *walk) setField(a of.SetField) {
	if !w.p.has(a.Field) {
		w.note(Ignored, a, "the packet has no %s", a.Field)
		return
	}
	mask := a.Mask
	if mask.IsZero() {
		mask = of.Ones(a.Field.Bits())
	}
	w.p.write(a.Field, a.Value, mask)
	w.written(a.Field)
	w.note(Changed, a, "")
}

func (w *walk) move(a of.Move) {
	if !w.p.has(a.From.Field) || !w.p.has(a.To.Field) {
		w.note(Ignored, a, "the packet has not both of %s and %s", a.From.Field, a.To.Field)
		return
	}
	v := w.p.part(a.From)
	w.p.write(a.To.Field, v.Lsh(int(a.To.Offset)), a.To.Mask())
	w.written(a.To.Field)
	if w.sw.Trace {
		w.note(Changed, a, "%s", of.FormatActions([]of.Action{of.SetField{Field: a.To.Field, Value: w.p.Get(a.To.Field)}}))
	}
}

// decTTL ends the actions of the flow where the TTL is used up (compose_dec_ttl).
func (w *walk) decTTL(a of.DecTTL) error {
	ttl := w.p.num(of.IPTTL)
	switch {
	case !w.p.isIP():
		w.note(Ignored, a, "the packet has no TTL")
		return nil
	case ttl <= 1:
		w.run.result.Why = "its TTL is used up"
		w.note(Ended, a, "the TTL is %d", ttl)
		return errStop
	}
	w.p.set(of.IPTTL, ttl-1)
	w.note(Changed, a, "the TTL is %d", ttl-1)
	return nil
}

// ct sends the packet through the connection tracker (compose_conntrack_action).
func (w *walk) ct(a of.CT) error {
	switch {
	case a.ALG != 0:
		return w.fault(a, "helpers of the connection tracker are not simulated")
	case w.p.isIP() && w.p.num(of.IPFrag) != 0:
		return w.fault(a, "the tracking of fragments is not simulated")
	case a.Recirc && w.round >= maxRecirculation:
		return w.fault(a, "the packet came back from the connection tracker %d times: a loop", w.round)
	}
	r, err := w.request(a)
	if err != nil {
		return err
	}
	p := w.sent()
	detail := w.sw.Conntrack.track(&p, &w.was, r)
	if w.sw.Trace {
		w.note(Tracked, a, "%s", tracking(&p, detail))
	}
	w.differ(&p)
	w.p.ICMPID, w.p.Quoted = p.ICMPID, p.Quoted
	w.p.untrack()
	if !a.Recirc {
		return nil
	}
	next := &walk{sw: w.sw, run: w.run, p: p, was: w.was, round: w.round + 1, nested: w.nested, flow: w.flow}
	err = next.enter(visit{table: a.Table})
	return err
}

// tracking says what the tracker said.
func tracking(p *Packet, detail string) string {
	text := fmt.Sprintf("zone %d, %s", p.num(of.CTZone), stateNames(p.num(of.CTState)))
	if mark := p.num(of.CTMark); mark != 0 {
		text += fmt.Sprintf(", mark %#x", mark)
	}
	if p.num(of.CTState)&natBits != 0 {
		text += ", now " + p.Tuple().String()
	}
	if detail != "" {
		text += ", " + detail
	}
	return text
}

// differ notes what NAT has rewritten.
func (w *walk) differ(p *Packet) {
	var terms []of.Term
	for _, f := range [...]of.Field{
		of.IPSrc, of.IPDst, of.IPv6Src, of.IPv6Dst, of.TCPSrc, of.TCPDst, of.UDPSrc, of.UDPDst, of.SCTPSrc, of.SCTPDst,
	} {
		if v := p.Get(f); v != w.p.Get(f) {
			terms = append(terms, of.EqValue(f, v))
		}
	}
	w.wire = terms
}

// request reads the fields that a ct needs.
func (w *walk) request(a of.CT) (request, error) {
	r := request{zone: a.Zone, commit: a.Commit, force: a.Force, nat: a.NAT}
	if a.ZoneSource != (of.Subfield{}) {
		r.zone = uint16(w.p.part(a.ZoneSource).Lo)
	}
	// As if the fields of ct could be written: what was set is what counts.
	inner := w.p
	for _, e := range a.Exec {
		var to of.Field
		var mask of.Value
		switch e := e.(type) {
		case of.SetField:
			to, mask = e.Field, e.Mask
			if mask.IsZero() {
				mask = of.Ones(to.Bits())
			}
			inner.write(to, e.Value, mask)
		case of.Move:
			to, mask = e.To.Field, e.To.Mask()
			if inner.has(e.From.Field) {
				inner.write(to, inner.part(e.From).Lsh(int(e.To.Offset)), mask)
			}
		}
		switch to {
		case of.CTMark:
			r.mark.mask = r.mark.mask.Or(mask)
		case of.CTLabel:
			r.label.mask = r.label.mask.Or(mask)
		default:
			return request{}, w.fault(a, "exec may set ct_mark and ct_label, nothing else")
		}
	}
	r.mark.value, r.label.value = inner.Get(of.CTMark), inner.Get(of.CTLabel)
	return r, nil
}
