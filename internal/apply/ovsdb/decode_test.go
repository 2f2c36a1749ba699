package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/jsonrpc"
)

// What ovsdb-server 3.1.0 sent about the same four changes of a database to three
// kinds of monitor.
const (
	recordedSchema = `{"name":"Open_vSwitch","version":"8.3.1","cksum":"3012963480 26720","tables":{"Bridge":{"columns":{` +
		`"name":{"type":"string","mutable":false},` +
		`"fail_mode":{"type":{"key":{"type":"string","enum":["set",["standalone","secure"]]},"min":0,"max":1}},` +
		`"protocols":{"type":{"key":{"type":"string","enum":["set",["OpenFlow13","OpenFlow15"]]},"min":0,"max":"unlimited"}},` +
		`"external_ids":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}}},"indexes":[["name"]]}}}`

	recordedMonitor = `{"id":ID,"result":{"Bridge":{"a513b8ed-eba1-4ba1-b816-92e05c3b4b07":{"new":{"name":"br0","fail_mode":["set",[]],"external_ids":["map",[["a","1"]]],"protocols":["set",[]]}}}},"error":null}`
	recordedUpdate  = `{"id":null,"method":"update","params":["fairlead",{"Bridge":{"a513b8ed-eba1-4ba1-b816-92e05c3b4b07":{"new":{"name":"br0","fail_mode":"secure","external_ids":["map",[["a","2"],["b","3"]]],"protocols":["set",["OpenFlow13","OpenFlow15"]]},"old":{"fail_mode":["set",[]],"external_ids":["map",[["a","1"]]],"protocols":["set",[]]}}}}]}` +
		`{"id":null,"method":"update","params":["fairlead",{"Bridge":{"a513b8ed-eba1-4ba1-b816-92e05c3b4b07":{"new":{"name":"br0","fail_mode":["set",[]],"external_ids":["map",[["a","2"]]],"protocols":"OpenFlow15"},"old":{"fail_mode":"secure","external_ids":["map",[["a","2"],["b","3"]]],"protocols":["set",["OpenFlow13","OpenFlow15"]]}}}}]}` +
		`{"id":null,"method":"update","params":["fairlead",{"Bridge":{"1c56cf59-b6ca-4785-885b-bd555f8333d9":{"new":{"name":"br1","fail_mode":["set",[]],"external_ids":["map",[]],"protocols":["set",[]]}}}}]}` +
		`{"id":null,"method":"update","params":["fairlead",{"Bridge":{"a513b8ed-eba1-4ba1-b816-92e05c3b4b07":{"old":{"name":"br0","fail_mode":["set",[]],"external_ids":["map",[["a","2"]]],"protocols":"OpenFlow15"}}}}]}`

	recordedMonitorCond = `{"id":ID,"result":{"Bridge":{"a513b8ed-eba1-4ba1-b816-92e05c3b4b07":{"initial":{"external_ids":["map",[["a","1"]]],"name":"br0"}}}},"error":null}`
	recordedUpdate2     = `{"id":null,"method":"update2","params":["fairlead",{"Bridge":{"a513b8ed-eba1-4ba1-b816-92e05c3b4b07":{"modify":{"external_ids":["map",[["a","2"],["b","3"]]],"fail_mode":"secure","protocols":["set",["OpenFlow13","OpenFlow15"]]}}}}]}` +
		`{"id":null,"method":"update2","params":["fairlead",{"Bridge":{"a513b8ed-eba1-4ba1-b816-92e05c3b4b07":{"modify":{"external_ids":["map",[["b","3"]]],"fail_mode":["set",[]],"protocols":"OpenFlow13"}}}}]}` +
		`{"id":null,"method":"update2","params":["fairlead",{"Bridge":{"1c56cf59-b6ca-4785-885b-bd555f8333d9":{"insert":{"name":"br1"}}}}]}` +
		`{"id":null,"method":"update2","params":["fairlead",{"Bridge":{"a513b8ed-eba1-4ba1-b816-92e05c3b4b07":{"delete":null}}}]}`

	recordedSince   = `{"id":ID,"result":[false,"00000000-0000-0000-0000-000000000000",{"Bridge":{"a513b8ed-eba1-4ba1-b816-92e05c3b4b07":{"initial":{"external_ids":["map",[["a","1"]]],"name":"br0"}}}}],"error":null}`
	recordedUnknown = `{"id":ID,"error":"unknown method"}`
)

