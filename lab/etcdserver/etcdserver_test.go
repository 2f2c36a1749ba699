package etcdserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// socketDir is short: a unix socket's path has 108 bytes at most.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func client(t *testing.T, s *Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRestartKeepsData(t *testing.T) {
	dir := socketDir(t)
	s, err := Start(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, s).Put(t.Context(), "/a", "1"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s, err = Start(t.Context(), Config{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := client(t, s).Get(t.Context(), "/a")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" {
		t.Errorf("after a restart: %v, %v", got, err)
	}
}

func TestTwoOnEphemeralPorts(t *testing.T) {
	var endpoints []string
	for range 2 {
		s, err := Start(t.Context(), Config{Dir: socketDir(t), Listen: "http://127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := client(t, s).Get(t.Context(), "/a"); err != nil {
			t.Error(err)
		}
		endpoints = append(endpoints, s.Endpoint())
	}
	if endpoints[0] == endpoints[1] || !strings.HasPrefix(endpoints[0], "http://127.0.0.1:") {
		t.Errorf("endpoints %v", endpoints)
	}
}

func TestRefusals(t *testing.T) {
	if _, err := Start(t.Context(), Config{}); err == nil {
		t.Error("started without a directory")
	}
	dir := socketDir(t)
	path := filepath.Join(dir, "client.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file in the socket's place: %v, want an error that names it", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "precious" {
		t.Errorf("the file was touched: %q, %v", got, err)
	}
}

// A client that watches must not hold up Close for long: etcd gives its streams one
// request timeout to end, 6 s with the lab's settings, and often needs none of it.
func TestCloseEndsUnderWatch(t *testing.T) {
	s, err := Start(t.Context(), Config{Dir: socketDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, s)
	events := c.Watch(t.Context(), "/a", clientv3.WithCreatedNotify())
	<-events
	begin := time.Now()
	s.Close()
	if d := time.Since(begin); d > 15*time.Second {
		t.Errorf("Close took %s", d)
	}
}
