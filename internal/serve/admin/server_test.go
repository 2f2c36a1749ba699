package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestServerAndClient(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	s := &Server{Socket: path, Log: slog.New(slog.DiscardHandler), Handlers: map[string]Handler{
		"GET /v1/status": func(_ context.Context, q url.Values) (any, error) {
			return Status{Node: "n1", Version: q.Get("v")}, nil
		},
		"GET /v1/audit": func(context.Context, url.Values) (any, error) { return nil, errors.New("the plane is closed") },
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	c := NewClient(path)
	defer c.Close()

	var got Status
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := c.Get(t.Context(), "/v1/status?v=7", &got)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if got.Node != "n1" || got.Version != "7" {
		t.Errorf("got %+v", got)
	}
	if err := c.Get(t.Context(), "/v1/audit", nil); err == nil || err.Error() != "the plane is closed" {
		t.Errorf("a failing handler: %v", err)
	}
	if err := c.Get(t.Context(), "/v9/x", nil); err == nil || !strings.Contains(err.Error(), "does not know the request") {
		t.Errorf("an unknown path: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := c.Get(t.Context(), "/v1/status", &got); err == nil || !strings.Contains(err.Error(), "does fairlead-agent run") {
		t.Errorf("after the end: %v", err)
	}
}