var recordedUpdate3 = strings.NewReplacer(`"update2"`, `"update3"`, `["fairlead",`, `["fairlead","00000000-0000-0000-0000-000000000000",`).Replace(recordedUpdate2)

var bridgeColumns = map[string][]string{"Bridge": {"external_ids", "fail_mode", "name", "protocols"}}

func row(name string, ids map[string]string, failMode Value, protocols ...string) Row {
	return Row{"name": Strings(name), "external_ids": Map(ids), "fail_mode": failMode, "protocols": Strings(protocols...)}
}

// server answers a client with recorded text.
type server struct {
	t       *testing.T
	path    string
	answers map[string]string
	// after is sent one message at a time, each after a transaction of the test.
	after []string
	// heard gets what the client says that is no request.
	heard chan jsonrpc.Message
}

func (s *server) start() {
	dir, err := os.MkdirTemp("", "ovsdb")
	if err != nil {
		s.t.Fatal(err)
	}
	s.path = filepath.Join(dir, "s")
	listener, err := net.Listen("unix", s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			s.serve(c)
		}
	})
	s.t.Cleanup(func() { listener.Close(); running.Wait(); os.RemoveAll(dir) })
}

func (s *server) serve(c net.Conn) {
	defer c.Close()
	for r := jsonrpc.NewReader(c, 1<<20); ; {
		frame, err := r.Next()
		if err != nil {
			return
		}
		m, err := jsonrpc.Decode(frame)
		if err != nil {
			s.t.Error(err)
			return
		}
		answer, ok := s.answers[m.Method]
		if m.Method == "transact" && len(s.after) > 0 {
			answer, s.after = s.after[0]+`{"id":ID,"result":[{}],"error":null}`, s.after[1:]
		} else if !ok {
			s.heard <- m
			continue
		}
		if _, err := io.WriteString(c, strings.ReplaceAll(answer, "ID", string(m.ID))); err != nil {
			return
		}
	}
}

func start(t *testing.T, c Config) *Client {
	client := New(c)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = client.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return client
}

// TestMonitors holds that the three kinds of monitor, of which a server knows the
// first, the second or only the third, make the same replica.
func TestMonitors(t *testing.T) {
	const a, b = UUID("a513b8ed-eba1-4ba1-b816-92e05c3b4b07"), UUID("1c56cf59-b6ca-4785-885b-bd555f8333d9")
	second := row("br1", nil, Value{})
	last := row("br0", map[string]string{"a": "2"}, Value{}, "OpenFlow15")
	want := []map[UUID]Row{
		{a: row("br0", map[string]string{"a": "1"}, Value{})},
		{a: row("br0", map[string]string{"a": "2", "b": "3"}, Strings("secure"), "OpenFlow13", "OpenFlow15")},
		{a: last},
		{a: last, b: second},
		{b: second},
	}
	for _, test := range []struct {
		name    string
		answers map[string]string
		updates string
	}{
		{"monitor_cond_since", map[string]string{"monitor_cond_since": recordedSince}, recordedUpdate3},
		{"monitor_cond", map[string]string{"monitor_cond_since": recordedUnknown, "monitor_cond": recordedMonitorCond}, recordedUpdate2},
		{"monitor", map[string]string{"monitor_cond_since": recordedUnknown, "monitor_cond": recordedUnknown, "monitor": recordedMonitor}, recordedUpdate},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.answers["get_schema"] = `{"id":ID,"error":null,"result":` + recordedSchema + `}`
			s := &server{t: t, answers: test.answers, heard: make(chan jsonrpc.Message, 10)}
			for r := jsonrpc.NewReader(strings.NewReader(test.updates), 1<<20); ; {
				frame, err := r.Next()
				if err != nil {
					break
				}
				s.after = append(s.after, string(frame))
			}
			s.start()
			c := start(t, Config{Socket: s.path, Database: "Open_vSwitch", Watch: bridgeColumns})
			snapshot, err := c.Await(t.Context(), func(*Snapshot) bool { return true })
			for i := range want {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want[i], snapshot.Rows("Bridge")); diff != "" {
					t.Fatalf("step %d (-want +got)\n%s", i, diff)
				}
				if i+1 < len(want) {
					_, err = c.Transact(t.Context(), Comment("next"))
					snapshot, _ = c.Snapshot()
				}
			}
			if snapshot.Version != "8.3.1" {
				t.Errorf("the schema's version is %q", snapshot.Version)
			}
		})
	}
}

