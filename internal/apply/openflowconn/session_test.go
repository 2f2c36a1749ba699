package openflowconn

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/openflow"
)

// header makes a message of a switch.
func header(typ uint8, xid uint32, body ...byte) []byte {
	b := []byte{openflow.Version, typ, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(body)))
	binary.BigEndian.PutUint32(b[4:], xid)
	return append(b, body...)
}

// fakeSwitch answers one connection after the other: the n-th with answer n, the rest
// with the last one. An answer of nil closes the connection.
func fakeSwitch(t *testing.T, answers ...func(request []byte) []byte) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "of")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for n := 0; ; n++ {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			answer := answers[min(n, len(answers)-1)]
			running.Go(func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					request, err := next(r)
					if err != nil {
						return
					}
					reply := answer(request)
					if reply == nil {
						return
					}
					if _, err := c.Write(reply); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { listener.Close(); running.Wait(); os.RemoveAll(dir) })
	return path
}

// polite is a switch that knows everything but flow monitors.
func polite(request []byte) []byte {
	xid := binary.BigEndian.Uint32(request[4:])
	switch request[1] {
	case openflow.TypeHello:
		return openflow.AppendHello(nil, xid)
	case openflow.TypeFeaturesRequest:
		return header(openflow.TypeFeaturesReply, xid, 0, 0, 0, 0, 0, 0, 0, 42, 0, 0, 0, 0, 254, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	case openflow.TypeMultipartRequest:
		return header(openflow.TypeError, xid, append([]byte{0, 1, 0, 2}, request...)...)
	case openflow.TypeBarrierRequest:
		return header(openflow.TypeBarrierReply, xid)
	case openflow.TypeEchoRequest:
		return header(openflow.TypeEchoReply, xid, request[8:]...)
	}
	return []byte{}
}

func start(t *testing.T, c Config) *Conn {
	t.Helper()
	conn := New(c)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = conn.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return conn
}

func TestHandshake(t *testing.T) {
	c := start(t, Config{Socket: fakeSwitch(t, polite)})
	s, err := c.Await(t.Context())
	if err != nil || s.Watching || s.DatapathID != 42 || s.Connection != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
	if err := c.Barrier(t.Context()); err != nil {
		t.Error(err)
	}
	var said openflow.Error
	if _, err := c.Groups(t.Context()); !errors.As(err, &said) {
		t.Errorf("a refused listing says %v", err)
	}
}

// TestEcho holds that the switch's probes are answered, and that unasked messages do no
// harm.
func TestEcho(t *testing.T) {
	answered := make(chan []byte, 10)
	c := start(t, Config{Socket: fakeSwitch(t, func(request []byte) []byte {
		if request[1] == openflow.TypeEchoReply {
			answered <- request
		}
		reply := polite(request)
		if request[1] == openflow.TypeBarrierRequest {
			probe := header(openflow.TypeEchoRequest, 77, 'h', 'i')
			reply = append(append(probe, header(openflow.TypePacketIn, 5, 1, 2)...), reply...)
		}
		return reply
	})})
	if _, err := c.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(header(openflow.TypeEchoReply, 77, 'h', 'i'), <-answered); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := c.Barrier(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestBadSwitch holds that a switch that says what it may not costs a connection and
// nothing more.
func TestBadSwitch(t *testing.T) {
	for _, test := range []struct {
		name string
		bad  func(request []byte) []byte
		want string
	}{
		{"closes", func([]byte) []byte { return nil }, "EOF"},
		{"silent", func([]byte) []byte { return []byte{} }, "says nothing"},
		{"garbage", func([]byte) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, "says nothing"},
		{"old", func(r []byte) []byte { return header(openflow.TypeHello, 1, 0, 1, 0, 8, 0, 0, 0, 0x12) }, "OpenFlow 1.5"},
		{"short", func([]byte) []byte { return []byte{6, 0, 0, 3, 0, 0, 0, 0} }, "shorter than its header"},
		{"short flow update", func(r []byte) []byte {
			return append(polite(r), header(openflow.TypeMultipartReply, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1)...)
		}, "flow monitor"},
		{"asks only", func(r []byte) []byte {
			return bytes.Repeat(header(openflow.TypeEchoRequest, 1), 4)
		}, "says nothing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := start(t, Config{Socket: fakeSwitch(t, test.bad, polite), Probe: 200 * time.Millisecond})
			for {
				s, changed := c.State()
				if s.Err != nil {
					if !strings.Contains(s.Err.Error(), test.want) {
						t.Errorf("want %q, got %v", test.want, s.Err)
					}
					break
				}
				<-changed
			}
			if s, err := c.Await(t.Context()); err != nil || s.Connection < 2 {
				t.Errorf("got %+v, %v", s, err)
			}
		})
	}
}

func FuzzFlowUpdates(f *testing.F) {
	f.Add([]byte{0, 8, 0, 4, 0, 0, 0, 1})
	f.Add(append([]byte{0, 32, 0, 2}, make([]byte, 28)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ours, foreign, err := countTouched(b, Owned{}); err == nil && ours+foreign > uint64(len(b)/updateFull) {
			t.Fatalf("%d and %d flows in %d bytes", ours, foreign, len(b))
		}
	})
}

// TestDiff holds that doing what Diff says leads from any rules to any other, meets no
// foreign flow, and comes to rest.
func TestDiff(t *testing.T) {
	owned := Owned{Cookie: 0xf0, Mask: 0xf0}
	flow := rapid.Custom(func(t *rapid.T) openflow.Flow {
		f := openflow.Flow{
			Table: uint8(rapid.IntRange(0, 1).Draw(t, "table")), Priority: uint16(rapid.IntRange(1, 2).Draw(t, "priority")),
			Cookie: 0xf0 | rapid.Uint64Range(0, 1).Draw(t, "cookie"), IdleTimeout: uint16(rapid.IntRange(0, 1).Draw(t, "idle")),
			Match: openflow.NewMatch(openflow.Eq(openflow.Reg0, rapid.Uint64Range(0, 2).Draw(t, "reg"))),
		}
		if rapid.Bool().Draw(t, "output") {
			f.Actions = []openflow.Action{openflow.Output{Port: 1}}
		}
		return f
	})
	set := rapid.Map(rapid.SliceOfN(flow, 0, 12), func(flows []openflow.Flow) map[openflow.Key]openflow.Flow {
		byKey := map[openflow.Key]openflow.Flow{}
		for _, f := range flows {
			byKey[f.Key()] = f
		}
		return byKey
	})
	list := func(m map[openflow.Key]openflow.Flow) []openflow.Flow {
		var all []openflow.Flow
		for _, f := range m {
			if owned.flow(f.Cookie) {
				all = append(all, f)
			}
		}
		return all
	}
	rapid.Check(t, func(t *rapid.T) {
		table, want := set.Draw(t, "installed"), set.Draw(t, "desired")
		foreign := openflow.Flow{Table: 9, Cookie: 1}
		installed := list(table)
		table[foreign.Key()] = foreign
		deleting := false
		for _, m := range Diff(Rules{Flows: installed}, Rules{Flows: list(want)}).Flows {
			key := m.Flow.Key()
			if m.CookieMask == ^uint64(0) {
				t.Fatalf("for %v Open vSwitch walks all flows with the cookie", m)
			}
			switch m.Command {
			case openflow.FlowAdd:
				table[key] = m.Flow
			case openflow.FlowModifyStrict:
				old := table[key]
				old.Actions = m.Flow.Actions
				table[key] = old
			case openflow.FlowDeleteStrict:
				deleting = true
				if table[key].Cookie&m.CookieMask == m.Flow.Cookie&m.CookieMask {
					delete(table, key)
				}
			}
			if deleting && m.Command != openflow.FlowDeleteStrict {
				t.Fatal("an addition comes after a deletion")
			}
		}
		if _, ok := table[foreign.Key()]; !ok || len(table) != len(want)+1 {
			t.Fatalf("the table holds %d flows, want %d and a foreign one", len(table), len(want))
		}
		if rest := Diff(Rules{Flows: list(table)}, Rules{Flows: list(want)}); !rest.Empty() {
			t.Fatalf("this is left: %+v", rest)
		}
	})
}
