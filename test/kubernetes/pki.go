package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// validity of certificates: longer than any cluster of this kind lives.
const validity = 30 * 24 * time.Hour

// authority issues certificates.
type authority struct {
	dir  string
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(dir, name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	a := &authority{dir: dir, name: name, key: key}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return a, a.write(name, der, key)
}

// subject of a certificate.
type subject struct {
	// file without its ending.
	file, name, group string
	addresses         []netip.Addr
	hosts             []string
}

func (a *authority) issue(s subject) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: s.name}, DNSNames: s.hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if s.group != "" {
		template.Subject.Organization = []string{s.group}
	}
	for _, ip := range s.addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("issue a certificate to %s: %w", s.name, err)
	}
	return a.write(s.file, der, key)
}

func (a *authority) write(file string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writePEM(filepath.Join(a.dir, file+".crt"), "CERTIFICATE", der); err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(a.dir, file+".key"), "PRIVATE KEY", raw)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// makePKI makes every key, certificate and kubeconfig of a cluster.
func (l layout) makePKI(nodes int) error {
	for _, dir := range []string{l.run("pki"), l.run("conf")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	ca, err := newAuthority(l.run("pki"), "ca")
	if err != nil {
		return err
	}
	front, err := newAuthority(l.run("pki"), "front-proxy-ca")
	if err != nil {
		return err
	}
	if err := front.issue(subject{file: "front-proxy-client", name: "front-proxy-client"}); err != nil {
		return err
	}
	subjects := []subject{
		{
			file: "apiserver", name: "kube-apiserver",
			addresses: []netip.Addr{controlAddress(), netip.MustParseAddr(apiService), netip.MustParseAddr("127.0.0.1")},
			hosts:     []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		},
		{file: "apiserver-kubelet-client", name: "kube-apiserver-kubelet-client", group: "system:masters"},
		{file: "admin", name: "kubernetes-admin", group: "system:masters"},
		{file: "kube-controller-manager", name: "system:kube-controller-manager"},
		{file: "kube-scheduler", name: "system:kube-scheduler"},
		{file: "kube-proxy", name: "system:kube-proxy"},
	}
	for i := 1; i <= nodes; i++ {
		name := nodeName(i)
		subjects = append(subjects, subject{
			file: name, name: "system:node:" + name, group: "system:nodes", addresses: []netip.Addr{nodeAddress(i)}, hosts: []string{name},
		})
	}
	for _, s := range subjects {
		if err := ca.issue(s); err != nil {
			return err
		}
		if err := os.WriteFile(l.kubeconfig(s.file), []byte(l.kubeconfigText(s.file)), 0o600); err != nil {
			return err
		}
	}
	return l.serviceAccountKey()
}

// serviceAccountKey makes the key that tokens are signed with.
func (l layout) serviceAccountKey() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writePEM(l.pki("sa.pub"), "PUBLIC KEY", public); err != nil {
		return err
	}
	return writePEM(l.pki("sa.key"), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
}

func (l layout) kubeconfigText(user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: k, cluster: {server: "https://%s:6443", certificate-authority: %s}}]
users: [{name: u, user: {client-certificate: %s, client-key: %s}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
current-context: c
`, controlAddress(), l.pki("ca.crt"), l.pki(user+".crt"), l.pki(user+".key"))
}
