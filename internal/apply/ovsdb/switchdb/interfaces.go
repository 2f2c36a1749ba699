package switchdb

import (
	"context"
	"fmt"

	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb"
)

// Interface is what ovs-vswitchd says of an interface.
type Interface struct {
	Name, Type string
	// OFPort is its OpenFlow number, 0 if it has none; Error says why.
	OFPort uint32
	Error  string
	// AdminState and LinkState are "up", "down" or "" if unknown.
	AdminState, LinkState string
	// MTU is in bytes, 0 if unknown.
	MTU int64
	// Statistics by name (ovs-vswitchd.conf.db(5)): rx_packets, tx_dropped, …. They are
	// some seconds old.
	Statistics map[string]int64
}

// Interfaces reads the interfaces of the names; one that is not there is left out.
func (d *DB) Interfaces(ctx context.Context, names ...string) ([]Interface, error) {
	columns := []string{"name", "type", "ofport", "error", "admin_state", "link_state", "mtu", "statistics"}
	ops := make([]ovsdb.Operation, len(names))
	for i, name := range names {
		ops[i] = ovsdb.Select(tableInterface, columns, ovsdb.Equals("name", ovsdb.Strings(name)))
	}
	results, err := d.client.Transact(ctx, ops...)
	if err != nil {
		return nil, fmt.Errorf("read interfaces of Open vSwitch: %w", err)
	}
	var all []Interface
	for _, r := range results {
		for _, row := range r.Rows {
			all = append(all, interfaceOf(row))
		}
	}
	return all, nil
}

func interfaceOf(row ovsdb.Row) Interface {
	text := func(column string) string { return row[column].Atom().Text() }
	i := Interface{
		Name: text("name"), Type: text("type"), Error: text("error"), AdminState: text("admin_state"), LinkState: text("link_state"),
		MTU: integer(row["mtu"]), Statistics: map[string]int64{},
	}
	if n := integer(row["ofport"]); n > 0 {
		i.OFPort = uint32(n)
	}
	statistics := row["statistics"]
	for n, k := range statistics.Keys {
		if n < len(statistics.Values) {
			i.Statistics[k.Text()] = statistics.Values[n].Int()
		}
	}
	return i
}
