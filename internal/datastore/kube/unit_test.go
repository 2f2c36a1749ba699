package kube_test

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/kube"
)

func listTenants(s *kube.Store, t *testing.T) error {
	_, err := s.List(t.Context(), datastore.KindNetNamespace)
	return err
}

func tenants(rv, next string, names ...string) *v1alpha1.NetNamespaceList {
	l := &v1alpha1.NetNamespaceList{TypeMeta: metav1.TypeMeta{APIVersion: "fairlead.dev/v1alpha1", Kind: "NetNamespaceList"}}
	l.ResourceVersion, l.Continue = rv, next
	for _, n := range names {
		l.Items = append(l.Items, *tenant(n, rv))
	}
	return l
}

// A token that has expired is refused in words that say where it is from, without itself,
// and the file's new one is used without a restart.
func TestTokenIsRenewed(t *testing.T) {
	var valid atomic.Value
	valid.Store("secret-2")
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+valid.Load().(string) {
			answer(w, 401, status(401, metav1.StatusReasonUnauthorized, "Unauthorized"))
			return
		}
		answer(w, 200, tenants("7", ""))
	})
	s := f.open()
	err := listTenants(s, t)
	if !apierrors.IsUnauthorized(err) || !strings.Contains(err.Error(), filepath.Join(f.dir, "token")) || strings.Contains(err.Error(), "secret") {
		t.Errorf("with an expired token: %v; want Unauthorized that names the file, without the token", err)
	}
	f.write("token", "secret-2\n")
	eventually(t, func() error { return listTenants(s, t) })
}

// A kubeconfig that is mended, or whose authority is renewed, is read again.
func TestKubeconfigIsReadAgain(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, tenants("7", "")) })
	good := f.config(f.URL)
	other, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(good.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	f.write("ca.crt", string(other.pem))
	at := strings.Index(string(text), "certificate-authority-data")
	end := at + strings.Index(string(text[at:]), "}")
	f.write("kubeconfig", string(text[:at])+"certificate-authority: ca.crt"+string(text[end:]))
	s := open(t, good)
	if err := listTenants(s, t); !apierrors.IsUnauthorized(err) || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("with another authority: %v, want Unauthorized that names the kubeconfig", err)
	}
	f.write("ca.crt", "half a fi")
	eventually(t, func() error {
		if err := listTenants(s, t); err == nil || !strings.Contains(err.Error(), "as they are now cannot be used") {
			return fmt.Errorf("with a broken file: %w", err)
		}
		return nil
	})
	f.write("ca.crt", string(f.certificate()))
	eventually(t, func() error { return listTenants(s, t) })
}

func TestConfigIsChecked(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "", "broken": "{", "context": "apiVersion: v1\nkind: Config\ncurrent-context: gone\n"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := kube.New(kube.Config{Kubeconfig: file, Logger: discard()}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want an error that names %s", name, err, file)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := kube.New(kube.Config{Logger: discard()}); err == nil || !strings.Contains(err.Error(), "not a pod") {
		t.Errorf("outside a cluster: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if _, err := kube.New(kube.Config{ServiceAccount: dir, Logger: discard()}); err == nil || !strings.Contains(err.Error(), "automountServiceAccountToken") {
		t.Errorf("without a token: %v", err)
	}
	if _, err := kube.New(kube.Config{}); err == nil {
		t.Error("no logger: no error")
	}
}

// A pod finds its server and its token by itself.
func TestInCluster(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret-1" {
			answer(w, 401, status(401, metav1.StatusReasonUnauthorized, "Unauthorized"))
			return
		}
		answer(w, 200, tenants("7", "", "a"))
	})
	host, port, err := net.SplitHostPort(f.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	f.write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})))
	s := open(t, kube.Config{ServiceAccount: f.dir})
	if err := listTenants(s, t); err != nil {
		t.Error(err)
	}
}

