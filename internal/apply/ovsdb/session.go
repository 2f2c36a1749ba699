package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/jsonrpc"
)

// errSilent says that the server did not answer a probe.
var errSilent = errors.New("the OVSDB server says nothing")

const (
	monitorName = "fairlead"
	noTxn       = "00000000-0000-0000-0000-000000000000"
)

// session is one connection, owned by the goroutine of Run but for read.
type session struct {
	client *Client
	number uint64
	conn   net.Conn
	frames chan []byte
	broken chan error
	stop   chan struct{}

	lastID  uint64
	pending map[uint64]*request
	replica *replica
	version string
	// heard is when something arrived last; asked, whether an echo is under way.
	heard time.Time
	asked bool
	// dirty says that the replica is newer than the Snapshot.
	dirty bool
}

// serve checks the schema, starts the monitor and then works until something breaks.
func (s *session) serve(ctx context.Context) error {
	s.heard = time.Now()
	schema, err := s.schema(ctx)
	if err != nil {
		return err
	}
	s.version = schema.Version
	s.replica = newReplica(schema, s.client.config.Watch, s.client.config.MaxRows)
	if err := s.monitor(ctx); err != nil {
		return err
	}
	s.publish()
	s.client.config.Logger.Info("connected to the OVSDB server", "socket", s.client.config.Socket, "schema", s.version)
	return s.work(ctx)
}

func (s *session) publish() {
	s.client.publish(&Snapshot{Synced: true, Connection: s.number, Version: s.version, tables: s.replica.publish()})
	s.dirty = false
}

// work is the loop of a connection that is synced.
func (s *session) work(ctx context.Context) error {
	probe := time.NewTicker(max(s.client.config.Probe/8, time.Millisecond))
	defer probe.Stop()
	for {
		requests := s.client.requests
		if len(s.pending) >= maxPending {
			requests = nil
		}
		select {
		case frame := <-s.frames:
			if err := s.receive(frame); err != nil {
				return err
			}
		case r := <-requests:
			if err := s.send(r); err != nil {
				return err
			}
		case <-probe.C:
			if err := s.probe(); err != nil {
				return err
			}
		case err := <-s.broken:
			return err
		case <-ctx.Done():
			return ErrClosed
		}
	}
}

// probe asks a silent server and gives up on one that stays silent. It also forgets
// the transactions whose callers did.
func (s *session) probe() error {
	for id, r := range s.pending {
		if r.ctx.Err() == nil {
			continue
		}
		delete(s.pending, id)
		b, err := jsonrpc.Notification("cancel", id)
		if err == nil {
			err = s.write(b)
		}
		if err != nil {
			return err
		}
	}
	idle := time.Since(s.heard)
	if idle >= s.client.config.Probe {
		return fmt.Errorf("%w for %s", errSilent, s.client.config.Probe)
	}
	if idle < s.client.config.Probe/2 || s.asked {
		return nil
	}
	s.asked = true
	_, err := s.request("echo")
	return err
}

// request writes a request and returns its id.
func (s *session) request(method string, params ...any) (uint64, error) {
	s.lastID++
	b, err := jsonrpc.Request(s.lastID, method, params...)
	if err != nil {
		return 0, err
	}
	return s.lastID, s.write(b)
}

func (s *session) write(b []byte) error {
	// A frozen server's socket fills up: a write that does not end is a silent server.
	if err := s.conn.SetWriteDeadline(time.Now().Add(s.client.config.Probe)); err != nil {
		return fmt.Errorf("write to the OVSDB server: %w", err)
	}
	if _, err := s.conn.Write(b); err != nil {
		return fmt.Errorf("write to the OVSDB server: %w", err)
	}
	return nil
}

// send writes a transaction. What cannot be encoded is its caller's fault only.
func (s *session) send(r *request) error {
	if r.ctx.Err() != nil {
		return nil // its caller is gone
	}
	params := make([]any, 0, len(r.ops)+1)
	params = append(params, s.client.config.Database)
	for _, op := range r.ops {
		params = append(params, op)
	}
	s.lastID++
	b, err := jsonrpc.Request(s.lastID, "transact", params...)
	if err != nil {
		r.answer <- answer{err: err}
		return nil
	}
	s.pending[s.lastID] = r
	return s.write(b)
}

// receive takes a message, and all that wait behind it before the replica is
// published: so a burst is one Snapshot, and who gets an answer finds its effects.
func (s *session) receive(frame []byte) error {
	type reply struct {
		to *request
		answer
	}
	var replies []reply
	take := func(frame []byte) error {
		m, err := jsonrpc.Decode(frame)
		if err != nil {
			return err
		}
		s.heard, s.asked = time.Now(), false
		if m.Method != "" {
			return s.notified(m)
		}
		id, err := strconv.ParseUint(string(m.ID), 10, 64)
		r := s.pending[id]
		if err != nil || r == nil {
			return nil // an echo, or its caller has given up
		}
		delete(s.pending, id)
		replies = append(replies, reply{r, answerOf(r.ops, m)})
		return nil
	}
	err := take(frame)
	for more := true; more && err == nil; {
		select {
		case frame := <-s.frames:
			err = take(frame)
		default:
			more = false
		}
	}
	if err == nil && s.dirty {
		s.publish()
	}
	for _, r := range replies {
		r.to.answer <- r.answer
	}
	return err
}

