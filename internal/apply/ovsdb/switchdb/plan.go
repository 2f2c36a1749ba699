package switchdb

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb"
)

// plan is the difference between a Snapshot and what is desired.
type plan struct {
	mark Mark
	o    Options
	s    *ovsdb.Snapshot

	bridges map[string]ovsdb.UUID // by name
	ports   map[string]ovsdb.UUID // by name
	// portOf and bridgeOf say where interfaces (by name) and ports are.
	portOf   map[string]ovsdb.UUID
	bridgeOf map[ovsdb.UUID]ovsdb.UUID

	ops []ovsdb.Operation
	// about names, for each operation, what it is for.
	about   []string
	changes []string
	// added are the ports added to bridges that exist.
	added  []string
	failed []Failure
	// accepted are the desired bridges that were not refused.
	accepted []Bridge
	named    int
}

func planFor(s *ovsdb.Snapshot, mark Mark, desired []Bridge, o Options) *plan {
	p := &plan{mark: mark, o: o, s: s}
	p.index()
	var made []ovsdb.Atom // references to new bridges
	wanted := map[string]bool{}
	for _, b := range desired {
		if err := valid(b, wanted); err != nil {
			p.refuse(b.Name, "", err)
			continue
		}
		u, exists := p.bridges[b.Name]
		if exists && !p.ours(s.Row(tableBridge, u)) {
			p.refuse(b.Name, "", fmt.Errorf("a bridge of this name exists: %w", ErrForeign))
			continue
		}
		p.accepted = append(p.accepted, b)
		if exists {
			p.changeBridge(u, b)
		} else {
			made = append(made, p.addBridge(b))
		}
	}
	var gone []ovsdb.Atom
	if !o.AddOnly {
		for _, name := range slices.Sorted(maps.Keys(p.bridges)) {
			if u := p.bridges[name]; !wanted[name] && p.ours(s.Row(tableBridge, u)) {
				gone = append(gone, ovsdb.Ref(u))
				p.changes = append(p.changes, "remove bridge "+name)
			}
		}
	}
	if len(p.ops)+len(made)+len(gone) > 0 {
		p.commit(made, gone)
	}
	slices.SortStableFunc(p.failed, compareFailures)
	return p
}

func compareFailures(a, b Failure) int {
	return cmp.Or(cmp.Compare(a.Bridge, b.Bridge), cmp.Compare(a.Port, b.Port))
}

func (p *plan) index() {
	p.bridges, p.ports = map[string]ovsdb.UUID{}, map[string]ovsdb.UUID{}
	p.portOf, p.bridgeOf = map[string]ovsdb.UUID{}, map[ovsdb.UUID]ovsdb.UUID{}
	for u, row := range p.s.Rows(tableBridge) {
		p.bridges[row["name"].Atom().Text()] = u
		for _, port := range row["ports"].Keys {
			p.bridgeOf[port.UUID()] = u
		}
	}
	for u, row := range p.s.Rows(tablePort) {
		p.ports[row["name"].Atom().Text()] = u
		for _, i := range row["interfaces"].Keys {
			p.portOf[p.s.Row(tableInterface, i.UUID())["name"].Atom().Text()] = u
		}
	}
}

// valid refuses what the database would, together with everything else in the
// transaction.
func valid(b Bridge, wanted map[string]bool) error {
	switch {
	case b.Name == "" || strings.ContainsAny(b.Name, "/ \x00"):
		return fmt.Errorf("%q is no name of a bridge", b.Name)
	case wanted[b.Name]:
		return errors.New("it is desired twice")
	case b.FailMode != "secure" && b.FailMode != "standalone":
		return fmt.Errorf("the fail mode %q is neither secure nor standalone", b.FailMode)
	}
	wanted[b.Name] = true
	return nil
}

func (p *plan) refuse(bridge, port string, err error) {
	p.failed = append(p.failed, Failure{bridge, port, err})
}

func (p *plan) ours(row ovsdb.Row) bool {
	v, ok := row["external_ids"].At(p.mark.Key)
	return ok && v.Text() == p.mark.Value
}

func (p *plan) marked(ids map[string]string) ovsdb.Value {
	all := make(map[string]string, len(ids)+1)
	maps.Copy(all, ids)
	all[p.mark.Key] = p.mark.Value
	return ovsdb.Map(all)
}

func (p *plan) do(about string, op ovsdb.Operation) {
	p.ops, p.about = append(p.ops, op), append(p.about, about)
}

// name makes a name for a row that this transaction inserts.
func (p *plan) name() string {
	p.named++
	return fmt.Sprintf("row%d", p.named)
}