// What a server says becomes what the contract knows, with a reason that a person can use.
func TestErrors(t *testing.T) {
	for name, test := range map[string]struct {
		code int
		body any
		is   func(error) bool
		want string
	}{
		"forbidden":     {403, status(403, metav1.StatusReasonForbidden, `User "x" cannot list it`), apierrors.IsForbidden, "RBAC"},
		"overloaded":    {429, status(429, metav1.StatusReasonTooManyRequests, "later"), apierrors.IsServiceUnavailable, "later"},
		"no quorum":     {500, status(500, "", "etcdserver: leader changed"), apierrors.IsServiceUnavailable, "etcdserver"},
		"slow etcd":     {504, status(504, metav1.StatusReasonTimeout, "timed out"), apierrors.IsServiceUnavailable, "timed out"},
		"starting":      {503, status(503, metav1.StatusReasonServiceUnavailable, "not yet"), apierrors.IsServiceUnavailable, "not yet"},
		"not installed": {404, "404 page not found", apierrors.IsServiceUnavailable, "apply its CustomResourceDefinition"},
		"internal":      {500, status(500, metav1.StatusReasonInternalError, "oh"), apierrors.IsInternalError, "oh"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, test.code, test.body) })
			if err := listTenants(f.open(), t); !test.is(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	f := newFake(t, func(http.ResponseWriter, *http.Request) {})
	s := f.open()
	f.Close()
	if err := listTenants(s, t); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), f.URL) {
		t.Errorf("nobody listens: %v", err)
	}
}

// A server that takes a request and never answers ends the call, not the caller.
func TestNoAnswer(t *testing.T) {
	f := newFake(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c := f.config(f.URL)
	c.RequestTimeout = 200 * time.Millisecond
	s := open(t, c)
	if err := listTenants(s, t); !apierrors.IsTimeout(err) {
		t.Errorf("list: %v, want Timeout", err)
	}
	if _, err := s.Watch(t.Context(), datastore.KindNetNamespace, "7"); !apierrors.IsTimeout(err) {
		t.Errorf("watch: %v, want Timeout", err)
	}
	if _, err := s.Pages(t.Context(), datastore.KindNetNamespace, func(bool, []datastore.Object) {}); !apierrors.IsTimeout(err) {
		t.Errorf("pages: %v, want Timeout", err)
	}
}

// Pages that the server forgets in the middle are read anew, from the first.
func TestListBeginsAnew(t *testing.T) {
	var calls atomic.Int32
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		switch n := calls.Add(1); {
		case r.URL.Query().Get("limit") != "500":
			t.Errorf("%s has no limit", r.URL)
		case n == 2:
			answer(w, 410, status(410, metav1.StatusReasonExpired, "the continue token is too old"))
		case r.URL.Query().Get("continue") == "":
			answer(w, 200, tenants("7", "more", "b", fmt.Sprintf("only-%d", n)))
		default:
			answer(w, 200, tenants("7", "", "a"))
		}
	})
	l, err := f.open().List(t.Context(), datastore.KindNetNamespace)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range l.Items {
		got = append(got, o.GetName())
	}
	if diff := cmp.Diff([]string{"a", "b", "only-3"}, got); diff != "" || l.ResourceVersion != "7" {
		t.Errorf("%s, resourceVersion %s", diff, l.ResourceVersion)
	}
}

// A server that cannot stream lists is asked once, and gives pages then.
func TestPagesWithoutStreaming(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("sendInitialEvents") != "" {
			answer(w, 422, status(422, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden unless the WatchList feature gate is enabled"))
			return
		}
		answer(w, 200, tenants("7", "", "a"))
	})
	s := f.open()
	for range 2 {
		n := 0
		rv, err := s.Pages(t.Context(), datastore.KindNetNamespace, func(first bool, o []datastore.Object) { n += len(o) })
		if err != nil || rv != "7" || n != 1 {
			t.Errorf("%q, %d objects, %v", rv, n, err)
		}
	}
	if got := f.seen("sendInitialEvents"); len(got) != 1 {
		t.Errorf("asked to stream %d times, want once", len(got))
	}
}

// A streamed list comes in pages and ends at its bookmark; one that breaks off is an error.
func TestPagesStreamed(t *testing.T) {
	var broken atomic.Bool
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request) {
		begin(w)
		for i := range 1201 {
			o := tenant(fmt.Sprintf("t%d", i), "5")
			o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
			event(w, "ADDED", o)
		}
		event(w, "BOOKMARK", tenant("", "6"))
		if !broken.Load() {
			endOfList(w, "7")
		}
	})
	s := f.open()
	var sizes []int
	rv, err := s.Pages(t.Context(), datastore.KindNetNamespace, func(first bool, objects []datastore.Object) {
		if first != (len(sizes) == 0) {
			t.Errorf("page %d: first is %v", len(sizes), first)
		}
		sizes = append(sizes, len(objects))
		for _, o := range objects {
			if len(o.GetManagedFields()) > 0 {
				t.Fatal("managed fields are kept")
			}
		}
	})
	if diff := cmp.Diff([]int{500, 500, 201}, sizes); diff != "" || rv != "7" || err != nil {
		t.Errorf("resourceVersion %q, %v, pages:\n%s", rv, err, diff)
	}
	broken.Store(true)
	if _, err := s.Pages(t.Context(), datastore.KindNetNamespace, func(bool, []datastore.Object) {}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("broken off: %v, want ServiceUnavailable", err)
	}
}

