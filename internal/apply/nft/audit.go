package nft

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// DifferenceKind says how the kernel differs from what is desired.
type DifferenceKind string

// The kinds.
const (
	// Missing: desired, but not in the kernel.
	Missing DifferenceKind = "missing"
	// Extra: in the kernel, but not desired.
	Extra DifferenceKind = "extra"
	// Changed: in both, but different.
	Changed DifferenceKind = "changed"
)

// Difference is one thing in which the kernel's table is not the desired one.
type Difference struct {
	Kind DifferenceKind
	// Object is what it is about, "chain forward" or "set pods".
	Object string
	// Detail tells a person what is missing, extra or changed.
	Detail string
}

// String is one line for a person.
func (d Difference) String() string {
	if d.Detail == "" {
		return fmt.Sprintf("%s: %s", d.Object, d.Kind)
	}
	return fmt.Sprintf("%s: %s: %s", d.Object, d.Kind, d.Detail)
}

// Audit reads the table from the kernel and tells in what it differs from the
// desired one, sorted by object. It changes nothing.
func (d *Driver) Audit(ctx context.Context, desired nftables.Table) ([]Difference, error) {
	if err := desired.Validate(); err != nil {
		return nil, fmt.Errorf("audit nftables table %s: %w", desired.Name, err)
	}
	want, err := encode(desired, encoded{})
	if err != nil {
		return nil, fmt.Errorf("audit nftables table %s: %w", desired.Name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	have, err := d.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	a := auditor{have: have, want: want, desired: desired}
	a.table(d.tableFlags(), d.sock.port)
	if have.exists {
		a.sets()
		a.chains()
	}
	return a.found, nil
}

type auditor struct {
	have, want *state
	desired    nftables.Table
	found      []Difference
}

func (a *auditor) add(kind DifferenceKind, object, format string, args ...any) {
	a.found = append(a.found, Difference{Kind: kind, Object: object, Detail: fmt.Sprintf(format, args...)})
}

func (a *auditor) table(flags, port uint32) {
	object := "table inet " + a.desired.Name
	switch {
	case !a.have.exists:
		a.add(Missing, object, "")
	case a.have.flags&unix.NFT_TABLE_F_DORMANT != 0:
		a.add(Changed, object, "it is dormant, so none of its rules runs")
	case a.have.flags != flags || flags&tableFlagOwner != 0 && a.have.owner != port:
		a.add(Changed, object, "it has flags 0x%x and owner %d, want 0x%x", a.have.flags, a.have.owner, flags)
	}
}

func (a *auditor) sets() {
	for _, name := range unionNames(a.have.sets, a.want.sets) {
		have, want, object := a.have.sets[name], a.want.sets[name], "set "+name
		switch {
		case want == nil && have.def.flags&unix.NFT_SET_ANONYMOUS != 0:
		case want == nil:
			a.add(Extra, object, "%d elements", len(have.elements))
		case have == nil:
			a.add(Missing, object, "%d elements", len(want.elements))
		case have.def != want.def:
			a.add(Changed, object, "its type or flags differ")
		case have.broken:
			a.add(Changed, object, "its intervals make no sense")
		default:
			a.elements(object, have, want)
		}
	}
}

func (a *auditor) elements(object string, have, want *setState) {
	set := a.desired.Sets[slices.IndexFunc(a.desired.Sets, func(s nftables.Set) bool { return s.Name == want.name })]
	for _, key := range want.order {
		data, ok := have.elements[key]
		switch {
		case !ok:
			a.add(Missing, object, "element %s", elementText(set, key, want.elements[key]))
		case data != want.elements[key]:
			a.add(Changed, object, "element %s, want %s", elementText(set, key, data), elementText(set, key, want.elements[key]))
		}
	}
	for _, key := range sortedNames(have.elements) {
		if _, ok := want.elements[key]; !ok {
			a.add(Extra, object, "element %s", elementText(set, key, have.elements[key]))
		}
	}
}

// elementText is an element in nft's words, from its wire form.
func elementText(set nftables.Set, key, data string) string {
	text := keyText(set, key)
	switch {
	case set.IsVerdictMap():
		return text + " : " + verdictText(data)
	case set.IsMap():
		plain := nftables.Set{Key: set.Data}
		return text + " : " + keyText(plain, data)
	}
	return text
}

// verdictText is the comparable form of a verdict in nft's words.
func verdictText(data string) string {
	if len(data) < 4 {
		return "no verdict"
	}
	code, chain := binary.BigEndian.Uint32([]byte(data)), data[4:]
	for k := nftables.Accept; k <= nftables.Goto; k++ {
		if verdictCode(k) == code {
			return nftables.Verdict{Kind: k, Chain: chain}.String()
		}
	}
	return fmt.Sprintf("verdict %d %s", int32(code), chain)
}

func (a *auditor) chains() {
	for _, name := range unionNames(a.have.chains, a.want.chains) {
		have, want, object := a.have.chains[name], a.want.chains[name], "chain "+name
		switch {
		case want == nil:
			a.add(Extra, object, "%d rules", len(have.rules))
		case have == nil:
			a.add(Missing, object, "%d rules", len(want.rules))
		default:
			a.base(object, have, want)
			a.rules(have, want)
		}
	}
}

func (a *auditor) base(object string, have, want *chainState) {
	text := func(b *nftables.Base) string {
		if b == nil {
			return "no base chain"
		}
		return b.String()
	}
	if text(have.base) != text(want.base) {
		a.add(Changed, object, "it is %q, want %q", text(have.base), text(want.base))
	}
}

func (a *auditor) rules(have, want *chainState) {
	rules := a.desired.Chains[slices.IndexFunc(a.desired.Chains, func(c nftables.Chain) bool { return c.Name == want.name })].Rules
	plan := planRules(have.rules, want.rules, nil)
	kept := map[int]bool{}
	for j, i := range plan.kept {
		if i >= 0 {
			kept[i] = true
			continue
		}
		a.add(Missing, "chain "+want.name, "rule %d: %s", j+1, rules[j])
	}
	for i, r := range have.rules {
		switch {
		case kept[i]:
		case r.digest == digest{}:
			a.add(Extra, "chain "+want.name, "%s (handle %d), written by somebody else", describe(want.name, i, r), r.handle)
		default:
			a.add(Extra, "chain "+want.name, "%s (handle %d), of an earlier state or moved", describe(want.name, i, r), r.handle)
		}
	}
}

// unionNames is the names of both maps, sorted.
func unionNames[T any](a, b map[string]T) []string {
	names := append(sortedNames(a), sortedNames(b)...)
	slices.Sort(names)
	return slices.Compact(names)
}
