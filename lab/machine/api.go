package machine

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/lab/rpc"
)

// settle is how long a change of the state waits for others before it is told.
const settle = 10 * time.Millisecond

// serve answers requests until ctx ends.
func (n *Node) serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/state", n.getState)
	mux.HandleFunc("PUT /v1/pods", rpc.Handle(func(_ context.Context, pods []*corev1.Pod) (struct{}, error) {
		n.setPods(pods)
		return struct{}{}, nil
	}))
	mux.HandleFunc("POST /v1/agent", rpc.Handle(func(ctx context.Context, r AgentRequest) (struct{}, error) {
		return struct{}{}, n.act(ctx, r)
	}))
	mux.HandleFunc("POST /v1/switch", rpc.Handle(n.actOnSwitch))
	mux.HandleFunc("POST /v1/gc", rpc.Handle(func(ctx context.Context, _ struct{}) (struct{}, error) {
		return struct{}{}, n.collect(ctx)
	}))
	mux.HandleFunc("POST /v1/check", rpc.Handle(func(ctx context.Context, _ struct{}) (struct{}, error) {
		return struct{}{}, n.checkPods(ctx)
	}))
	mux.HandleFunc("POST /v1/probe", rpc.Handle(n.ask))
	return rpc.Serve(ctx, l, mux)
}

// getState answers when there is a state later than the revision "after".
func (n *Node) getState(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	wait := err == nil
	for {
		s, moved := n.state()
		if !wait || s.Revision != after {
			rpc.Reply(w, s)
			return
		}
		select {
		case <-moved:
		case <-r.Context().Done():
			return
		}
		// Changes come in crowds.
		if !sleep(r.Context(), settle) {
			return
		}
	}
}

// Client speaks to a node.
type Client struct {
	http *http.Client
	name string
}

// NewClient makes a Client of the node that listens on a unix socket.
func NewClient(name, socket string) *Client {
	return &Client{name: name, http: rpc.NewClient(socket)}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// State reads the node's state: at once if after is nil, else as soon as its
// revision differs from *after.
func (c *Client) State(ctx context.Context, after *uint64) (State, error) {
	path := "/v1/state"
	if after != nil {
		path += "?after=" + strconv.FormatUint(*after, 10)
	}
	var s State
	err := c.call(ctx, http.MethodGet, path, nil, &s)
	return s, err
}

// SetPods tells the node which pods are to run on it.
func (c *Client) SetPods(ctx context.Context, pods []*corev1.Pod) error {
	return c.call(ctx, http.MethodPut, "/v1/pods", pods, nil)
}

// Agent does something to the node's agent.
func (c *Client) Agent(ctx context.Context, r AgentRequest) error {
	return c.call(ctx, http.MethodPost, "/v1/agent", r, nil)
}

// Switch does something to the node's Open vSwitch.
func (c *Client) Switch(ctx context.Context, r SwitchRequest) error {
	return c.call(ctx, http.MethodPost, "/v1/switch", r, nil)
}

// Collect makes the node call CNI GC.
func (c *Client) Collect(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/gc", struct{}{}, nil)
}

// CheckPods makes the node call CNI CHECK for all its pods.
func (c *Client) CheckPods(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/check", struct{}{}, nil)
}

// Ask sends probes; the answers have the shape of the request's sources.
func (c *Client) Ask(ctx context.Context, request ProbeRequest) ([][]probe.Answer, error) {
	var answers [][]probe.Answer
	err := c.call(ctx, http.MethodPost, "/v1/probe", request, &answers)
	return answers, err
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	if err := rpc.Call(ctx, c.http, method, path, in, out); err != nil {
		return fmt.Errorf("node %s: %w", c.name, err)
	}
	return nil
}
