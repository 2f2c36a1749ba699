package kube_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// How a watch can end, and what its consumer is told.
func TestWatchEndings(t *testing.T) {
	for name, test := range map[string]struct {
		serve func(w http.ResponseWriter, r *http.Request)
		is    func(error) bool
		want  string
	}{
		"gone at once": {func(w http.ResponseWriter, _ *http.Request) {
			answer(w, 410, status(410, metav1.StatusReasonExpired, "too old resource version"))
		}, apierrors.IsResourceExpired, "too old"},
		"gone later": {func(w http.ResponseWriter, _ *http.Request) {
			begin(w)
			event(w, "ADDED", tenant("a", "8"))
			event(w, "ERROR", status(410, metav1.StatusReasonExpired, "too old resource version"))
		}, apierrors.IsResourceExpired, "too old"},
		"went back": {func(w http.ResponseWriter, _ *http.Request) {
			begin(w)
			event(w, "ADDED", tenant("a", "3"))
		}, apierrors.IsResourceExpired, "went back"},
		"rubbish": {func(w http.ResponseWriter, r *http.Request) {
			begin(w)
			event(w, "ADDED", map[string]string{"kind": "Nonsense"})
			<-r.Context().Done()
		}, apierrors.IsServiceUnavailable, "decode"},
		"half an event": {func(w http.ResponseWriter, _ *http.Request) {
			begin(w)
			_, _ = io.WriteString(w, `{"type":"ADD`)
		}, apierrors.IsServiceUnavailable, "at once"},
		"ends at once": {func(w http.ResponseWriter, _ *http.Request) { begin(w) }, apierrors.IsServiceUnavailable, "at once"},
		"unknown type": {func(w http.ResponseWriter, _ *http.Request) {
			begin(w)
			event(w, "EXPLODED", tenant("a", "8"))
		}, func(err error) bool { return err != nil }, ""},
		"internal": {func(w http.ResponseWriter, _ *http.Request) {
			begin(w)
			event(w, "ERROR", status(500, metav1.StatusReasonInternalError, "oh"))
		}, apierrors.IsInternalError, "oh"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("watch") == "" {
					answer(w, 200, tenants("90", ""))
					return
				}
				test.serve(w, r)
			})
			w, err := f.open().Watch(t.Context(), datastore.KindNetNamespace, "7")
			if err == nil {
				err = ended(t, w)
				w.Stop()
			}
			if !test.is(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
			if n := len(f.seen("watch=true")); n != 1 {
				t.Errorf("%d requests, want 1: whoever waits between attempts is the consumer", n)
			}
		})
	}
}

// A resourceVersion that the server has not come to would be silence for ever.
func TestWatchAheadOfServer(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			begin(w)
			<-r.Context().Done()
			return
		}
		answer(w, 504, status(504, metav1.StatusReasonTimeout, "Too large resource version: 700, current: 7",
			metav1.StatusCause{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}))
	})
	if err := ended(t, mustWatch(t, f.open(), datastore.KindNetNamespace, "700")); !apierrors.IsResourceExpired(err) {
		t.Errorf("got %v, want ResourceExpired", err)
	}
}

// hole passes bytes on between a client and a server until it is told to swallow them:
// then both ends look alive and neither hears the other.
type hole struct {
	net.Listener
	target string
	closed atomic.Bool
	conns  sync.WaitGroup
}

func newHole(t *testing.T, target string) *hole {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{Listener: l, target: target}
	h.conns.Go(h.serve)
	t.Cleanup(func() {
		_ = l.Close()
		h.conns.Wait()
	})
	return h
}

func (h *hole) serve() {
	for {
		c, err := h.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", h.target)
		if err != nil {
			_ = c.Close()
			continue
		}
		h.conns.Go(func() { h.pass(c, up) })
		h.conns.Go(func() { h.pass(up, c) })
	}
}

func (h *hole) pass(from, to net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !h.closed.Load() {
			_, _ = to.Write(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}

func TestHalfOpenConnection(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			answer(w, 200, tenants("90", ""))
			return
		}
		begin(w)
		event(w, "ADDED", tenant("a", "8"))
		<-r.Context().Done()
	})
	h := newHole(t, f.Listener.Addr().String())
	s := open(t, f.config("https://"+h.Addr().String()))
	w := mustWatch(t, s, datastore.KindNetNamespace, "7")
	if _, ok := next(t, w); !ok {
		t.Fatal(w.Err())
	}
	h.closed.Store(true)
	begun := time.Now()
	if err := ended(t, w); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("got %v, want ServiceUnavailable", err)
	}
	// Two pings of 100 ms, on a busy machine; without them it would be minutes.
	if d := time.Since(begun); d > 5*time.Second {
		t.Errorf("noticed after %s", d)
	}
	h.closed.Store(false)
	w = mustWatch(t, s, datastore.KindNetNamespace, "8")
	if _, ok := next(t, w); !ok {
		t.Errorf("the connection was not made anew: %v", w.Err())
	}
}
