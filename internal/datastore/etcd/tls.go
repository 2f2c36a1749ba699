package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

func (c *Config) tlsConfig() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("etcd: ca: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd: ca: %s holds no certificate in PEM form", c.CA)
		}
	}
	if c.Cert == "" {
		return out, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("etcd: cert %s, key %s: %w", c.Cert, c.Key, err)
		}
		return &pair, nil
	}
	// Once now, so that a wrong file is an error at the start.
	if _, err := load(); err != nil {
		return nil, err
	}
	out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return out, nil
}

// refusal keeps why the last TLS connection failed, until one works. A server of
// TLS 1.3 refuses a client's certificate only after the handshake, as far as the
// client can see: what the caller of gRPC gets may be no more than a broken pipe.
type refusal struct{ reason atomic.Pointer[error] }

func (r *refusal) err() error {
	if p := r.reason.Load(); p != nil {
		return *p
	}
	return nil
}

// watchedCredentials are TLS credentials that tell a refusal what happens.
type watchedCredentials struct {
	credentials.TransportCredentials
	refusal *refusal
}

// ClientHandshake implements credentials.TransportCredentials.
func (w *watchedCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		if !broken(err) && ctx.Err() == nil {
			w.refusal.reason.Store(&err)
		}
		return nil, nil, err
	}
	return &watchedConn{Conn: conn, refusal: w.refusal}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (w *watchedCredentials) Clone() credentials.TransportCredentials {
	return &watchedCredentials{TransportCredentials: w.TransportCredentials.Clone(), refusal: w.refusal}
}

type watchedConn struct {
	net.Conn
	refusal *refusal
	works   atomic.Bool
}

// Read notes the server's alert, or that the connection works.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch {
	case n > 0 && !c.works.Swap(true):
		c.refusal.reason.Store(nil)
	case err != nil && !broken(err):
		c.refusal.reason.Store(&err)
	}
	return n, err
}

// broken tells the end of a connection, which says nothing about certificates,
// from an error of TLS. "remote error" is how crypto/tls reports an alert.
func broken(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op != "remote error"
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded)
}
