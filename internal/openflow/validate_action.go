package openflow

import (
	"errors"
	"fmt"
)

// checker checks actions under a match.
type checker struct {
	match Match
	// anyProtocol is set where the match is not known, in groups.
	anyProtocol bool
	depth       int
	// exec is set within the exec of a CT.
	exec bool
}

func (c checker) actions(list []Action, depth int) []error {
	if depth > maxNesting {
		return []error{fmt.Errorf("actions are nested more than %d deep", maxNesting)}
	}
	c.depth = depth
	var errs []error
	conjunctions := 0
	for _, a := range list {
		if a == nil {
			errs = append(errs, errors.New("an action is nil"))
			continue
		}
		switch a.(type) {
		case Conjunction:
			conjunctions++
		case Note:
			conjunctions++ // may stand beside them
		}
		if err := a.check(&c); err != nil {
			errs = append(errs, fmt.Errorf("action %s: %w", clip(string(a.appendText(nil))), err))
		}
	}
	if hasConjunction(list) && conjunctions != len(list) {
		errs = append(errs, errors.New("beside a conjunction only conjunctions and notes may stand"))
	}
	return errs
}

func hasConjunction(list []Action) bool {
	for _, a := range list {
		if _, ok := a.(Conjunction); ok {
			return true
		}
	}
	return false
}

// subfield checks a part of a field that is read, or written.
func (c *checker) subfield(s Subfield, write bool) error {
	switch {
	case !s.Field.valid():
		return errors.New("the field does not exist")
	case int(s.Offset)+s.Width() > s.Field.Bits() || s.Width() == 0:
		return fmt.Errorf("bits %d to %d of %s, which has %d", s.Offset, int(s.Offset)+s.Width()-1, s.Field, s.Field.Bits())
	case write && !s.Field.Writable():
		return fmt.Errorf("%s cannot be written", s.Field)
	case write && !c.exec && (s.Field == CTMark || s.Field == CTLabel):
		return fmt.Errorf("%s can only be written in the exec of a ct", s.Field)
	case write && s.Field == VLANVID && !c.anyProtocol:
		if t, _ := c.match.Get(VLANVID); t.Value.Lo&VLANPresent == 0 {
			return errors.New("the match must demand a VLAN header")
		}
	}
	return c.exists(s.Field)
}

// part checks a part of a field that an action copies from or to. The switch counts
// the bits of two fields differently there.
func (c *checker) part(s Subfield, write bool) error {
	if s.Field == CTState || s.Field == VLANVID {
		return fmt.Errorf("bits of %s cannot be copied", s.Field)
	}
	return c.subfield(s, write)
}

// exists says whether the match makes sure that the packet has the field.
func (c *checker) exists(f Field) error {
	if c.anyProtocol {
		return nil
	}
	return c.match.provides(fieldTable[f].need)
}

func (a Output) check(*checker) error {
	switch {
	case a.Port == 0 || a.Port == PortAny || a.Port == PortTable:
		return fmt.Errorf("port %s is not one to send to", a.Port)
	case a.Port >= 0xff00 && a.Port < PortInPort:
		return fmt.Errorf("port %d does not exist; ports end at 65279", a.Port)
	}
	return nil
}

func (a OutputField) check(c *checker) error {
	if a.Source.Width() > 64 {
		return errors.New("more than 64 bits for a port")
	}
	return c.part(a.Source, false)
}

func (a SetField) check(c *checker) error {
	if err := c.subfield(Whole(a.Field), true); err != nil {
		return err
	}
	if a.Mask.BitLen() > a.Field.Bits() || a.Value.BitLen() > a.Field.Bits() {
		return fmt.Errorf("%s has only %d bits", a.Field, a.Field.Bits())
	}
	if mask := a.mask(); mask != a.Field.full() && !a.Field.Maskable() {
		return fmt.Errorf("only the whole of %s can be set", a.Field)
	} else if !a.Value.And(mask.Not()).IsZero() {
		return errors.New("the value has bits outside of the mask")
	}
	switch {
	case a.Field == ARPOp && a.Value.Lo > 0xff:
		return errors.New("only the lower 8 bits exist")
	case a.Field == VLANVID && a.Value.And(a.mask()).Lo&VLANPresent == 0:
		return errors.New("the value must have the bit that says that there is a VLAN header")
	}
	return nil
}

