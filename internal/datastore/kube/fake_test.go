package kube_test

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/kube"
)

// fake is a server that speaks the API's protocol as far as a test wants.
type fake struct {
	*httptest.Server
	t   testing.TB
	dir string

	mu       sync.Mutex
	requests []string
}

// newFake serves with HTTP/2 and TLS. Every request is noted.
func newFake(t testing.TB, handle http.HandlerFunc) *fake {
	f := &fake{t: t, dir: t.TempDir()}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, r.Method+" "+r.URL.String())
		f.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		handle(w, r)
	}))
	f.EnableHTTP2 = true
	f.Config.ErrorLog = log.New(io.Discard, "", 0)
	f.StartTLS()
	t.Cleanup(f.Close)
	f.write("token", "secret-1\n")
	return f
}

func (f *fake) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// seen lists the requests that contain a text.
func (f *fake) seen(text string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, r := range f.requests {
		if strings.Contains(r, text) {
			out = append(out, r)
		}
	}
	return out
}

func (f *fake) certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
}

// config connects to url with the token in the file "token".
func (f *fake) config(url string) kube.Config {
	f.write("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: k, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {tokenFile: token}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
current-context: c
`, url, base64.StdEncoding.EncodeToString(f.certificate())))
	return kube.Config{
		Kubeconfig: filepath.Join(f.dir, "kubeconfig"), RequestTimeout: 2 * time.Second,
		PingInterval: 100 * time.Millisecond, PingTimeout: 100 * time.Millisecond,
	}
}

func (f *fake) open() *kube.Store {
	f.t.Helper()
	return open(f.t, f.config(f.URL))
}

func answer(w http.ResponseWriter, code int, body any) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
	w.(http.Flusher).Flush()
}

func status(code int32, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: code, Reason: reason, Message: message, Details: &metav1.StatusDetails{Causes: causes},
	}
}

func tenant(name, rv string) *v1alpha1.NetNamespace {
	return &v1alpha1.NetNamespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "fairlead.dev/v1alpha1", Kind: "NetNamespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: rv}, Spec: v1alpha1.NetNamespaceSpec{VNI: 5},
	}
}

func event(w http.ResponseWriter, kind string, o any) {
	_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": o})
	w.(http.Flusher).Flush()
}

// endOfList is the bookmark at the end of a streamed list.
func endOfList(w http.ResponseWriter, rv string) {
	o := tenant("", rv)
	o.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	event(w, "BOOKMARK", o)
}

// begin sends the head of the answer to a watch.
func begin(w http.ResponseWriter) { w.(http.Flusher).Flush() }

func mustWatch(t testing.TB, s datastore.Store, kind datastore.Kind, rv string) datastore.Watcher {
	t.Helper()
	w, err := s.Watch(t.Context(), kind, rv)
	if err != nil {
		t.Fatalf("watch %s from %s: %v", kind, rv, err)
	}
	t.Cleanup(w.Stop)
	return w
}

// next is the next event; ok is false if the watch has ended.
func next(t testing.TB, w datastore.Watcher) (e datastore.Event, ok bool) {
	t.Helper()
	select {
	case e, ok = <-w.Events():
	case <-time.After(20 * time.Second):
		t.Fatal("neither an event nor an end within 20s")
	}
	return e, ok
}

// ended reads up to the end and returns its reason.
func ended(t testing.TB, w datastore.Watcher) error {
	t.Helper()
	for {
		if _, ok := next(t, w); !ok {
			return w.Err()
		}
	}
}
