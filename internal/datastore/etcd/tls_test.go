package etcd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/lab/etcdserver"
)

// authority is a certificate authority in files.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = newKey(t)
	a.cert = sign(t, template, template, a.key, a.key)
	writePEM(t, filepath.Join(a.dir, "ca.pem"), "CERTIFICATE", a.cert.Raw)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t *testing.T, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func writePEM(t *testing.T, path, kind string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue writes a certificate for both ends of a connection to 127.0.0.1.
func (a *authority) issue(t *testing.T, name string, until time.Time) (cert, key string) {
	t.Helper()
	k := newKey(t)
	c := sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, a.cert, k, a.key)
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	writePEM(t, cert, "CERTIFICATE", c.Raw)
	writePEM(t, key, "EC PRIVATE KEY", der)
	return cert, key
}

func (a *authority) ca() string { return filepath.Join(a.dir, "ca.pem") }

func TestTLS(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	hour := time.Now().Add(time.Hour)
	serverCert, serverKey := ours.issue(t, "server", hour)
	cert, key := ours.issue(t, "client", hour)
	foreignCert, foreignKey := theirs.issue(t, "client", hour)
	oldCert, oldKey := ours.issue(t, "old", time.Now().Add(-time.Minute))
	endpoint := startEmbedded(t, etcdserver.Config{Listen: "https://127.0.0.1:0", CA: ours.ca(), Cert: serverCert, Key: serverKey}).Endpoint()

	good := open(t, etcd.Config{Endpoints: []string{endpoint}, CA: ours.ca(), Cert: cert, Key: key})
	if err := good.Ping(t.Context()); err != nil {
		t.Fatalf("with the right certificate: %v", err)
	}
	w := mustWatch(t, good, mustCreate(t, good, "a"))
	mustCreate(t, good, "b")
	if e, _ := nextEvent(t, w); e.Object == nil || e.Object.GetName() != "b" {
		t.Errorf("event %+v, want b", e)
	}
	for name, c := range map[string]etcd.Config{
		"no client certificate":      {CA: ours.ca()},
		"client of another CA":       {CA: ours.ca(), Cert: foreignCert, Key: foreignKey},
		"expired client certificate": {CA: ours.ca(), Cert: oldCert, Key: oldKey},
		"server of another CA":       {CA: theirs.ca(), Cert: cert, Key: key},
	} {
		c.Endpoints = []string{endpoint}
		err := open(t, c).Ping(t.Context())
		if !apierrors.IsUnauthorized(err) || !strings.Contains(err.Error(), "check the files") {
			t.Errorf("%s: %v, want Unauthorized with advice", name, err)
		}
		isPlain(t, err)
	}
	// What is no etcd, or speaks another way than the endpoint says.
	_, port, _ := strings.Cut(endpoint, "://")
	plain := startEmbedded(t, etcdserver.Config{Listen: "http://127.0.0.1:0"}).Endpoint()
	_, plainPort, _ := strings.Cut(plain, "://")
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	for name, tt := range map[string]struct {
		config etcd.Config
		want   string
	}{
		"no TLS to a server with it":    {etcd.Config{Endpoints: []string{"http://" + port}}, "write https://"},
		"TLS to a server without it":    {etcd.Config{Endpoints: []string{"https://" + plainPort}, CA: ours.ca()}, "write http://"},
		"a server of something else":    {etcd.Config{Endpoints: []string{web.URL}}, "no etcd"},
		"a port that nobody listens on": {etcd.Config{Endpoints: []string{"http://127.0.0.1:1"}}, "is etcd running"},
	} {
		err := open(t, tt.config).Ping(t.Context())
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.config.Endpoints[0]) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		isPlain(t, err)
	}
}

// A renewed certificate is used without a restart.
func TestCertificateRenewal(t *testing.T) {
	ours := newAuthority(t, "ours")
	hour := time.Now().Add(time.Hour)
	serverCert, serverKey := ours.issue(t, "server", hour)
	cert, key := ours.issue(t, "client", time.Now().Add(-time.Minute))
	endpoint := startEmbedded(t, etcdserver.Config{Listen: "https://127.0.0.1:0", CA: ours.ca(), Cert: serverCert, Key: serverKey}).Endpoint()
	s := open(t, etcd.Config{Endpoints: []string{endpoint}, CA: ours.ca(), Cert: cert, Key: key})
	if err := s.Ping(t.Context()); !apierrors.IsUnauthorized(err) {
		t.Fatalf("with an expired certificate: %v, want Unauthorized", err)
	}
	ours.issue(t, "client", hour)
	for deadline := time.Now().Add(20 * time.Second); ; {
		err := s.Ping(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the renewal: %v", err)
		}
	}
}
