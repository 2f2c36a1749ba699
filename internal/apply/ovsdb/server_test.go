package ovsdb_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

const (
	root      = "Open_vSwitch"
	patience  = 20 * time.Second
	testProbe = 2 * time.Second
)

var watch = map[string][]string{
	root:        {"bridges", "external_ids", "next_cfg", "cur_cfg"},
	"Bridge":    {"name", "ports", "external_ids", "fail_mode", "protocols"},
	"Port":      {"name", "interfaces"},
	"Interface": {"name", "type", "ofport", "error"},
}

func config(o *ovstest.OVS) ovsdb.Config {
	return ovsdb.Config{Socket: o.Host.Database(), Database: root, Watch: watch, Probe: testProbe}
}

func run(t *testing.T, c ovsdb.Config) *ovsdb.Client {
	t.Helper()
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	client := ovsdb.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := client.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return client
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func await(t *testing.T, c *ovsdb.Client, condition func(*ovsdb.Snapshot) bool) *ovsdb.Snapshot {
	t.Helper()
	s, err := c.Await(patient(t), condition)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func anything(*ovsdb.Snapshot) bool { return true }

// awaitLost waits until the connection is lost and returns why.
func awaitLost(t *testing.T, c *ovsdb.Client) error {
	t.Helper()
	for ctx := patient(t); ; {
		s, changed := c.Snapshot()
		if !s.Synced && s.Err != nil {
			return s.Err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the connection is not lost")
		}
	}
}

func bridgeNamed(name string) func(*ovsdb.Snapshot) bool {
	return func(s *ovsdb.Snapshot) bool {
		_, row := s.Find("Bridge", "name", ovsdb.Set(ovsdb.String(name)))
		return row != nil
	}
}

// insertBridge makes a bridge that ovs-vswitchd does not mind: without ports.
func insertBridge(t *testing.T, c *ovsdb.Client, name string) ovsdb.UUID {
	t.Helper()
	s := await(t, c, func(s *ovsdb.Snapshot) bool { return len(s.Rows(root)) == 1 })
	var u ovsdb.UUID
	for u = range s.Rows(root) {
		break
	}
	results, err := c.Transact(patient(t),
		ovsdb.Insert("Bridge", "b", ovsdb.Row{
			"name": ovsdb.Set(ovsdb.String(name)), "fail_mode": ovsdb.Strings("secure"),
			"external_ids": ovsdb.Map(map[string]string{"a": "1", "b": "2"}),
		}),
		ovsdb.Mutate(root, []ovsdb.Mutation{{Column: "bridges", Mutator: "insert", Value: ovsdb.Set(ovsdb.Named("b"))}}, ovsdb.Is(u)))
	if err != nil {
		t.Fatal(err)
	}
	if results[0].UUID == "" || results[1].Count != 1 {
		t.Fatalf("results are %+v", results)
	}
	return results[0].UUID
}

func TestTransactAndMonitor(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	o.Run("ovs-vsctl", "--no-wait", "init")
	c := run(t, config(o))
	u := insertBridge(t, c, "br-a")
	// The answer comes with its effects.
	s, _ := c.Snapshot()
	if s.Row("Bridge", u) == nil {
		t.Fatal("the answer was there before its effect")
	}
	if got := o.Run("ovs-vsctl", "get", "Bridge", "br-a", "external_ids"); got != "{a=\"1\", b=\"2\"}\n" {
		t.Errorf("ovs-vsctl reads %q", got)
	}
	// Differences of maps, sets and optional columns, as ovs-vsctl makes them.
	o.Run("ovs-vsctl", "--no-wait", "set", "Bridge", "br-a", "external_ids:a=3", "external_ids:c=4", "protocols=OpenFlow13,OpenFlow15",
		"--", "remove", "Bridge", "br-a", "external_ids", "b", "--", "clear", "Bridge", "br-a", "fail_mode")
	want := ovsdb.Row{
		"name": ovsdb.Strings("br-a"), "ports": ovsdb.Value{}, "fail_mode": ovsdb.Value{},
		"external_ids": ovsdb.Map(map[string]string{"a": "3", "c": "4"}), "protocols": ovsdb.Strings("OpenFlow13", "OpenFlow15"),
	}
	equal := func(s *ovsdb.Snapshot) bool {
		row := s.Row("Bridge", u)
		for column, v := range want {
			if !row[column].Equal(v) {
				return false
			}
		}
		return len(row) == len(want)
	}
	await(t, c, equal)
	o.Run("ovs-vsctl", "--no-wait", "set", "Bridge", "br-a", "protocols=OpenFlow15")
	want["protocols"] = ovsdb.Strings("OpenFlow15")
	await(t, c, equal)
	// What was read before does not change.
	if row := s.Row("Bridge", u); !row["external_ids"].Equal(ovsdb.Map(map[string]string{"a": "1", "b": "2"})) {
		t.Errorf("an old snapshot changed to %v", row)
	}
	rows, err := c.Transact(patient(t), ovsdb.Select("Bridge", []string{"name"}))
	if err != nil || len(rows[0].Rows) != 1 || rows[0].Rows[0]["name"].Atom().Text() != "br-a" {
		t.Errorf("select gives %+v, %v", rows, err)
	}
	o.Run("ovs-vsctl", "--no-wait", "del-br", "br-a")
	await(t, c, func(s *ovsdb.Snapshot) bool { return len(s.Rows("Bridge")) == 0 })
}

func TestRefusals(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	o.Run("ovs-vsctl", "--no-wait", "init")
	c := run(t, config(o))
	u := insertBridge(t, c, "br-a")
	name := ovsdb.Row{"name": ovsdb.Strings("other")}
	for _, test := range []struct {
		name  string
		ops   []ovsdb.Operation
		index int
		kind  string
	}{
		{"wait", []ovsdb.Operation{ovsdb.Comment("x"), ovsdb.Wait("Bridge", 0, []string{"name"}, true, []ovsdb.Row{name}, ovsdb.Is(u))}, 1, ovsdb.TimedOut},
		{"immutable", []ovsdb.Operation{ovsdb.Update("Bridge", name, ovsdb.Is(u))}, 0, ovsdb.ConstraintViolation},
		{"commit", []ovsdb.Operation{ovsdb.Insert(root, "", ovsdb.Row{})}, 1, ovsdb.ConstraintViolation},
		{"syntax", []ovsdb.Operation{ovsdb.Delete("Nothing")}, 0, "syntax error"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := c.Transact(patient(t), test.ops...)
			var op *ovsdb.OpError
			if !errors.As(err, &op) || op.Index != test.index || op.Kind != test.kind || !ovsdb.Refused(err, test.kind) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := c.Transact(patient(t), ovsdb.Update("Bridge", ovsdb.Row{"name": ovsdb.Set(ovsdb.Atom{})})); err == nil {
		t.Error("an atom without value was sent")
	}
	// A caller that gives up does not stay in the server.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Transact(ctx, ovsdb.Wait("Bridge", time.Hour, []string{"name"}, true, []ovsdb.Row{name}, ovsdb.Is(u)))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("giving up says %v", err)
	}
	if _, err := c.Transact(patient(t), ovsdb.Comment("still there")); err != nil {
		t.Error(err)
	}
}

func TestTwoWriters(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	o.Run("ovs-vsctl", "--no-wait", "init")
	a, b := run(t, config(o)), run(t, config(o))
	const each = 40
	var writers sync.WaitGroup
	for _, c := range []*ovsdb.Client{a, b} {
		ctx := patient(t)
		for range 4 {
			writers.Go(func() {
				for range each {
					_, err := c.Transact(ctx, ovsdb.Mutate(root, []ovsdb.Mutation{{Column: "next_cfg", Mutator: "+=", Value: ovsdb.Set(ovsdb.Integer(1))}}))
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	writers.Wait()
	for _, c := range []*ovsdb.Client{a, b} {
		await(t, c, func(s *ovsdb.Snapshot) bool {
			for _, row := range s.Rows(root) {
				return row["next_cfg"].Atom().Int() == 8*each
			}
			return false
		})
	}
}

func TestServerFaults(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	o.Run("ovs-vsctl", "--no-wait", "init")
	c := run(t, config(o))
	insertBridge(t, c, "br-a")

	t.Run("killed", func(t *testing.T) {
		before := await(t, c, anything)
		o.Server.Kill()
		awaitLost(t, c)
		if s, _ := c.Snapshot(); len(s.Rows("Bridge")) != 0 {
			t.Error("the replica outlives its connection")
		}
		if _, err := c.Transact(patient(t), ovsdb.Comment("x")); !errors.Is(err, ovsdb.ErrDisconnected) {
			t.Errorf("a transaction without a server says %v", err)
		}
		o.Server.Start()
		if after := await(t, c, bridgeNamed("br-a")); after.Connection <= before.Connection {
			t.Error("it is the same connection")
		}
	})
	t.Run("frozen", func(t *testing.T) {
		await(t, c, anything)
		began := time.Now()
		o.Server.Signal(syscall.SIGSTOP)
		_, err := c.Transact(patient(t), ovsdb.Comment("x"))
		noticed := time.Since(began)
		o.Server.Signal(syscall.SIGCONT)
		if !errors.Is(err, ovsdb.ErrUncertain) {
			t.Errorf("a transaction of a frozen server says %v", err)
		}
		if noticed > 2*testProbe {
			t.Errorf("noticed after %s", noticed)
		}
		await(t, c, bridgeNamed("br-a"))
	})
	t.Run("wiped", func(t *testing.T) {
		o.Wipe()
		await(t, c, func(s *ovsdb.Snapshot) bool { return len(s.Rows("Bridge")) == 0 })
	})
	t.Run("schema", func(t *testing.T) {
		lacking := config(o)
		lacking.Need = map[string][]string{"Interface": {"name", "warp"}, "Hyperspace": {"x"}}
		err := awaitLost(t, run(t, lacking))
		var schema *ovsdb.SchemaError
		if !errors.As(err, &schema) || fmt.Sprint(schema.Missing) != "[Hyperspace Interface.warp]" || schema.Version == "" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("other database", func(t *testing.T) {
		other := config(o)
		other.Database = "Hyperspace"
		if err := awaitLost(t, run(t, other)); !strings.Contains(err.Error(), "Hyperspace") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("too large", func(t *testing.T) {
		small := config(o)
		small.MaxMessage = 1000
		if err := awaitLost(t, run(t, small)); !strings.Contains(err.Error(), "larger than the limit") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("too many rows", func(t *testing.T) {
		o.Run("ovs-vsctl", "--no-wait", "init")
		for i := range 3 {
			o.Run("ovs-vsctl", "--no-wait", "add-br", fmt.Sprintf("br%d", i))
		}
		few := config(o)
		few.MaxRows = 2
		if err := awaitLost(t, run(t, few)); !strings.Contains(err.Error(), "more than 2 rows") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no socket", func(t *testing.T) {
		none := config(o)
		none.Socket += ".none"
		err := awaitLost(t, run(t, none))
		if !strings.Contains(err.Error(), none.Socket) {
			t.Errorf("got %v", err)
		}
	})
}
