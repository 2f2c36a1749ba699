package switchdb

import (
	"context"
	"fmt"

	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb"
)

// Configure sets a key of the whole Open vSwitch's other_config (ovs-vswitchd.conf.db(5)),
// or removes it if value is empty: "flow-restore-wait" around a planned restart,
// "n-handler-threads", …. Other keys stay as they are. It does not wait for
// ovs-vswitchd: while flow-restore-wait is true that says nothing of being done.
func (d *DB) Configure(ctx context.Context, key, value string) error {
	s, err := d.client.Await(ctx, func(s *ovsdb.Snapshot) bool { return len(s.Rows(tableRoot)) > 0 })
	if err != nil {
		return fmt.Errorf("configure %s of Open vSwitch: %w", key, err)
	}
	root, row := rootOf(s)
	if old, there := row["other_config"].At(key); there == (value != "") && old.Text() == value {
		return nil
	}
	mutations := []ovsdb.Mutation{{Column: "other_config", Mutator: "delete", Value: ovsdb.Strings(key)}}
	if value != "" {
		mutations = append(mutations, ovsdb.Mutation{Column: "other_config", Mutator: "insert", Value: ovsdb.Map(map[string]string{key: value})})
	}
	mutations = append(mutations, ovsdb.Mutation{Column: "next_cfg", Mutator: "+=", Value: ovsdb.Set(ovsdb.Integer(1))})
	if _, err := d.client.Transact(ctx, ovsdb.Mutate(tableRoot, mutations, ovsdb.Is(root))); err != nil {
		return fmt.Errorf("configure %s of Open vSwitch: %w", key, err)
	}
	return nil
}
