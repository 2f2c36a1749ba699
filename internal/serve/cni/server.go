package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
	"github.com/fairlead-sdn/fairlead/internal/serve/socket"
)

const (
	// readTimeout bounds how long a plugin may take to send its request.
	readTimeout = 10 * time.Second
	// maxHeader bounds a request's header, in bytes.
	maxHeader = 16 << 10
)

// Server serves a Handler on a unix socket.
type Server struct {
	// Socket is the path; cniapi.Socket outside of tests.
	Socket  string
	Handler *Handler
	Log     *slog.Logger
	// Grace is how long calls that are under way may go on once the server is told
	// to end; then they are cancelled, and undo what they did.
	Grace time.Duration
}

// Run serves until ctx ends, and then ends in good order: no new calls, those under
// way go on for Grace, the socket is removed. It returns nil then; an error means
// that the socket could not be had.
func (s *Server) Run(ctx context.Context) error {
	l, err := socket.Listen(s.Socket, "CNI", s.Log)
	if err != nil {
		return err
	}
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	server := &http.Server{
		Handler:           withoutDawdling(cniapi.Handler(s.Handler.serveUntil(calls))),
		ReadHeaderTimeout: readTimeout,
		IdleTimeout:       readTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	s.Log.Info("CNI socket ready", "socket", s.Socket)
	select {
	case err = <-served:
		err = errors.Join(err, l.Remove())
		return fmt.Errorf("serve %s: %w", s.Socket, err)
	case <-ctx.Done():
	}
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), s.Grace)
	defer stop()
	err = server.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		cancel() // calls under way undo what they did, and answer
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer stop()
		if err = server.Shutdown(late); err != nil {
			err = errors.Join(err, server.Close())
		}
	}
	<-served
	if err = errors.Join(err, l.Remove()); err != nil {
		s.Log.Warn("CNI socket did not end in good order", "socket", s.Socket, "err", err)
	}
	return nil
}

// serveUntil serves with a context that also ends when calls does.
func (h *Handler) serveUntil(calls context.Context) func(context.Context, cniapi.Request) cniapi.Response {
	return func(ctx context.Context, r cniapi.Request) cniapi.Response {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(calls, func() { cancel(errShutdown) })()
		return h.Serve(ctx, r)
	}
}

var errShutdown = errors.New("fairlead-agent is shutting down; the runtime will try again")

// withoutDawdling reads the whole body before the handler starts, under a deadline
// of its own: http.Server.ReadTimeout would go on running while the handler works,
// and cancel calls that only take long.
func withoutDawdling(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_ = c.SetReadDeadline(time.Now().Add(readTimeout))
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, cniapi.MaxRequest))
		_ = c.SetReadDeadline(time.Time{})
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{err}))
		next.ServeHTTP(w, r)
	})
}

// failing repeats the error of a body, so that the handler reports it.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}
