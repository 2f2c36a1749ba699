package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab/etcdserver"
	"github.com/fairlead-sdn/fairlead/lab/process"
	"github.com/fairlead-sdn/fairlead/lab/spec"
)

// RunEtcd is the process of the built-in etcd: it serves on urls until ctx ends.
func RunEtcd(ctx context.Context, dir string, urls []string) error {
	if len(urls) == 0 {
		return errors.New("etcd: no URL to listen on")
	}
	s, err := etcdserver.Start(ctx, etcdserver.Config{Dir: dir, Listen: urls[0], AlsoListen: urls[1:]})
	if err != nil {
		return err
	}
	defer s.Close()
	select {
	case err := <-s.Err():
		return fmt.Errorf("etcd: %w", err)
	case <-ctx.Done():
		return nil
	}
}

// endpoint is etcd's for programs on the host.
func (s *supervisor) endpoint() string {
	return "unix://" + filepath.Join(s.dir, spec.SocketEtcd)
}

// etcdURLs are etcd's for programs inside of the lab.
func (s *supervisor) etcdURLs() []string {
	var out []string
	for _, a := range s.plan.Control.Addrs() {
		out = append(out, "http://"+netip.AddrPortFrom(a, etcdPort).String())
	}
	return out
}

// newEtcd describes the etcd process: inside of the control namespace, also
// listening on a socket in the lab's directory.
func (s *supervisor) newEtcd() (*process.Daemon, error) {
	dir := filepath.Join(s.dir, spec.DirEtcd)
	c := process.Command{Env: os.Environ(), Dir: s.dir, NetNS: s.net.control}
	var before func() error
	if path := s.options.Etcd; path != "" {
		// Old releases take no path in a unix URL, only what looks like HOST:PORT,
		// and make a socket of that name in the working directory.
		const socket, peer = "etcd:1", "http://127.0.0.1:2380"
		if err := os.Symlink(socket, filepath.Join(s.dir, spec.SocketEtcd)); err != nil {
			return nil, fmt.Errorf("name etcd's socket: %w", err)
		}
		before = func() error { // what a killed etcd leaves
			if err := os.Remove(filepath.Join(s.dir, socket)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove etcd's old socket: %w", err)
			}
			return nil
		}
		urls := s.etcdURLs()
		c.Path = path
		c.Args = []string{
			path, "--data-dir", dir, "--name", "lab",
			"--listen-client-urls", strings.Join(append(urls, "unix://"+socket), ","), "--advertise-client-urls", urls[0],
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "lab=" + peer,
		}
	} else {
		c.Path, c.Args = "/proc/self/exe", s.roles.Etcd(dir, append(s.etcdURLs(), s.endpoint()))
	}
	d := process.NewDaemon(s.table, c, filepath.Join(s.dir, spec.LogEtcd), s.changed)
	d.Before = before
	return d, nil
}

func (s *supervisor) newController() (*process.Daemon, error) {
	config, err := s.writeControllerConfig()
	if err != nil {
		return nil, err
	}
	c := process.Command{
		Path: s.options.Controller, Args: []string{s.options.Controller, "--config", config},
		Env: os.Environ(), Dir: "/", NetNS: s.net.control,
	}
	return process.NewDaemon(s.table, c, filepath.Join(s.dir, spec.LogController), s.changed), nil
}

// waitForEtcd returns when the datastore answers.
func (s *supervisor) waitForEtcd(ctx context.Context) error {
	for {
		_, err := s.store.Get(ctx, datastore.KindNamespace, datastore.Key{Name: metav1.NamespaceDefault})
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		if st := s.etcd.Status(); st.State != process.Running {
			return fmt.Errorf("etcd has ended (%s): %s", st.Exit, process.Tail(filepath.Join(s.dir, spec.LogEtcd)))
		}
		if !wait(ctx, retryNode) {
			return fmt.Errorf("etcd does not answer: %w; it says: %s", err, process.Tail(filepath.Join(s.dir, spec.LogEtcd)))
		}
	}
}

// createObjects writes what a cluster has from its first day: namespaces, the
// default Subnet, and the Nodes.
func (s *supervisor) createObjects(ctx context.Context) error {
	var objects []datastore.Object
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	objects = append(objects, s.options.Subnet())
	for _, o := range objects {
		if _, err := s.store.Create(ctx, o); err != nil {
			return fmt.Errorf("create %s: %w", datastore.KeyOf(o), err)
		}
	}
	for _, h := range s.plan.Nodes {
		if err := s.register(ctx, s.nodes[h.Name]); err != nil {
			return err
		}
	}
	return nil
}

// register makes the node's Node object, as a kubelet does when it starts. Its
// status follows (package cluster), but agents want the address from the start.
func (s *supervisor) register(ctx context.Context, n *node) error {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.host.Name, Labels: map[string]string{
		corev1.LabelHostname: n.host.Name, corev1.LabelOSStable: "linux", "fairlead.dev/lab-segment": n.host.Segment,
	}}}
	got, err := s.store.Create(ctx, o)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create node %s: %w", n.host.Name, err)
	}
	made := got.(*corev1.Node)
	for _, a := range n.host.Addrs() {
		made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	if _, err := s.store.UpdateStatus(ctx, made); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("status of node %s: %w", n.host.Name, err)
	}
	return nil
}

// compact removes etcd's history up to now.
func (s *supervisor) compact(ctx context.Context) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.endpoint()}, Context: ctx, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	defer c.Close()
	now, err := c.Get(ctx, "/", clientv3.WithCountOnly())
	if err == nil {
		_, err = c.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	return nil
}
