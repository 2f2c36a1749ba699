package kube_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/datastore/kube"
)

// server is a real API server with its etcd, each a process.
type server struct {
	bin, dir           string
	etcdPort, peerPort int
	port               int
	etcd, api          *process
}

// process belongs to a thread that lives as long as it does, and dies with it.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// shared is the one server of the tests of this package.
type shared struct {
	mu     sync.Mutex
	server *server
	err    error
}

var cluster shared

func (s *shared) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		s.server.stop()
		s.server = nil
	}
}

// realServer is the running server, or skips the test.
func realServer(t testing.TB) *server {
	t.Helper()
	if os.Getenv(inside) == "" {
		t.Skip("needs root, for a network namespace of its own")
	}
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if _, err := os.Stat(filepath.Join(binaries(), name)); err != nil {
			t.Skipf("no real API server: %v: build it, or set FAIRLEAD_KUBE_BIN to the directory that has it", err)
		}
	}
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	if cluster.server == nil && cluster.err == nil {
		cluster.server, cluster.err = startServer(binaries())
	}
	if cluster.err != nil {
		t.Fatal(cluster.err)
	}
	return cluster.server
}

func binaries() string {
	if dir := os.Getenv("FAIRLEAD_KUBE_BIN"); dir != "" {
		return dir
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "fairlead-kube", "bin")
}

// spawn starts a program whose output goes to a file.
func spawn(log, program string, args ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
		close(p.exited)
	}()
	return p, <-started
}

func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close() // only the number was wanted
	return l.Addr().(*net.TCPAddr).Port, nil
}

func startServer(bin string) (_ *server, err error) {
	s := &server{bin: bin}
	if s.dir, err = os.MkdirTemp("", "kube"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	for _, port := range []*int{&s.etcdPort, &s.peerPort, &s.port} {
		if *port, err = freePort(); err != nil {
			return nil, err
		}
	}
	if err := s.writeCredentials(); err != nil {
		return nil, err
	}
	url, peer := s.etcdURL(), fmt.Sprintf("http://127.0.0.1:%d", s.peerPort)
	s.etcd, err = spawn(s.file("etcd.log"), filepath.Join(bin, "etcd"), "--data-dir", s.file("etcd"), "--unsafe-no-fsync", "--log-level", "warn", "--watch-progress-notify-interval", "1s",
		"--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if err != nil {
		return nil, err
	}
	return s, s.startAPI()
}

func (s *server) file(name string) string { return filepath.Join(s.dir, name) }
func (s *server) etcdURL() string         { return fmt.Sprintf("http://127.0.0.1:%d", s.etcdPort) }
func (s *server) url() string             { return fmt.Sprintf("https://127.0.0.1:%d", s.port) }

func (s *server) startAPI(more ...string) (err error) {
	s.api, err = spawn(s.file("apiserver.log"), filepath.Join(s.bin, "kube-apiserver"), append([]string{
		"--etcd-servers=" + s.etcdURL(),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.port), "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--tls-cert-file=" + s.file("server.crt"), "--tls-private-key-file=" + s.file("server.key"), "--client-ca-file=" + s.file("ca.crt"),
		"--service-account-key-file=" + s.file("sa.key"), "--service-account-signing-key-file=" + s.file("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file=" + s.file("tokens.csv"),
		"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
		// There is no controller that makes service accounts.
		"--disable-admission-plugins=ServiceAccount", "--profiling=false",
	}, more...)...)
	if err != nil {
		return err
	}
	return s.ready(time.Minute)
}

// ready waits until the API server says that it is.
func (s *server) ready(limit time.Duration) error {
	pair, err := tls.LoadX509KeyPair(s.file("admin.crt"), s.file("admin.key"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	raw, err := os.ReadFile(s.file("ca.crt"))
	if err != nil {
		return err
	}
	pool.AppendCertsFromPEM(raw)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}, DisableKeepAlives: true,
	}}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := client.Get(s.url() + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("/readyz: %s", resp.Status)
		}
		select {
		case <-tick.C:
		case <-s.api.exited:
			return fmt.Errorf("the API server has ended:\n%s", tail(s.file("apiserver.log")))
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready: %w\n%s", err, tail(s.file("apiserver.log")))
		}
	}
}

func tail(file string) []byte {
	raw, _ := os.ReadFile(file)
	return raw[max(0, len(raw)-2000):]
}

func (s *server) stop() {
	s.api.kill()
	s.etcd.kill()
	_ = os.RemoveAll(s.dir)
}

// writeCredentials makes the authority, the server's and the administrator's certificates,
// the key of service accounts, tokens and a kubeconfig.
func (s *server) writeCredentials() error {
	authority, err := newAuthority()
	if err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"ca.crt":     authority.pem,
		"sa.key":     pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		"tokens.csv": []byte("nobody-token,nobody,nobody\n"),
		"kubeconfig": fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: k, cluster: {server: %q, certificate-authority: ca.crt}}]
users:
- {name: admin, user: {client-certificate: admin.crt, client-key: admin.key}}
- {name: nobody, user: {token: nobody-token}}
contexts:
- {name: admin, context: {cluster: k, user: admin}}
- {name: nobody, context: {cluster: k, user: nobody}}
current-context: admin
`, s.url()),
	}
	for _, c := range []struct {
		name    string
		subject pkix.Name
	}{
		{"server", pkix.Name{CommonName: "kube-apiserver"}},
		{"admin", pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}},
	} {
		if files[c.name+".crt"], files[c.name+".key"], err = authority.issue(c.subject, time.Hour); err != nil {
			return err
		}
	}
	for name, raw := range files {
		if err := os.WriteFile(s.file(name), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, err
}

// issue makes a certificate for both ends of 127.0.0.1.
func (a *authority) issue(subject pkix.Name, life time.Duration) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, DNSNames: []string{"localhost"},
	}, a.cert, private.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	raw, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), nil
}

// open makes a Store that is closed at the test's end.
func open(t testing.TB, c kube.Config) *kube.Store {
	t.Helper()
	if c.Logger == nil {
		c.Logger = discard()
	}
	s, err := kube.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
