package kube

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// recheck is how often the files of credentials are read again at most.
const recheck = time.Second

// access makes clients of the server, and new ones when the files that they were made from
// have changed.
type access struct {
	config  Config
	scheme  *runtime.Scheme
	limiter flowcontrol.RateLimiter
	// dialer knows every connection.
	dialer *connrotation.Dialer

	mu      sync.Mutex
	session *session
	stamp   [sha256.Size]byte
	// suspect says that credentials were refused since the files were read.
	suspect bool
	checked time.Time
	// broken says why the files, as they are now, cannot be used.
	broken error
}

// session is a connection, with the credentials of one moment.
type session struct {
	server string
	// credentials says in words where they are from.
	credentials string
	transport   *http.Transport
	clients     map[schema.GroupVersion]*rest.RESTClient
	// files that the session depends on. That of a token is read again anyway, but only
	// once a minute.
	files []string
}

func (a *access) start() error {
	a.dialer = connrotation.NewDialer((&net.Dialer{
		Timeout: dialTimeout,
		// For servers without HTTP/2, which know no pings.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: 2 * time.Second, Count: 3},
	}).DialContext)
	s, err := a.open()
	if err != nil {
		return err
	}
	a.session, a.stamp = s, fingerprint(s.files)
	return nil
}

// current is the session to use now.
func (a *access) current() *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.suspect || time.Since(a.checked) < recheck {
		return a.session
	}
	a.suspect, a.checked = false, time.Now()
	stamp := fingerprint(a.session.files)
	if stamp == a.stamp {
		a.broken = nil
		return a.session
	}
	s, err := a.open()
	a.broken = err
	if err != nil {
		a.suspect = true // they are being written, or are wrong: look again
		return a.session
	}
	a.session.transport.CloseIdleConnections()
	a.session, a.stamp = s, stamp
	return s
}

// refused notes that the server did not accept the credentials, or we not the server's.
// It returns why the files of new ones cannot be used, if there are such.
func (a *access) refused() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.suspect = true
	return a.broken
}

func (a *access) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session.transport.CloseIdleConnections()
	// Those on which a request has only just ended do not count as idle yet.
	a.dialer.CloseAll()
}

// fingerprint tells whether any of the files has changed. One that is not there counts as
// empty: what is wrong with it is for open to say.
func fingerprint(files []string) [sha256.Size]byte {
	h := sha256.New()
	for _, f := range files {
		raw, _ := os.ReadFile(f)
		fmt.Fprintf(h, "%d:", len(raw))
		h.Write(raw)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// open reads the files and prepares the clients. It does not connect.
func (a *access) open() (*session, error) {
	config, s, err := a.load()
	if err != nil {
		return nil, err
	}
	s.server = config.Host
	for _, f := range []string{config.CAFile, config.CertFile, config.KeyFile, config.BearerTokenFile} {
		if f != "" {
			s.files = append(s.files, f)
		}
	}
	config.UserAgent = a.config.UserAgent
	config.RateLimiter = a.limiter
	config.WarningHandler = rest.NoWarnings{}
	if config.TLSClientConfig.CAFile == "" && len(config.TLSClientConfig.CAData) == 0 && strings.HasPrefix(config.Host, "https:") {
		s.credentials += ", certificates of the system"
	}
	client, err := a.client(config, s)
	if err != nil {
		return nil, fmt.Errorf("kube: %s: %w", s.credentials, err)
	}
	codecs := serializer.NewCodecFactory(a.scheme)
	groups := map[schema.GroupVersion]bool{definitions: true}
	for _, kind := range datastore.Kinds() {
		r, err := datastore.Lookup(kind)
		if err != nil {
			return nil, err
		}
		groups[r.GroupVersion] = true
	}
	s.clients = map[schema.GroupVersion]*rest.RESTClient{}
	for gv := range groups {
		c := rest.CopyConfig(config)
		c.GroupVersion, c.APIPath = &gv, "/apis"
		if gv.Group == "" {
			c.APIPath = "/api"
		}
		c.NegotiatedSerializer = codecs.WithoutConversion()
		c.ContentType, c.AcceptContentTypes = plainJSON, plainJSON
		if !custom(gv.Group) {
			c.ContentType, c.AcceptContentTypes = protobuf, protobuf+","+plainJSON
		}
		if s.clients[gv], err = rest.RESTClientForConfigAndClient(c, client); err != nil {
			return nil, fmt.Errorf("kube: %s: %w", s.credentials, err)
		}
	}
	return s, nil
}

// load reads what the Config names: where the server is, and who we are.
func (a *access) load() (*rest.Config, *session, error) {
	if a.config.Kubeconfig == "" {
		return a.inCluster()
	}
	files := filepath.SplitList(a.config.Kubeconfig)
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: files}
	if len(files) == 1 {
		rules = &clientcmd.ClientConfigLoadingRules{ExplicitPath: files[0]}
	}
	s := &session{files: files, credentials: "kubeconfig " + a.config.Kubeconfig}
	if a.config.Context != "" {
		s.credentials += ", context " + a.config.Context
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.config.Context}).ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("kube: %s: %w", s.credentials, err)
	}
	if config.BearerTokenFile != "" {
		s.credentials += ", token of " + config.BearerTokenFile
	}
	return config, s, nil
}

// inCluster is the connection of a pod.
func (a *access) inCluster() (*rest.Config, *session, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	token, ca := filepath.Join(a.config.ServiceAccount, "token"), filepath.Join(a.config.ServiceAccount, "ca.crt")
	if host == "" || port == "" {
		return nil, nil, errors.New("kube: no kubeconfig is given, and this is not a pod of a cluster (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set): name a kubeconfig")
	}
	for _, f := range []string{token, ca} {
		if _, err := os.Stat(f); err != nil {
			return nil, nil, fmt.Errorf("kube: the service account of this pod: %w: set automountServiceAccountToken, or name a kubeconfig", err)
		}
	}
	return &rest.Config{
		Host:            "https://" + net.JoinHostPort(host, port),
		TLSClientConfig: rest.TLSClientConfig{CAFile: ca},
		BearerTokenFile: token,
	}, &session{credentials: "service account, token of " + token}, nil
}

// client makes the HTTP client. It is client-go's but for the pings, which that lets only
// the environment set.
func (a *access) client(config *rest.Config, s *session) (*http.Client, error) {
	tc, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := transport.TLSConfigFor(tc)
	if err != nil {
		return nil, err
	}
	s.transport = &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         a.dialer.DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: handshakeTimeout,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     90 * time.Second,
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: a.config.PingInterval, PingTimeout: a.config.PingTimeout},
	}
	if tc.Proxy != nil {
		s.transport.Proxy = tc.Proxy
	}
	if tc.DialHolder != nil {
		s.transport.DialContext = tc.DialHolder.Dial
	}
	wrapped, err := transport.HTTPWrappersForConfig(tc, s.transport)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: wrapped}, nil
}
