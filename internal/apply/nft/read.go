package nft

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// Refresh reads the table back from the kernel, so that the next Apply compares
// with what is really there. Apply does so by itself after foreign changes.
func (d *Driver) Refresh(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shadow = nil
	return d.freshen(ctx)
}

// freshen makes sure that the shadow holds: a plain table is read again when the
// ruleset's generation has moved, an owned one only if the shadow was dropped.
func (d *Driver) freshen(ctx context.Context) error {
	if d.owned && d.shadow != nil {
		return nil
	}
	for range dumpTries {
		generation, err := d.readGeneration()
		if err != nil {
			return err
		}
		if d.shadow != nil && generation == d.generation {
			return nil
		}
		s, err := d.read(ctx)
		if err != nil {
			return err
		}
		// Several dumps made the reading: they belong together only if nothing
		// changed between the first and the last.
		after, err := d.readGeneration()
		if err != nil {
			return err
		}
		if after == generation || d.owned && s.owner == d.sock.port {
			d.shadow, d.generation = s, after
			return d.checkOwner(s)
		}
	}
	return fmt.Errorf("read nftables table %s: %w %d times", d.cfg.Table, errDumpInterrupted, dumpTries)
}

func (d *Driver) readGeneration() (generation uint32, err error) {
	err = d.sock.get(unix.NFT_MSG_GETGEN, 0, unix.NFT_MSG_NEWGEN, nil, func(m message) error {
		generation, _, _, err = parseGen(m.attributes())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read nftables generation: %w", err)
	}
	return generation, nil
}

// read reads the whole table.
func (d *Driver) read(ctx context.Context) (*state, error) {
	s, err := d.readTable(ctx)
	if err != nil || !s.exists {
		return s, err
	}
	if err := d.readChains(ctx, s); err != nil {
		return nil, fmt.Errorf("read chains of table %s: %w", d.cfg.Table, err)
	}
	if err := d.readRules(ctx, s, ""); err != nil {
		return nil, fmt.Errorf("read rules of table %s: %w", d.cfg.Table, err)
	}
	if err := d.readSets(ctx, s); err != nil {
		return nil, fmt.Errorf("read sets of table %s: %w", d.cfg.Table, err)
	}
	return s, nil
}

// readTable reads whether the table is there, with its flags and owner.
func (d *Driver) readTable(ctx context.Context) (*state, error) {
	s := newState()
	err := d.sock.dump(ctx, unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE, nil, func() { s = newState() }, func(m message) error {
		t, err := parseTable(m.attributes())
		if err == nil && m.family() == unix.NFPROTO_INET && t.name == d.cfg.Table {
			s.exists, s.flags, s.owner = true, t.flags, t.owner
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read nftables tables: %w", err)
	}
	return s, nil
}

func (d *Driver) readChains(ctx context.Context, s *state) error {
	return d.sock.dump(ctx, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN, nil, func() { clear(s.chains) }, func(m message) error {
		table, c, err := parseChain(m.attributes())
		if err == nil && table == d.cfg.Table && m.family() == unix.NFPROTO_INET {
			s.chains[c.name] = c
		}
		return err
	})
}

// readRules reads the rules of a chain, or of all chains, into s.
func (d *Driver) readRules(ctx context.Context, s *state, only string) error {
	ask := func(a *attrs) {
		a.str(unix.NFTA_RULE_TABLE, d.cfg.Table)
		if only != "" {
			a.str(unix.NFTA_RULE_CHAIN, only)
		}
	}
	start := func() {
		for _, c := range s.chains {
			if only == "" || c.name == only {
				c.rules = nil
			}
		}
	}
	return d.sock.dump(ctx, unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE, ask, start, func(m message) error {
		table, chain, r, err := parseRule(m.attributes())
		if c := s.chains[chain]; err == nil && c != nil && table == d.cfg.Table {
			c.rules = append(c.rules, r)
		}
		return err
	})
}

func (d *Driver) readSets(ctx context.Context, s *state) error {
	ask := func(a *attrs) { a.str(unix.NFTA_SET_TABLE, d.cfg.Table) }
	err := d.sock.dump(ctx, unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET, ask, func() { clear(s.sets) }, func(m message) error {
		table, set, err := parseSet(m.attributes())
		if err == nil && table == d.cfg.Table && m.family() == unix.NFPROTO_INET {
			s.sets[set.name] = set
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range sortedNames(s.sets) {
		if err := d.readElements(ctx, s.sets[name]); err != nil {
			return fmt.Errorf("elements of %s: %w", name, err)
		}
	}
	return nil
}

func (d *Driver) readElements(ctx context.Context, set *setState) error {
	ask := func(a *attrs) {
		a.str(unix.NFTA_SET_ELEM_LIST_TABLE, d.cfg.Table)
		a.str(unix.NFTA_SET_ELEM_LIST_SET, set.name)
	}
	var elements []element
	err := d.sock.dump(ctx, unix.NFT_MSG_GETSETELEM, unix.NFT_MSG_NEWSETELEM, ask, func() { elements = nil }, func(m message) error {
		return parseElements(m.attributes(), func(e element) {
			// The receive buffer is used again for the next message.
			e.key, e.keyEnd = slices.Clone(e.key), slices.Clone(e.keyEnd)
			elements = append(elements, e)
		})
	})
	if err == nil {
		set.fill(elements)
	}
	return err
}

// fewChains is up to how many changed chains are read back one by one.
const fewChains = 8

// readHandles learns the handles of the rules that a transaction added, and makes
// sure that the chains hold what they should.
func (d *Driver) readHandles(ctx context.Context, changes Changes) error {
	if changes.RulesAdded == 0 {
		return nil
	}
	var changed []string
	got := newState()
	for _, name := range sortedNames(d.shadow.chains) {
		got.chains[name] = &chainState{name: name}
		if slices.ContainsFunc(d.shadow.chains[name].rules, func(r ruleState) bool { return r.handle == 0 }) {
			changed = append(changed, name)
		}
	}
	read := changed
	if len(changed) > fewChains {
		read = []string{""}
	}
	for _, name := range read {
		if err := d.readRules(ctx, got, name); err != nil {
			return err
		}
	}
	for _, name := range changed {
		want, got := d.shadow.chains[name].rules, got.chains[name].rules
		if !slices.EqualFunc(want, got, func(a, b ruleState) bool { return a.digest == b.digest }) {
			return fmt.Errorf("chain %s holds other rules than were just written", name)
		}
		for i := range want {
			want[i].handle = got[i].handle
		}
	}
	return nil
}

// RuleCounter is the counter of one rule.
type RuleCounter struct {
	Chain   string
	Handle  uint64
	Comment string
	Packets uint64
	Bytes   uint64
}

// Counters reads the counters of all the rules that have one, in the order of
// chains by name and rules by place. Several rules may bear one comment.
func (d *Driver) Counters(ctx context.Context) ([]RuleCounter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.readTable(ctx)
	if err == nil && s.exists {
		if err = d.readChains(ctx, s); err == nil {
			err = d.readRules(ctx, s, "")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read counters of nftables table %s: %w", d.cfg.Table, err)
	}
	var counters []RuleCounter
	for _, name := range sortedNames(s.chains) {
		for _, r := range s.chains[name].rules {
			if r.counted {
				counters = append(counters, RuleCounter{Chain: name, Handle: r.handle, Comment: r.comment, Packets: r.packets, Bytes: r.bytes})
			}
		}
	}
	return counters, nil
}

// keyText is the wire form of a key as nft prints it.
func keyText(set nftables.Set, key string) string {
	e, ok := decodeKey(set, key)
	if !ok {
		return fmt.Sprintf("%x", key)
	}
	return nftables.KeyText(e)
}

// decodeKey reads the wire form of a key of the set back into values.
func decodeKey(set nftables.Set, key string) ([]nftables.Value, bool) {
	lower, upper := key, key
	if set.Interval {
		lower, upper = key[:len(key)/2], key[len(key)/2:]
	}
	if _, size := typesID(set.Key); len(lower) != int(size) || len(upper) != int(size) {
		return nil, false
	}
	values := make([]nftables.Value, len(set.Key))
	for i, t := range set.Key {
		size := t.Size()
		v := nftables.Value{Type: t}
		copy(v.From[:], networkBytes(t, lower[:size], set.Interval))
		copy(v.To[:], networkBytes(t, upper[:size], set.Interval))
		values[i] = v
		if i < len(set.Key)-1 {
			lower, upper = lower[units(size)*4:], upper[units(size)*4:]
		}
	}
	return values, true
}

// networkBytes brings one field of a key into network order.
func networkBytes(t nftables.Type, raw string, interval bool) []byte {
	b := []byte(raw)
	if t.HostOrder() && !interval && hostIsLittle {
		slices.Reverse(b)
	}
	return b
}