func (a Move) check(c *checker) error {
	if err := c.part(a.From, false); err != nil {
		return err
	}
	if err := c.part(a.To, true); err != nil {
		return err
	}
	if a.From.Width() != a.To.Width() {
		return fmt.Errorf("%d bits to %d bits", a.From.Width(), a.To.Width())
	}
	return nil
}

func (a GotoTable) check(c *checker) error {
	if c.depth > 0 {
		return errors.New("only a flow can have it, use resubmit")
	}
	if a.Table == TableAll {
		return errors.New("table 255 does not exist")
	}
	return nil
}

func (a Resubmit) check(c *checker) error {
	if a.InPort >= 0xff00 && a.InPort < PortMax {
		return fmt.Errorf("port %d does not exist", a.InPort)
	}
	if (a.InPort == 0 || a.InPort == PortInPort) && a.Table == TableAll {
		return errors.New("names neither a port nor a table")
	}
	if a.OriginalTuple && a.Table == TableAll {
		return errors.New("names no table (ovs-ofctl would not print the ct)")
	}
	if a.OriginalTuple && !c.anyProtocol {
		return c.match.provides(needCT)
	}
	return nil
}

func (a CT) check(c *checker) error {
	if err := c.exists(IPProto); err != nil {
		return err
	}
	switch {
	case a.Force && !a.Commit:
		return errors.New("force without commit")
	case !a.Recirc && a.Table != 0:
		return errors.New("a table without Recirc")
	case a.Recirc && a.Table == ctNoRecirc:
		return errors.New("table 255 does not exist")
	case a.ZoneSource.Field != fieldNone && a.Zone != 0:
		return errors.New("both a zone and a field that holds it")
	case a.ZoneSource.Field != fieldNone && a.ZoneSource.Width() > 16:
		return errors.New("a zone of more than 16 bits")
	case len(a.Exec) > 0 && !a.Commit:
		return errors.New("exec without commit")
	case a.ALG != 0 && !a.Commit:
		return errors.New("alg without commit")
	}
	if a.ZoneSource.Field != fieldNone {
		if err := c.part(a.ZoneSource, false); err != nil {
			return fmt.Errorf("zone: %w", err)
		}
	}
	if err := a.checkMatch(c); err != nil {
		return err
	}
	if a.NAT != nil {
		if err := a.NAT.check(a.Commit); err != nil {
			return fmt.Errorf("nat: %w", err)
		}
	}
	return a.checkExec(c)
}

// checkMatch refuses what the flow's packets cannot have.
func (a CT) checkMatch(c *checker) error {
	if c.anyProtocol {
		return nil
	}
	ethType, _ := c.match.exact(EthType)
	protocol, _ := c.match.exact(IPProto)
	state, _ := c.match.Get(CTState)
	switch {
	case a.Commit && state.Value.Lo&CTInvalid != 0:
		return errors.New("commits a connection that is invalid")
	case a.ALG == algFTP && protocol != ProtoTCP:
		return errors.New("alg=ftp: the match must demand tcp or tcp6")
	case a.ALG == algTFTP && protocol != ProtoUDP:
		return errors.New("alg=tftp: the match must demand udp or udp6")
	case a.NAT != nil && a.NAT.Min.IsValid() && a.NAT.Min.Is4() != (ethType == EthTypeIPv4):
		return fmt.Errorf("nat: %s is not of the family that the match demands", a.NAT.Min)
	}
	return nil
}

// checkExec allows what the tracker keeps: its mark and label.
func (a CT) checkExec(c *checker) error {
	for _, e := range a.Exec {
		var to Field
		switch e := e.(type) {
		case SetField:
			to = e.Field
		case Move:
			to = e.To.Field
		}
		if to != CTMark && to != CTLabel {
			return errors.New("exec may set ct_mark and ct_label, nothing else")
		}
	}
	inner := *c
	inner.exec = true
	return errors.Join(inner.actions(a.Exec, c.depth+1)...)
}

