package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// The defaults of Config.
const (
	DefaultPrefix         = "/fairlead"
	DefaultDialTimeout    = 3 * time.Second
	DefaultRequestTimeout = 5 * time.Second
	// DefaultProgressInterval is how often a quiet watch is asked how far it is.
	DefaultProgressInterval = 3 * time.Second
)

const (
	// Pings find a connection whose other end is gone. etcd closes connections
	// that ping more often than every 5 s.
	keepaliveTime    = 6 * time.Second
	keepaliveTimeout = 3 * time.Second
	// maxBackoff between two attempts to connect.
	maxBackoff = 2 * time.Second
	// Reads are tried again while the connection is being made.
	unaryRetries  = 8
	retryInterval = 250 * time.Millisecond
	// window is how much a server may send ahead of the reader, in bytes. It is more than a
	// page of large objects. Of one that adapts to the network, each answer and each event
	// would cost a ping, and its answer.
	window   = 4 << 20
	pageSize = 500
)

// Config of a Store.
type Config struct {
	// Endpoints of the cluster's members: "https://10.0.0.1:2379",
	// "http://127.0.0.1:2379" or "unix:///run/etcd.sock". At least one, all with TLS or
	// all without.
	Endpoints []string
	// CA is the file of the certificates that servers are checked against; empty
	// means those of the system. With TLS only.
	CA string
	// Cert and Key are the files of the client's certificate, read again for each
	// connection, so that they may be renewed under a running process.
	Cert, Key string
	// Prefix of all keys; empty means DefaultPrefix.
	Prefix string
	// DialTimeout bounds one attempt to connect, RequestTimeout every call; 0 means
	// the defaults.
	DialTimeout, RequestTimeout time.Duration
	// ProgressInterval is how often a quiet watch sends a bookmark; 0 means the
	// default. etcd servers older than 3.4.25 and 3.5.8 give wrong answers to the
	// question: with them a bookmark comes only when the server sends one by itself.
	ProgressInterval time.Duration
	// Admission admits what is written.
	Admission datastore.Admission
	// OnCorrupt, if set, is told of every value that could not be read, and why. It
	// may be called from several goroutines, and again for the same key.
	OnCorrupt func(key string, err error)
}

func (c *Config) setDefaults() {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	c.Prefix = strings.TrimRight(c.Prefix, "/")
	if c.DialTimeout <= 0 {
		c.DialTimeout = DefaultDialTimeout
	}
	if c.RequestTimeout <= 0 {
		c.RequestTimeout = DefaultRequestTimeout
	}
	if c.ProgressInterval <= 0 {
		c.ProgressInterval = DefaultProgressInterval
	}
	if c.OnCorrupt == nil {
		c.OnCorrupt = func(string, error) {}
	}
}

// secure tells whether the endpoints speak TLS, or what is wrong with the Config.
func (c *Config) secure() (bool, error) {
	if len(c.Endpoints) == 0 {
		return false, errors.New("etcd: no endpoint: give at least one, such as https://10.0.0.1:2379")
	}
	if !strings.HasPrefix(c.Prefix, "/") {
		return false, fmt.Errorf("etcd: prefix %q must begin with /", c.Prefix)
	}
	withTLS := 0
	for _, e := range c.Endpoints {
		u, err := url.Parse(e)
		switch {
		case strings.Contains(e, "@"):
			// Endpoints are in errors and logs: this one must not get there.
			return false, errors.New("etcd: an endpoint holds a user name or password: remove it, clients are known by their certificates (cert and key)")
		case err != nil:
			return false, fmt.Errorf("etcd: endpoint %q: %w", e, err)
		case u.Scheme == "https" && u.Host != "":
			withTLS++
		case u.Scheme == "http" && u.Host != "", u.Scheme == "unix" && u.Path != "":
		default:
			return false, fmt.Errorf("etcd: endpoint %q: want https://HOST:PORT, http://HOST:PORT or unix:///PATH", e)
		}
	}
	switch {
	case withTLS != 0 && withTLS != len(c.Endpoints):
		return false, fmt.Errorf("etcd: endpoints %v: some with TLS, some without", c.Endpoints)
	case withTLS == 0 && (c.CA != "" || c.Cert != "" || c.Key != ""):
		return false, fmt.Errorf("etcd: ca, cert and key are given, but the endpoints %v do not use TLS: write https://", c.Endpoints)
	case (c.Cert == "") != (c.Key == ""):
		return false, errors.New("etcd: cert and key belong together: give both or neither")
	}
	return withTLS > 0, nil
}

// failFast lets a call say why there is no connection, instead of waiting for one
// until its time is up, which is the client's default and hides the reason.
func failFast(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, conn, append(options, grpc.WaitForReady(false))...)
}

// New makes a Store. It reads the files that the Config names, but does not wait
// for a server: one that is away is an error of each call, until it is back.
func New(c Config) (*Store, error) {
	c.setDefaults()
	secure, err := c.secure()
	if err != nil {
		return nil, err
	}
	var tlsConfig *tls.Config
	if secure {
		if tlsConfig, err = c.tlsConfig(); err != nil {
			return nil, err
		}
	}
	options := []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(failFast),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: c.DialTimeout,
		}),
	}
	refusal := new(refusal)
	if secure {
		options = append(options, grpc.WithTransportCredentials(&watchedCredentials{credentials.NewTLS(tlsConfig), refusal}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	client, err := clientv3.New(clientv3.Config{
		Endpoints:             c.Endpoints,
		Context:               ctx,
		TLS:                   tlsConfig,
		DialTimeout:           c.DialTimeout,
		DialKeepAliveTime:     keepaliveTime,
		DialKeepAliveTimeout:  keepaliveTimeout,
		MaxUnaryRetries:       unaryRetries,
		BackoffWaitBetween:    retryInterval,
		BackoffJitterFraction: 0.5,
		Logger:                zap.NewNop(),
		DialOptions:           options,
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("etcd: %w", err)
	}
	s := &Store{config: c, client: client, ctx: ctx, cancel: cancel, health: newHealth(), refusal: refusal}
	s.wg.Go(s.probe)
	return s, nil
}