// A watch that the server ends in order goes on from its last bookmark, unseen.
func TestWatchGoesOn(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("watch") == "" {
			answer(w, 200, tenants("90", ""))
			return
		}
		if q.Get("allowWatchBookmarks") != "true" || q.Get("timeoutSeconds") == "" {
			t.Errorf("%s: no bookmarks or no end", r.URL)
		}
		begin(w)
		switch q.Get("resourceVersion") {
		case "7":
			event(w, "ADDED", tenant("a", "8"))
			event(w, "BOOKMARK", tenant("", "20"))
		case "20":
			event(w, "DELETED", tenant("a", "21"))
			<-r.Context().Done()
		default:
			t.Errorf("unexpected %s", r.URL)
		}
	})
	w := mustWatch(t, f.open(), datastore.KindNetNamespace, "7")
	var got []string
	for range 3 {
		e, ok := next(t, w)
		if !ok {
			t.Fatalf("the watch ended: %v", w.Err())
		}
		got = append(got, string(e.Type)+"@"+e.ResourceVersion)
	}
	if diff := cmp.Diff([]string{"ADDED@8", "BOOKMARK@20", "DELETED@21"}, got); diff != "" {
		t.Error(diff)
	}
}

// Where definitions may not be watched, a kind that is not installed is no failure either.
func TestAbsentKindWithoutRights(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "customresourcedefinitions") {
			answer(w, 403, status(403, metav1.StatusReasonForbidden, "no"))
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		http.Error(w, "404 page not found", http.StatusNotFound)
	})
	s := f.open()
	rv, err := s.Pages(t.Context(), datastore.KindClusterNetworkPolicy, func(first bool, o []datastore.Object) {
		if !first || len(o) > 0 {
			t.Errorf("first %v, %d objects; want one empty page", first, len(o))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	w := mustWatch(t, s, datastore.KindClusterNetworkPolicy, rv)
	eventually(t, func() error {
		if len(f.seen("customresourcedefinitions")) == 0 {
			return fmt.Errorf("nobody has asked for the definition")
		}
		return nil
	})
	w.Stop()
	if err := w.Err(); err != nil {
		t.Errorf("after Stop: %v", err)
	}
	if _, err := s.Get(t.Context(), datastore.KindClusterNetworkPolicy, datastore.Key{Name: "a"}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v, want NotFound", err)
	}
}

// Lean objects have what Fairlead reads, and cannot be written.
func TestLean(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "a", ResourceVersion: "7", Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{
				NodeName: "n1", Volumes: []corev1.Volume{{Name: "v"}},
				Containers: []corev1.Container{{Name: "main", Image: "x", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "fd00::1"}}, ContainerStatuses: []corev1.ContainerStatus{{Name: "main"}}},
		}
		l := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{p}}
		l.ResourceVersion = "7"
		answer(w, 200, l)
	})
	c := f.config(f.URL)
	c.Lean = true
	s := open(t, c)
	l, err := s.List(t.Context(), datastore.KindPod)
	if err != nil || len(l.Items) != 1 {
		t.Fatalf("%v, %v", l, err)
	}
	p := l.Items[0].(*corev1.Pod)
	if p.Labels["app"] != "web" || p.Spec.NodeName != "n1" || p.Spec.Containers[0].Ports[0].Name != "http" || p.Spec.Containers[0].Ports[0].Protocol != corev1.ProtocolTCP || p.Status.PodIPs[0].IP != "fd00::1" {
		t.Errorf("lean pod %+v lacks something", p)
	}
	if len(p.Spec.Volumes) > 0 || p.Spec.Containers[0].Image != "" || len(p.Status.ContainerStatuses) > 0 {
		t.Errorf("lean pod %+v is not lean", p)
	}
	for name, write := range map[string]func() error{
		"update":        func() error { _, err := s.Update(t.Context(), p); return err },
		"update status": func() error { _, err := s.UpdateStatus(t.Context(), p); return err },
	} {
		if err := write(); !apierrors.IsBadRequest(err) {
			t.Errorf("%s of a lean pod: %v, want BadRequest", name, err)
		}
	}
	if got := f.seen("PUT"); len(got) > 0 {
		t.Errorf("sent %v", got)
	}
}