func (n *NAT) check(commit bool) error {
	bare := *n == NAT{Kind: n.Kind}
	switch {
	case n.Kind > NATDestination:
		return errors.New("neither restore, source nor destination")
	case n.Kind == NATRestore && !bare:
		return errors.New("addresses, ports or flags without source or destination")
	case n.Kind != NATRestore && !commit:
		return errors.New("source or destination without commit")
	case !n.Min.IsValid() && !bare:
		return errors.New("ports, flags or a last address without a first address")
	case n.Min.Zone() != "" || n.Max.Zone() != "":
		return errors.New("an address with a zone")
	case n.Min.IsValid() && n.Min.IsUnspecified():
		return fmt.Errorf("address %s", n.Min)
	case n.hasMax() && (n.Max.Is4() != n.Min.Is4() || n.Max.Less(n.Min)):
		return fmt.Errorf("addresses %s to %s", n.Min, n.Max)
	case n.PortMax != 0 && (n.PortMin == 0 || n.PortMax < n.PortMin):
		return fmt.Errorf("ports %d to %d", n.PortMin, n.PortMax)
	case n.Hash && n.Random:
		return errors.New("ports are chosen both by hash and at random")
	}
	return nil
}

func (CTClear) check(*checker) error { return nil }

func (a Conjunction) check(c *checker) error {
	switch {
	case c.depth > 0:
		return errors.New("only a flow can have it")
	case a.Clauses < 2 || a.Clauses > 64:
		return errors.New("a conjunction has 2 to 64 dimensions")
	case a.Clause < 1 || a.Clause > a.Clauses:
		return fmt.Errorf("dimension %d of %d", a.Clause, a.Clauses)
	}
	return nil
}

func (a Clone) check(c *checker) error {
	if len(a.Actions) == 0 {
		return errors.New("clones to do nothing")
	}
	return errors.Join(c.actions(a.Actions, c.depth+1)...)
}

func (DecTTL) check(c *checker) error { return c.exists(IPTTL) }

func (a GroupAction) check(*checker) error {
	if a.ID > GroupIDMax {
		return fmt.Errorf("numbers of groups end at %d", GroupIDMax)
	}
	return nil
}

func (a MeterAction) check(c *checker) error {
	if c.depth > 0 && !c.anyProtocol {
		return errors.New("a meter cannot be within another action")
	}
	if a.ID == 0 || a.ID > MeterIDMax {
		return fmt.Errorf("numbers of meters are 1 to %d", MeterIDMax)
	}
	return nil
}

func (a Note) check(*checker) error {
	const limit = 1024
	if len(a.Data) > limit {
		return fmt.Errorf("%d bytes, more than %d", len(a.Data), limit)
	}
	return nil
}

func (a CheckPktLarger) check(c *checker) error {
	if a.To.Width() != 1 {
		return errors.New("the result is one bit")
	}
	return c.part(a.To, true)
}

func (a Learn) check(c *checker) error {
	if a.Table == TableAll {
		return errors.New("table 255 does not exist")
	}
	// What the learned flow matches so far, by itself.
	learned := checker{exec: true}
	for i, s := range a.Specs {
		if err := s.check(c, &learned); err != nil {
			return fmt.Errorf("part %d: %w", i+1, err)
		}
		if s.Kind == LearnMatch && s.immediate() {
			term := Term{s.To.Field, s.Value.Lsh(int(s.To.Offset)), s.To.Mask()}
			learned.match = NewMatch(append(learned.match, term)...)
		}
	}
	return nil
}

func (s LearnSpec) check(c, learned *checker) error {
	if s.Kind > LearnOutput {
		return fmt.Errorf("kind %d does not exist", s.Kind)
	}
	if s.Kind != LearnOutput {
		if err := learned.part(s.To, s.Kind == LearnLoad); err != nil {
			return err
		}
	}
	if s.immediate() {
		if s.Kind == LearnOutput {
			return errors.New("an output needs a field")
		}
		if s.Value.BitLen() > s.To.Width() {
			return fmt.Errorf("the value needs more than %d bits", s.To.Width())
		}
		return nil
	}
	if s.Kind != LearnOutput && s.From.Width() != s.To.Width() {
		return fmt.Errorf("%d bits from %d bits", s.To.Width(), s.From.Width())
	}
	return c.part(s.From, false)
}

func (a Unknown) check(*checker) error { return errors.New("not known") }
