package attachments

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// A2: the agent's certificate has expired when DEL comes.
func TestScenarioA2Credentials(t *testing.T) {
	l := labtest.Up(t, lab.Options{Nodes: 1})
	before := traces(l, "node-1")
	etcd := l.Status().Control[0]
	ca := newAuthority(t)
	gate := openGate(t, l, ca, etcd)

	renew := throughGate(t, l, ca, etcd)
	l.Fault(spec.AgentRestart, "node-1")
	l.WaitReady("node-1")
	s := l.Runtime("node-1").Sandbox(t, "a2-credentials")
	answer := add(t, s)
	wantPublished(t, l, true, answer.Addresses...)
	if gate.passed.Load() == 0 {
		t.Fatal("the agent does not come through the gate; this test proves nothing")
	}

	gate.advance(2 * time.Hour) // the certificate has expired by now
	labtest.Eventually(t, labtest.Patience, func() error {
		for _, h := range labtest.AdminGet[admin.Status](l, "node-1", "/v1/status").Health {
			if strings.Contains(h.Message, "certificate") || strings.Contains(h.Message, "TLS") {
				return nil
			}
		}
		return fmt.Errorf("no component's health tells of the certificate: %+v", labtest.AdminGet[admin.Status](l, "node-1", "/v1/status").Health)
	})
	del(t, s)
	del(t, s)
	if got := attachments(l, "node-1"); len(got) != 0 {
		t.Errorf("attachments after DEL: %v", got)
	}
	if _, ok := allocated(t, l)[answer.Addresses[0]]; !ok {
		t.Error("the blocks were written with an expired certificate; this test proves nothing")
	}
	renew(48 * time.Hour) // no restart
	took := labtest.Eventually(t, labtest.Patience, func() error {
		if _, ok := allocated(t, l)[answer.Addresses[0]]; ok {
			return fmt.Errorf("%s is still allocated", answer.Addresses[0])
		}
		return nil
	})
	t.Logf("the address is free in the datastore %s after the certificate was renewed", took)
	wantTraces(t, l, "node-1", before)
}

// throughGate configures the agent to reach etcd through the gate, with a certificate
// for an hour. The function that it returns replaces the certificate.
func throughGate(t *testing.T, l *labtest.Lab, ca *authority, etcd netip.Addr) func(valid time.Duration) {
	t.Helper()
	// The agent's files, and its configuration, as it sees them.
	const seen = "/var/lib/fairlead-lab/etc"
	files := filepath.Join(l.NodeDirectory("node-1"), "etc")
	writePEM(t, filepath.Join(files, "ca.pem"), "CERTIFICATE", ca.cert.Raw)
	renew := func(valid time.Duration) { ca.issue(t, filepath.Join(files, "agent"), valid, nil) }
	renew(time.Hour)
	config := filepath.Join(files, "agent.yaml")
	raw, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := yaml.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	c["datastore"] = map[string]any{"etcd": map[string]any{
		"endpoints": []string{"https://" + netip.AddrPortFrom(etcd, gatePort).String()},
		"ca":        seen + "/ca.pem", "cert": seen + "/agent.cert", "key": seen + "/agent.key",
	}}
	if raw, err = yaml.Marshal(c); err == nil {
		err = os.WriteFile(config, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return renew
}

// gatePort is where the gate listens, in the control namespace.
const gatePort = 2399

// gate stands in front of etcd and asks for certificates.
type gate struct {
	passed atomic.Int64
	ahead  atomic.Int64 // of the real time, in nanoseconds

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// openGate ends with the test.
func openGate(t *testing.T, l *labtest.Lab, ca *authority, addr netip.Addr) *gate {
	t.Helper()
	g := &gate{conns: map[net.Conn]bool{}}
	base := filepath.Join(t.TempDir(), "server")
	ca.issue(t, base, 48*time.Hour, net.IP(addr.AsSlice()))
	pair, err := tls.LoadX509KeyPair(base+".cert", base+".key")
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		Time:                   func() time.Time { return time.Now().Add(time.Duration(g.ahead.Load())) },
		SessionTicketsDisabled: true,
	}
	var listener net.Listener
	for _, space := range l.Status().Spaces {
		if space.Name != "control" {
			continue
		}
		ns, err := netspace.Open(space.Path)
		if err == nil {
			err = netspace.Do(ns, func() error {
				listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", netip.AddrPortFrom(addr, gatePort).String())
				return err
			})
			ns.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		g.advance(0)
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { g.serve(tls.Server(conn, config), strings.TrimPrefix(l.Datastore(), "unix://")) })
		}
	})
	return g
}

// serve carries one connection to etcd.
func (g *gate) serve(in *tls.Conn, etcd string) {
	defer in.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if in.HandshakeContext(ctx) != nil {
		return
	}
	out, err := (&net.Dialer{}).DialContext(ctx, "unix", etcd)
	if err != nil {
		return
	}
	defer out.Close()
	g.mu.Lock()
	g.conns[in] = true
	g.mu.Unlock()
	g.passed.Add(1)
	done := make(chan struct{}, 2)
	for to, from := range map[net.Conn]net.Conn{in: out, out: in} {
		go func() {
			_, _ = io.Copy(to, from)
			done <- struct{}{}
		}()
	}
	<-done
	in.Close()
	out.Close()
	<-done
	g.mu.Lock()
	delete(g.conns, in)
	g.mu.Unlock()
}

// advance makes it later for the gate, and ends every connection.
func (g *gate) advance(d time.Duration) {
	g.ahead.Add(int64(d))
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		c.Close()
	}
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(96 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert: cert, key: key}
}

// issue writes base.cert and base.key: of a server if it has an address.
func (a *authority) issue(t *testing.T, base string, valid time.Duration, ip net.IP) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: filepath.Base(base)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(valid),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if ip != nil {
		template.ExtKeyUsage, template.IPAddresses = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []net.IP{ip}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, base+".cert", "CERTIFICATE", raw)
	writePEM(t, base+".key", "PRIVATE KEY", private)
}

func writePEM(t *testing.T, path, kind string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
		t.Fatal(err)
	}
}
