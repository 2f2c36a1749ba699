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

func (c Control) call(ctx context.Context, daemon, command string, args []string) (string, error) {
	socket, err := c.socket(daemon)
	if err != nil {
		return "", err
	}
	params := make([]any, len(args))
	for i, a := range args {
		params[i] = a
	}
	request, err := jsonrpc.Request(0, command, params...)
	if err != nil {
		return "", err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	// A frozen daemon takes the connection and says nothing: the end of ctx ends it.
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	reply, err := roundTrip(conn, request)
	if err != nil && ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", err
	}
	var text string
	if !jsonrpc.Null(reply.Error) {
		if json.Unmarshal(reply.Error, &text) != nil {
			text = string(reply.Error)
		}
		return "", fmt.Errorf("it says: %s", strings.TrimSpace(text))
	}
	if err := json.Unmarshal(reply.Result, &text); err != nil {
		return "", fmt.Errorf("read its answer: %w", err)
	}
	return text, nil
}

func roundTrip(conn net.Conn, request []byte) (jsonrpc.Message, error) {
	if _, err := conn.Write(request); err != nil {
		return jsonrpc.Message{}, err
	}
	frame, err := jsonrpc.NewReader(conn, maxReply).Next()
	if err != nil {
		return jsonrpc.Message{}, err
	}
	return jsonrpc.Decode(frame)
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
