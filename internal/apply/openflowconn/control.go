package openflowconn

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/jsonrpc"
)

// maxReply is the largest answer of a daemon that Control takes.
const maxReply = 64 << 20

// Control speaks to the control sockets of Open vSwitch's daemons (unixctl).
type Control struct {
	// Run is the directory of their pid files and sockets, /var/run/openvswitch.
	Run string
}

// Trace says what the bridge would do with a packet, in the words of ofproto/trace
// (ovs-vswitchd(8)). The flow is in the dialect of ovs-ofctl.
func (c Control) Trace(ctx context.Context, bridge, flow string) (string, error) {
	return c.Call(ctx, "ovs-vswitchd", "ofproto/trace", bridge, flow)
}

// Call runs a command of a daemon ("ovs-vswitchd", "ovsdb-server") and returns what it
// prints.
func (c Control) Call(ctx context.Context, daemon, command string, args ...string) (string, error) {
	out, err := c.call(ctx, daemon, command, args)
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w", command, daemon, err)
	}
	return out, nil
}

func (c Control) call(ctx context.Context, daemon, command string, args []string) (text string, err error) {
	err = c.converse(ctx, daemon, func(conn net.Conn, replies *jsonrpc.Reader) error {
		if err := ask(conn, 0, command, args); err != nil {
			return err
		}
		var refused error
		if text, refused, err = answer(replies); err != nil {
			return err
		}
		return refused
	})
	return text, err
}

// window is how many commands Each sends before it reads what becomes of them: few enough
// for both sides' buffers. A daemon does up to ten in one turn of its main loop.
const window = 50

// Each runs a command with each of several lists of arguments, over one connection: a
// daemon that is busy takes long to get round to a connection. It returns why commands were
// refused, by their places; an error is that not all of them were run.
func (c Control) Each(ctx context.Context, daemon, command string, args [][]string) (refused map[int]error, err error) {
	refused = map[int]error{}
	err = c.converse(ctx, daemon, func(conn net.Conn, replies *jsonrpc.Reader) error {
		for at := 0; at < len(args); at += window {
			end := min(at+window, len(args))
			for i := at; i < end; i++ {
				if err := ask(conn, uint64(i), command, args[i]); err != nil {
					return err
				}
			}
			for i := at; i < end; i++ {
				_, no, err := answer(replies)
				if err != nil {
					return err
				}
				if no != nil {
					refused[i] = no
				}
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("%s of %s, %d times: %w", command, daemon, len(args), err)
	}
	return refused, err
}

// converse calls talk with a connection to a daemon.
func (c Control) converse(ctx context.Context, daemon string, talk func(net.Conn, *jsonrpc.Reader) error) error {
	socket, err := c.socket(daemon)
	if err != nil {
		return err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	// A frozen daemon takes the connection and says nothing: the end of ctx ends it.
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	err = talk(conn, jsonrpc.NewReader(conn, maxReply))
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func ask(conn net.Conn, id uint64, command string, args []string) error {
	params := make([]any, len(args))
	for i, a := range args {
		params[i] = a
	}
	request, err := jsonrpc.Request(id, command, params...)
	if err == nil {
		_, err = conn.Write(request)
	}
	return err
}

// answer reads what a command printed, or why it was refused.
func answer(replies *jsonrpc.Reader) (text string, refused, err error) {
	frame, err := replies.Next()
	if err != nil {
		return "", nil, err
	}
	reply, err := jsonrpc.Decode(frame)
	if err != nil {
		return "", nil, err
	}
	if !jsonrpc.Null(reply.Error) {
		if json.Unmarshal(reply.Error, &text) != nil {
			text = string(reply.Error)
		}
		return "", fmt.Errorf("it says: %s", strings.TrimSpace(text)), nil
	}
	if err := json.Unmarshal(reply.Result, &text); err != nil {
		return "", nil, fmt.Errorf("read its answer: %w", err)
	}
	return text, nil, nil
}

// socket finds a daemon's control socket, which is named after its process.
func (c Control) socket(daemon string) (string, error) {
	file := filepath.Join(c.Run, daemon+".pid")
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("find the daemon: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 0 {
		return "", fmt.Errorf("find the daemon: %s holds %.40q, no process", file, b)
	}
	return filepath.Join(c.Run, fmt.Sprintf("%s.%d.ctl", daemon, pid)), nil
}