func (p *plan) bridgeRow(b Bridge) ovsdb.Row {
	return ovsdb.Row{
		"datapath_type": ovsdb.Strings(b.DatapathType), "fail_mode": ovsdb.Strings(b.FailMode), "protocols": ovsdb.Strings(b.Protocols...),
		"other_config": ovsdb.Map(b.OtherConfig), "external_ids": p.marked(b.ExternalIDs), "controller": ovsdb.Value{},
	}
}

func (p *plan) interfaceRow(port Port) ovsdb.Row {
	return ovsdb.Row{
		"type": ovsdb.Strings(port.Type), "options": ovsdb.Map(port.Options), "external_ids": p.marked(port.ExternalIDs),
		"ofport_request": optional(port.OFPort), "mtu_request": optional(port.MTU),
	}
}

func optional(n uint16) ovsdb.Value {
	if n == 0 {
		return ovsdb.Value{}
	}
	return ovsdb.Set(ovsdb.Integer(int64(n)))
}

// local is the local port of a bridge.
func (b Bridge) local() Port { return Port{Name: b.Name, Type: "internal", MTU: b.MTU} }

func (p *plan) addBridge(b Bridge) ovsdb.Atom {
	p.changes = append(p.changes, "add bridge "+b.Name)
	row := p.bridgeRow(b)
	row["name"] = ovsdb.Strings(b.Name)
	var refs []ovsdb.Atom
	wanted := map[string]bool{}
	for _, port := range append([]Port{b.local()}, b.Ports...) {
		if err := p.mayAdd(b, port, wanted); err != nil {
			p.refuse(b.Name, port.Name, err)
			continue
		}
		refs = append(refs, p.addPort(b, port))
	}
	row["ports"] = ovsdb.Set(refs...)
	name := p.name()
	p.do("bridge "+b.Name, ovsdb.Insert(tableBridge, name, row))
	return ovsdb.Named(name)
}

func (p *plan) addPort(b Bridge, port Port) ovsdb.Atom {
	what := "port " + port.Name
	if port.Name != b.Name {
		p.changes = append(p.changes, "add "+what+" to bridge "+b.Name)
	}
	link := p.interfaceRow(port)
	link["name"] = ovsdb.Strings(port.Name)
	i, n := p.name(), p.name()
	p.do(what, ovsdb.Insert(tableInterface, i, link))
	p.do(what, ovsdb.Insert(tablePort, n, ovsdb.Row{
		"name": ovsdb.Strings(port.Name), "interfaces": ovsdb.Set(ovsdb.Named(i)), "external_ids": p.marked(port.ExternalIDs),
	}))
	return ovsdb.Named(n)
}

// mayAdd says why a port cannot be made.
func (p *plan) mayAdd(b Bridge, port Port, wanted map[string]bool) error {
	switch {
	case port.Name == "" || len(port.Name) > 15 || strings.ContainsAny(port.Name, "/ \x00"):
		return fmt.Errorf("%q is no name of a link", port.Name)
	case wanted[port.Name]:
		return errors.New("it is desired twice")
	case port.OFPort > maxOFPort:
		return fmt.Errorf("no port can have the number %d: the largest is %d", port.OFPort, maxOFPort)
	}
	wanted[port.Name] = true
	holder, taken := p.ports[port.Name]
	if !taken {
		holder, taken = p.portOf[port.Name]
	}
	if !taken {
		return nil
	}
	row, at := p.s.Row(tablePort, holder), p.bridgeOf[holder]
	if at == p.bridges[b.Name] && at != "" {
		if p.ours(row) && row["name"].Atom().Text() == port.Name {
			return nil
		}
		return fmt.Errorf("a port of this name is in the bridge: %w", ErrForeign)
	}
	other := p.s.Row(tableBridge, at)["name"].Atom().Text()
	if p.ours(row) {
		return fmt.Errorf("it is still in bridge %s: apply again", other)
	}
	return fmt.Errorf("a port of this name is in bridge %s: %w", other, ErrForeign)
}

