package admin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"path/filepath"
	"testing"
	"time"
)

// await serves until the test ends, and returns a client once the socket answers.
func await(t *testing.T, s *Server) *Client {
	t.Helper()
	s.Socket, s.Log = filepath.Join(t.TempDir(), "admin.sock"), slog.New(slog.DiscardHandler)
	if s.Handlers == nil {
		s.Handlers = map[string]Handler{}
	}
	s.Handlers["GET /v1/here"] = func(context.Context, url.Values) (any, error) { return true, nil }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	c := NewClient(s.Socket)
	t.Cleanup(c.Close)
	var here bool
	for deadline := time.Now().Add(5 * time.Second); c.Get(t.Context(), "/v1/here", &here) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("the admin server does not answer")
		}
	}
	return c
}

func TestStreams(t *testing.T) {
	c := await(t, &Server{
		Handlers: map[string]Handler{"GET /v1/json": func(context.Context, url.Values) (any, error) { return []int{1}, nil }},
		Streams: map[string]Stream{
			"GET /v1/good": func(_ context.Context, q url.Values, w io.Writer) (string, error) {
				return "over: 100 %\nü", put(w, q.Get("x"))
			},
			"GET /v1/nothing": func(context.Context, url.Values, io.Writer) (string, error) { return "nothing came", nil },
			"GET /v1/refused": func(context.Context, url.Values, io.Writer) (string, error) { return "", errors.New("no such pod") },
			"GET /v1/broken": func(_ context.Context, _ url.Values, w io.Writer) (string, error) {
				return "2 lost", errors.Join(put(w, "half"), errors.New("the link\nis gone"))
			},
		},
	})
	for _, tt := range []struct{ path, body, note, err string }{
		{"/v1/good?x=abc", "abc", "over: 100 %\nü", ""},
		{"/v1/nothing", "", "nothing came", ""},
		{"/v1/refused", "", "", "no such pod"},
		{"/v1/broken", "half", "2 lost", "the link\nis gone"},
		{"/v1/json", "[1]\n", "", ""},
	} {
		var b bytes.Buffer
		note, err := c.Stream(t.Context(), tt.path, &b)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if b.String() != tt.body || note != tt.note || text != tt.err {
			t.Errorf("%s: %q, note %q, error %q; want %+v", tt.path, b.String(), note, text, tt)
		}
	}
}

func put(w io.Writer, s string) error {
	_, err := io.WriteString(w, s)
	return err
}

// What was written is sent at once, and the stream ends when the one who asked leaves.
func TestStreamEndsWithItsReader(t *testing.T) {
	left := make(chan struct{})
	c := await(t, &Server{Streams: map[string]Stream{"GET /v1/endless": func(ctx context.Context, _ url.Values, w io.Writer) (string, error) {
		defer close(left)
		if err := put(w, "first"); err != nil {
			return "", err
		}
		<-ctx.Done()
		return "", ctx.Err()
	}}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error)
	go func() {
		_, err := c.Stream(ctx, "/v1/endless", w)
		done <- err
	}()
	first := make([]byte, 5)
	if _, err := io.ReadFull(r, first); err != nil || string(first) != "first" {
		t.Fatalf("%q, %v", first, err)
	}
	cancel()
	if err := <-done; !errors.Is(err, ErrStopped) {
		t.Errorf("the reader left: %v", err)
	}
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("the stream goes on without a reader")
	}
}