func answerOf(ops []Operation, m jsonrpc.Message) answer {
	if !jsonrpc.Null(m.Error) {
		e := decodeServerError(m.Error)
		return answer{err: &OpError{Op: "transact", Kind: e.Kind, Details: e.Details}}
	}
	results, err := decodeResults(ops, m.Result)
	return answer{results: results, err: err}
}

// notified takes what the server says by itself.
func (s *session) notified(m jsonrpc.Message) error {
	switch m.Method {
	case "echo":
		b, err := jsonrpc.Response(m.ID, m.Params)
		if err != nil {
			return err
		}
		return s.write(b)
	case "update", "update2", "update3":
		return s.updated(m)
	case "monitor_canceled":
		return fmt.Errorf("the OVSDB server ended the monitor: the database is gone or was converted")
	}
	return nil // "locked", "stolen": we take no locks
}

func (s *session) updated(m jsonrpc.Message) error {
	var params []json.RawMessage
	want := 2
	if m.Method == "update3" {
		want = 3
	}
	if err := json.Unmarshal(m.Params, &params); err != nil || len(params) != want {
		return fmt.Errorf("%w: %s with other than %d parameters", jsonrpc.ErrSyntax, m.Method, want)
	}
	if s.replica == nil || string(params[0]) != `"`+monitorName+`"` {
		return nil
	}
	s.dirty = true
	if m.Method == "update" {
		return s.replica.update(params[1])
	}
	return s.replica.update2(params[want-1])
}

// call sends a request of the handshake and waits for its answer.
func (s *session) call(ctx context.Context, method string, params ...any) (json.RawMessage, error) {
	id, err := s.request(method, params...)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(s.client.config.Probe)
	defer timer.Stop()
	for {
		select {
		case frame := <-s.frames:
			m, err := jsonrpc.Decode(frame)
			if err != nil {
				return nil, err
			}
			s.heard = time.Now()
			if m.Method != "" {
				if err := s.notified(m); err != nil {
					return nil, err
				}
				continue
			}
			if string(m.ID) != strconv.FormatUint(id, 10) {
				continue
			}
			if !jsonrpc.Null(m.Error) {
				return nil, decodeServerError(m.Error)
			}
			return m.Result, nil
		case <-timer.C:
			return nil, fmt.Errorf("%s: %w for %s", method, errSilent, s.client.config.Probe)
		case err := <-s.broken:
			return nil, err
		case <-ctx.Done():
			return nil, ErrClosed
		}
	}
}

func (s *session) schema(ctx context.Context) (Schema, error) {
	b, err := s.call(ctx, "get_schema", s.client.config.Database)
	if err != nil {
		return Schema{}, fmt.Errorf("read the schema of database %s: %w", s.client.config.Database, err)
	}
	schema, err := decodeSchema(b)
	if err != nil {
		return Schema{}, err
	}
	if err := schema.check(s.client.config.Watch); err != nil {
		return Schema{}, err
	}
	return schema, schema.check(s.client.config.Need)
}

// monitor starts the newest kind of monitor that the server knows. It always reads
// everything: what a former connection saw is not carried over.
func (s *session) monitor(ctx context.Context) error {
	type columns struct {
		Columns []string `json:"columns"`
	}
	one, many := map[string]columns{}, map[string][]columns{}
	for table, names := range s.client.config.Watch {
		one[table], many[table] = columns{names}, []columns{{names}}
	}
	db := s.client.config.Database
	b, err := s.call(ctx, "monitor_cond_since", db, monitorName, many, noTxn)
	if err == nil {
		var parts []json.RawMessage
		if err := json.Unmarshal(b, &parts); err != nil || len(parts) != 3 {
			return fmt.Errorf("%w: monitor_cond_since answers %.200s", jsonrpc.ErrSyntax, b)
		}
		return s.replica.update2(parts[2])
	}
	if unknown(err) {
		if b, err = s.call(ctx, "monitor_cond", db, monitorName, many); err == nil {
			return s.replica.update2(b)
		}
	}
	if unknown(err) {
		if b, err = s.call(ctx, "monitor", db, monitorName, one); err == nil {
			return s.replica.update(b)
		}
	}
	return fmt.Errorf("monitor the database %s: %w", db, err)
}

// unknown reports whether the server does not know the method: its answer to that is
// "unknown method", whether as a word or as an object.
func unknown(err error) bool {
	var e *serverError
	return errors.As(err, &e) && (strings.Contains(e.Kind, "unknown method") || strings.Contains(e.Details, "unknown method"))
}
