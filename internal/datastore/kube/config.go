package kube

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// The defaults of Config.
const (
	DefaultRequestTimeout = 10 * time.Second
	DefaultPingInterval   = 3 * time.Second
	DefaultPingTimeout    = 3 * time.Second
	// DefaultWatchTimeout is how long the server keeps a watch at least, at most twice as
	// long. Watches that end at random moments do not all come back at once.
	DefaultWatchTimeout = 5 * time.Minute
	// DefaultQPS and DefaultBurst fit one agent of a thousand.
	DefaultQPS   = 20
	DefaultBurst = 40
	// DefaultServiceAccount is where a pod finds its own credentials.
	DefaultServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
)

const (
	dialTimeout      = 3 * time.Second
	handshakeTimeout = 5 * time.Second
	pageSize         = 500
	// maxRetries of a call that the server asks to repeat later.
	maxRetries = 1
)

// Config of a Store. Only Logger is needed.
type Config struct {
	// Kubeconfig is a file, or several joined as in the variable KUBECONFIG. Empty means
	// the service account of the pod that this process runs in.
	Kubeconfig string
	// Context of the Kubeconfig; empty means its current one.
	Context string
	// ServiceAccount is the directory of the pod's credentials; empty means the default.
	ServiceAccount string
	// UserAgent names this program to the server: "fairlead-agent/v1.0".
	UserAgent string
	// QPS bounds the requests a second other than watches, Burst how many may come at once;
	// 0 means the defaults.
	QPS   float32
	Burst int
	// RequestTimeout bounds every call; of a list, every page. 0 means the default.
	RequestTimeout time.Duration
	// WatchTimeout, PingInterval (of silence before a ping) and PingTimeout (until a
	// connection without an answer counts as lost); 0 means the defaults.
	WatchTimeout, PingInterval, PingTimeout time.Duration
	// Lean drops what Fairlead does not read from the Pods and Nodes of List, Pages and
	// Watch. Those are refused by Update and UpdateStatus: use what Get returns.
	Lean bool
	// Logger is told what a person should know and no error says.
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	setDefault(&c.ServiceAccount, DefaultServiceAccount)
	setDefault(&c.UserAgent, "fairlead")
	setDefault(&c.QPS, DefaultQPS)
	setDefault(&c.Burst, DefaultBurst)
	setDefault(&c.RequestTimeout, DefaultRequestTimeout)
	setDefault(&c.WatchTimeout, DefaultWatchTimeout)
	setDefault(&c.PingInterval, DefaultPingInterval)
	setDefault(&c.PingTimeout, DefaultPingTimeout)
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// New makes a Store. It reads the files that the Config names, but does not wait for the
// server: one that is away is an error of each call, until it is back.
func New(c Config) (*Store, error) {
	if c.Logger == nil {
		return nil, errors.New("kube: a Logger is needed")
	}
	c.setDefaults()
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	access := &access{config: c, scheme: scheme, limiter: flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)}
	if err := access.start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Store{
		config: c, access: access, scheme: scheme, ctx: ctx, cancel: cancel,
		seen: map[datastore.Kind]uint64{}, absent: map[datastore.Kind]bool{},
	}, nil
}

// HomeConfig is the kubeconfig that kubectl reads if it is told nothing.
func HomeConfig() string { return clientcmd.RecommendedHomeFile }

// InPod tells whether this process runs in a pod that has a service account.
func InPod() bool {
	_, err := os.Stat(filepath.Join(DefaultServiceAccount, "token"))
	return err == nil && os.Getenv("KUBERNETES_SERVICE_HOST") != ""
}
