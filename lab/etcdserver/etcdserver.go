package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

const (
	// DefaultKeepRevisions is how many revisions stay readable.
	DefaultKeepRevisions = 50_000
	startTimeout         = 30 * time.Second
)

// Config of a Server. Only Dir is needed.
type Config struct {
	// Dir holds data and sockets; it is created with mode 0700. A unix socket's path
	// is short: keep it under 80 characters.
	Dir string
	// Listen is the URL for clients: "http://127.0.0.1:0", "https://…" or
	// "unix:///…". Empty means the socket client.sock in Dir.
	Listen string
	// AlsoListen are further URLs for clients.
	AlsoListen []string
	// CA, Cert and Key are files for TLS (https only): clients must show a
	// certificate of that CA.
	CA, Cert, Key string
	// KeepRevisions are left by the automatic compaction, which looks every five
	// minutes; 0 means DefaultKeepRevisions.
	KeepRevisions int
}

// Server is a running etcd.
type Server struct {
	etcd     *embed.Etcd
	endpoint string
}

// Start starts a server on what Dir holds, and returns when it serves.
func Start(ctx context.Context, c Config) (*Server, error) {
	config, err := c.embedded()
	if err != nil {
		return nil, err
	}
	e, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
	}
	s := &Server{etcd: e}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		s.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
	case <-ctx.Done():
		s.Close()
		return nil, fmt.Errorf("start etcd in %s: not ready within %s: %w", c.Dir, startTimeout, ctx.Err())
	}
	listen := config.ListenClientUrls[0]
	s.endpoint = listen.String()
	if listen.Scheme != "unix" {
		s.endpoint = listen.Scheme + "://" + e.Clients[0].Addr().String()
	}
	return s, nil
}

func (c *Config) embedded() (*embed.Config, error) {
	if c.Dir == "" {
		return nil, errors.New("etcd: no directory given")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	listen := url.URL{Scheme: "unix", Path: filepath.Join(dir, "client.sock")}
	if c.Listen != "" {
		u, err := url.Parse(c.Listen)
		if err != nil {
			return nil, fmt.Errorf("etcd: listen %q: %w", c.Listen, err)
		}
		listen = *u
	}
	clients := []url.URL{listen}
	for _, also := range c.AlsoListen {
		u, err := url.Parse(also)
		if err != nil {
			return nil, fmt.Errorf("etcd: listen %q: %w", also, err)
		}
		clients = append(clients, *u)
	}
	peer := url.URL{Scheme: "unix", Path: filepath.Join(dir, "peer.sock")}
	for _, u := range append(clients, peer) {
		if err := removeStaleSocket(u); err != nil {
			return nil, err
		}
	}
	keep := c.KeepRevisions
	if keep <= 0 {
		keep = DefaultKeepRevisions
	}
	out := embed.NewConfig()
	out.Dir = filepath.Join(dir, "data")
	out.ListenClientUrls, out.AdvertiseClientUrls = clients, clients
	out.ListenPeerUrls, out.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	out.InitialCluster = out.InitialClusterFromName(out.Name)
	out.ClusterState = embed.ClusterStateFlagNew
	out.UnsafeNoFsync = true
	out.SnapshotCount = 5_000
	out.SnapshotCatchUpEntries = 100
	out.TickMs, out.ElectionMs = 100, 500
	out.AutoCompactionMode = embed.CompactorModeRevision
	out.AutoCompactionRetention = fmt.Sprint(keep)
	out.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	out.EnableGRPCGateway = false
	if c.Cert != "" {
		out.ClientTLSInfo = transport.TLSInfo{CertFile: c.Cert, KeyFile: c.Key, TrustedCAFile: c.CA, ClientCertAuth: c.CA != ""}
	}
	return out, nil
}

// removeStaleSocket removes the socket that a killed server left behind.
func removeStaleSocket(u url.URL) error {
	if u.Scheme != "unix" {
		return nil
	}
	info, err := os.Lstat(u.Path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("etcd: %w", err)
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("etcd: %s exists and is no socket", u.Path)
	}
	if err := os.Remove(u.Path); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
}

// Endpoint is the URL for clients, with the port that was chosen.
func (s *Server) Endpoint() string { return s.endpoint }

// Err delivers an error if the server dies.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Close stops the server and waits for its end. Its directory stays.
func (s *Server) Close() { s.etcd.Close() }
