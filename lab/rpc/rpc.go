// Package rpc is HTTP with JSON over a unix socket: what the processes of a lab
// speak with each other and with the command line.
package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// maxBody bounds a request, in bytes.
const maxBody = 64 << 20

// Serve serves HTTP until ctx ends.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Handle turns a function on values into a handler. Its error is the answer's body.
func Handle[Q, A any](f func(context.Context, Q) (A, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q Q
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&q); err != nil && !errors.Is(err, io.EOF) {
			http.Error(w, "read the request: "+err.Error(), http.StatusBadRequest)
			return
		}
		a, err := f(r.Context(), q)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		Reply(w, a)
	}
}

// Reply writes a value as JSON.
func Reply(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	// An error here is a client that has gone away.
	_ = json.NewEncoder(w).Encode(value)
}

// NewClient makes a client of an HTTP server on a unix socket.
func NewClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
}

// Call sends in and reads out as JSON; either may be nil. An answer that is no
// success becomes an error with the answer's text.
func Call(ctx context.Context, client *http.Client, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, body)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
		if err != nil {
			return err
		}
		return errors.New(string(bytes.TrimSpace(text)))
	}
	if out == nil {
		_, err := io.Copy(io.Discard, answer.Body)
		return err
	}
	if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}