func (p *plan) changeBridge(u ovsdb.UUID, b Bridge) {
	before := len(p.ops)
	what := "bridge " + b.Name
	row := p.s.Row(tableBridge, u)
	if changed := difference(row, p.bridgeRow(b)); len(changed) > 0 && !p.o.AddOnly {
		p.changes = append(p.changes, "change "+columns(changed)+" of "+what)
		p.do(what, ovsdb.Update(tableBridge, changed, ovsdb.Is(u)))
	}
	var added []ovsdb.Atom
	wanted := map[string]bool{}
	for _, port := range append([]Port{b.local()}, b.Ports...) {
		if err := p.mayAdd(b, port, wanted); err != nil {
			p.refuse(b.Name, port.Name, err)
			continue
		}
		if at, ok := p.ports[port.Name]; ok {
			p.changePort(b, at, port)
		} else {
			added = append(added, p.addPort(b, port))
			p.added = append(p.added, port.Name)
		}
	}
	var gone []ovsdb.Atom
	if !p.o.AddOnly {
		gone = p.stale(b, row, wanted)
	}
	mutations := membership("ports", added, gone)
	if mutations != nil {
		p.do(what, ovsdb.Mutate(tableBridge, mutations, ovsdb.Is(u)))
	}
	if len(p.ops) > before {
		// A bridge that somebody removed meanwhile would take our changes silently.
		p.do(what, ovsdb.Wait(tableBridge, 0, []string{"name"}, true, []ovsdb.Row{{"name": ovsdb.Strings(b.Name)}}, ovsdb.Is(u)))
	}
}

// stale are the ports of the bridge that are ours and not wanted.
func (p *plan) stale(b Bridge, row ovsdb.Row, wanted map[string]bool) []ovsdb.Atom {
	var gone []ovsdb.Atom
	var names []string
	for _, ref := range row["ports"].Keys {
		port := p.s.Row(tablePort, ref.UUID())
		if name := port["name"].Atom().Text(); p.ours(port) && !wanted[name] {
			gone, names = append(gone, ref), append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		p.changes = append(p.changes, "remove port "+name+" from bridge "+b.Name)
	}
	return gone
}

func (p *plan) changePort(b Bridge, u ovsdb.UUID, port Port) {
	if p.o.AddOnly {
		return
	}
	row, what := p.s.Row(tablePort, u), "port "+port.Name
	if changed := difference(row, ovsdb.Row{"external_ids": p.marked(port.ExternalIDs)}); len(changed) > 0 {
		p.changes = append(p.changes, "change "+columns(changed)+" of "+what+" of bridge "+b.Name)
		p.do(what, ovsdb.Update(tablePort, changed, ovsdb.Is(u)))
	}
	for _, ref := range row["interfaces"].Keys {
		link := p.s.Row(tableInterface, ref.UUID())
		if changed := difference(link, p.interfaceRow(port)); len(changed) > 0 {
			p.changes = append(p.changes, "change "+columns(changed)+" of "+what+" of bridge "+b.Name)
			p.do(what, ovsdb.Update(tableInterface, changed, ovsdb.Is(ref.UUID())))
		}
	}
}

// difference is the columns of want that row holds otherwise.
func difference(row, want ovsdb.Row) ovsdb.Row {
	var changed ovsdb.Row
	for c, v := range want {
		if !row[c].Equal(v) {
			if changed == nil {
				changed = ovsdb.Row{}
			}
			changed[c] = v
		}
	}
	return changed
}

func columns(row ovsdb.Row) string { return strings.Join(slices.Sorted(maps.Keys(row)), ", ") }

func membership(column string, added, gone []ovsdb.Atom) []ovsdb.Mutation {
	var all []ovsdb.Mutation
	if len(gone) > 0 {
		all = append(all, ovsdb.Mutation{Column: column, Mutator: "delete", Value: ovsdb.Set(gone...)})
	}
	if len(added) > 0 {
		all = append(all, ovsdb.Mutation{Column: column, Mutator: "insert", Value: ovsdb.Set(added...)})
	}
	return all
}

// commit adds what every transaction of ours ends with: the root's bridges, the
// number by which ovs-vswitchd says what it has taken up, and reading it back.
func (p *plan) commit(made, gone []ovsdb.Atom) {
	root, row := rootOf(p.s)
	if row == nil {
		p.do("the root", ovsdb.Insert(tableRoot, "root", ovsdb.Row{"bridges": ovsdb.Set(made...), "next_cfg": ovsdb.Set(ovsdb.Integer(1))}))
		p.do("the root", ovsdb.Select(tableRoot, []string{"next_cfg"}))
		return
	}
	mutations := append(membership("bridges", made, gone), ovsdb.Mutation{Column: "next_cfg", Mutator: "+=", Value: ovsdb.Set(ovsdb.Integer(1))})
	p.do("the root", ovsdb.Mutate(tableRoot, mutations, ovsdb.Is(root)))
	p.do("the root", ovsdb.Select(tableRoot, []string{"next_cfg"}, ovsdb.Is(root)))
}

// explain names what the refused operation was for.
func (p *plan) explain(err error) error {
	var op *ovsdb.OpError
	if errors.As(err, &op) && op.Index < len(p.about) && op.Op != "transact" {
		return fmt.Errorf("change the database of Open vSwitch for %s: %w", p.about[op.Index], err)
	}
	return fmt.Errorf("change the database of Open vSwitch: %w", err)
}
