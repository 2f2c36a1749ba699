package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/serve/socket"
)

const (
	requestTimeout = 30 * time.Second
	shutdownGrace  = 2 * time.Second
	// maxAnswer bounds what a client reads, in bytes.
	maxAnswer = 256 << 20
)

// Handler answers one path. What it returns becomes JSON.
type Handler func(ctx context.Context, query url.Values) (any, error)

// Failure is an answer that is an error.
type Failure struct {
	Error string `json:"error"`
}

// Server serves handlers on a unix socket.
type Server struct {
	Socket string
	// Handlers by pattern, "GET /v1/status".
	Handlers map[string]Handler
	// Streams by pattern likewise.
	Streams map[string]Stream
	Log     *slog.Logger
}

// Run serves until ctx ends, and returns nil then.
func (s *Server) Run(ctx context.Context) error {
	l, err := socket.Listen(s.Socket, "admin", s.Log)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	for pattern, h := range s.Handlers {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, h) })
	}
	for pattern, f := range s.Streams {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.stream(w, r, f) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		write(w, http.StatusNotFound, Failure{Error: fmt.Sprintf("%s %s: this agent does not know the request; is it of an older version?", r.Method, r.URL.Path)})
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err = <-served:
		return errors.Join(fmt.Errorf("serve %s: %w", s.Socket, err), l.Remove())
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		err = errors.Join(err, server.Close())
		s.Log.Debug("admin socket closed before its answers were sent", "err", err)
	}
	<-served
	if err := l.Remove(); err != nil {
		s.Log.Warn("admin socket did not end in good order", "err", err)
	}
	return nil
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, h Handler) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	answer, err := h(ctx, r.URL.Query())
	if err != nil {
		write(w, http.StatusInternalServerError, Failure{Error: err.Error()})
		return
	}
	write(w, http.StatusOK, answer)
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The reader may be gone; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(v)
}

// Client asks an agent.
type Client struct{ http http.Client }

// NewClient returns a client of the socket at a path.
func NewClient(path string) *Client {
	return &Client{http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get asks for a path ("/v1/audit") and decodes the answer.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	answer, err := c.ask(ctx, path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("read the agent's answer to %s: %w", path, err)
	}
	return nil
}