// TestEcho holds that the client answers the server's probes and sends its own.
func TestEcho(t *testing.T) {
	s := &server{
		t: t, heard: make(chan jsonrpc.Message, 100), after: []string{`{"id":"echo","method":"echo","params":[7]}`},
		answers: map[string]string{"get_schema": `{"id":ID,"error":null,"result":` + recordedSchema + `}`, "monitor_cond_since": recordedSince},
	}
	s.start()
	c := start(t, Config{Socket: s.path, Database: "Open_vSwitch", Watch: bridgeColumns, Probe: time.Second})
	if _, err := c.Await(t.Context(), func(*Snapshot) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Transact(t.Context(), Comment("next")); err != nil {
		t.Fatal(err)
	}
	if m := <-s.heard; string(m.ID) != `"echo"` || string(m.Result) != "[7]" {
		t.Errorf("the server's echo was answered by %+v", m)
	}
	if m := <-s.heard; m.Method != "echo" {
		t.Errorf("want an echo, got %+v", m)
	}
	// This server does not answer it.
	for {
		snapshot, changed := c.Snapshot()
		if errors.Is(snapshot.Err, errSilent) {
			break
		}
		<-changed
	}
}

func TestValuesRoundTrip(t *testing.T) {
	atom := rapid.OneOf(
		rapid.Map(rapid.String(), String), rapid.Map(rapid.Int64(), Integer), rapid.Map(rapid.Bool(), Boolean),
		rapid.Map(rapid.Float64Range(0.1, 0.9), Real),
		rapid.Map(rapid.StringMatching(`[0-9a-f]{8}`), func(s string) Atom { return Ref(UUID(s)) }),
		rapid.Map(rapid.StringMatching(`[a-z]+`), Named))
	value := rapid.OneOf(
		rapid.Map(rapid.SliceOf(atom), func(a []Atom) Value { return Set(a...) }),
		rapid.Map(rapid.MapOf(rapid.String(), rapid.String()), Map))
	rapid.Check(t, func(t *rapid.T) {
		want := value.Draw(t, "value")
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Value
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if !want.Equal(got) || want.IsMap() != got.IsMap() {
			t.Fatalf("%v became %s became %v", want, b, got)
		}
	})
}

// TestPatch holds that the difference of two values, made as the server makes it,
// leads from one to the other.
func TestPatch(t *testing.T) {
	maps := rapid.MapOf(rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.SampledFrom([]string{"1", "2"}))
	rapid.Check(t, func(t *rapid.T) {
		from, to := maps.Draw(t, "from"), maps.Draw(t, "to")
		diff := map[string]string{}
		for k, v := range from {
			if _, ok := to[k]; !ok {
				diff[k] = v
			}
		}
		for k, v := range to {
			if from[k] != v {
				diff[k] = v
			}
		}
		if got := patch(Map(from), Map(diff)); !got.Equal(Map(to)) {
			t.Fatalf("%v with %v became %v", from, diff, got)
		}
	})
}

// FuzzMessage holds that whatever a server sends gives an error or a replica whose
// rows are whole, and no panic.
func FuzzMessage(f *testing.F) {
	schema, err := decodeSchema([]byte(recordedSchema))
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{recordedUpdate, recordedUpdate2, recordedUpdate3, recordedSchema, strings.ReplaceAll(recordedSince, "ID", "1"), `{"id":1,"result":[{"uuid":["uuid","a"]},null,{"error":"timed out","details":"x"}]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		s := &session{client: New(Config{}), replica: newReplica(schema, bridgeColumns, 3)}
		for r := jsonrpc.NewReader(strings.NewReader(string(stream)), 1<<20); ; {
			frame, err := r.Next()
			if err != nil {
				break
			}
			_, _ = decodeSchema(frame)
			m, err := jsonrpc.Decode(frame)
			if err != nil || m.Method == "echo" {
				continue
			}
			_ = answerOf([]Operation{Comment(""), Delete("Bridge"), Delete("Bridge")}, m)
			if s.notified(m) != nil {
				continue
			}
		}
		if n := len(s.replica.tables["Bridge"]); n > 3 || n != s.replica.rows {
			t.Fatalf("%d rows, counted %d", n, s.replica.rows)
		}
		for u, row := range s.replica.tables["Bridge"] {
			if len(row) != len(bridgeColumns["Bridge"]) {
				t.Fatalf("row %s is %v", u, row)
			}
		}
	})
}
