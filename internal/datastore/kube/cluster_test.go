package kube_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/datastoretest"
	"github.com/fairlead-sdn/fairlead/internal/datastore/kube"
)

// config is what a Store of the test connects with.
func (s *server) config() kube.Config {
	return kube.Config{
		Kubeconfig: s.file("kubeconfig"), QPS: 10_000, Burst: 10_000, WatchTimeout: 5 * time.Second,
	}
}

// raw sends a request that no Store has.
func (s *server) raw(t testing.TB) *rest.RESTClient {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", s.file("kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	c.QPS = -1
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	types := runtime.NewScheme()
	if err := corev1.AddToScheme(types); err != nil {
		t.Fatal(err)
	}
	c.NegotiatedSerializer = serializer.NewCodecFactory(types).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Client.CloseIdleConnections)
	return client
}

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// policyDefinition is the file of ClusterNetworkPolicy's definition, in its module.
func policyDefinition(t testing.TB) string {
	t.Helper()
	root := filepath.Join(os.Getenv("HOME"), "go")
	if p := os.Getenv("GOPATH"); p != "" {
		root = p
	}
	cache := filepath.Join(root, "pkg", "mod")
	if p := os.Getenv("GOMODCACHE"); p != "" {
		cache = p
	}
	return filepath.Join(cache, "sigs.k8s.io/network-policy-api@v0.3.0/config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml")
}

func (s *server) define(t testing.TB, files ...string) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		body, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		err = s.raw(t).Post().AbsPath(definitionsPath).SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Error()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("%s: %v", file, err)
		}
	}
}

func (s *server) defineOurs(t testing.TB) {
	t.Helper()
	files, err := filepath.Glob("../../../deploy/crds/*.yaml")
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v; want five definitions", files, err)
	}
	s.define(t, append(files, policyDefinition(t))...)
	store := open(t, s.config())
	for _, kind := range []datastore.Kind{datastore.KindClusterNetworkPolicy, datastore.KindVPC, datastore.KindSubnet, datastore.KindIPBlock, datastore.KindNodeNetwork, datastore.KindNetNamespace} {
		eventually(t, func() error {
			l, err := store.List(t.Context(), kind)
			if err == nil && l.ResourceVersion == "1" {
				return fmt.Errorf("%s is not served yet", kind)
			}
			return err
		})
	}
}

// eventually repeats f until it succeeds.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within 30s: %v", err)
		}
	}
}

// keptNamespaces are not removed by empty.
func keptNamespaces() []string {
	return append([]string{"default", "kube-system", "kube-public", "kube-node-lease"}, datastoretest.Namespaces()...)
}

// empty removes what tests have made, and makes the suite's namespaces.
func (s *server) empty(t testing.TB) {
	t.Helper()
	store, raw := open(t, s.config()), s.raw(t)
	for _, name := range datastoretest.Namespaces() {
		_, err := store.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	now := int64(0)
	for _, kind := range datastore.Kinds() {
		r, err := datastore.Lookup(kind)
		if err != nil {
			t.Fatal(err)
		}
		list, err := store.List(t.Context(), kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			key := datastore.KeyOf(o)
			if kind == datastore.KindNamespace && slices.Contains(keptNamespaces(), key.Name) || kind == datastore.KindServiceCIDR && key.Name == "kubernetes" || key.Namespace == "default" || strings.HasPrefix(key.Namespace, "kube-") {
				continue
			}
			prefix := "/apis/" + r.GroupVersion.String()
			if r.GroupVersion.Group == "" {
				prefix = "/api/v1"
			}
			request := func(q *rest.Request) *rest.Request {
				return q.AbsPath(prefix).NamespaceIfScoped(key.Namespace, r.Namespaced).Resource(r.Plural).Name(key.Name)
			}
			err := request(raw.Delete()).Body(&metav1.DeleteOptions{GracePeriodSeconds: &now}).Do(t.Context()).Error()
			if err == nil && kind == datastore.KindNamespace {
				ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Name}}
				err = request(raw.Put()).SubResource("finalize").Body(ns).Do(t.Context()).Error()
			}
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatalf("remove %s %s: %v", kind, key, err)
			}
		}
	}
}

// compact makes etcd forget the history, and the API server, which has its own, too.
func (s *server) compact(t *testing.T) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.etcdURL()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := c.Get(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), got.Header.Revision); err != nil {
		t.Fatal(err)
	}
	s.api.kill()
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
}
