package memory

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/datastoretest"
)

func TestContract(t *testing.T) {
	datastoretest.Run(t, func(t *testing.T) datastoretest.Harness {
		before := goleak.IgnoreCurrent()
		s := New(Config{BookmarkInterval: 20 * time.Millisecond})
		t.Cleanup(func() { _ = s.Close() })
		return datastoretest.Harness{
			Store: s, Bookmarks: true, Leaks: []goleak.Option{before},
			Compact: func(*testing.T) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.compact(len(s.history))
			},
		}
	})
}

func tenant(name string) *v1alpha1.NetNamespace {
	return &v1alpha1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NetNamespaceSpec{VNI: 5}}
}

// A reader that falls behind the bounded history is told so; it costs no memory.
func TestHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{History: 10})
		defer s.Close()
		w, err := s.Watch(t.Context(), datastore.KindNetNamespace, "1")
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		for i := range 1000 {
			if _, err := s.Create(t.Context(), tenant(fmt.Sprintf("n%d", i))); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				synctest.Wait() // the watcher holds the first event now
			}
		}
		if got := len(s.history); got != 10 {
			t.Errorf("%d events are kept, want 10", got)
		}
		n := 0
		for range w.Events() {
			n++
		}
		if n != 1 || !apierrors.IsResourceExpired(w.Err()) {
			t.Errorf("%d events, then %v; want one, then ResourceExpired", n, w.Err())
		}
	})
}

// Bookmarks come on time, and only when there is something new to say.
func TestBookmarkInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{BookmarkInterval: time.Minute})
		defer s.Close()
		w, err := s.Watch(t.Context(), datastore.KindSubnet, "1")
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if _, err := s.Create(t.Context(), tenant("a")); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		e := <-w.Events()
		if e.Type != datastore.Bookmark || e.ResourceVersion != "2" || time.Since(begin) != time.Minute {
			t.Errorf("got %+v after %s, want a bookmark at 2 after a minute", e, time.Since(begin))
		}
		select {
		case e := <-w.Events():
			t.Errorf("a second bookmark without news: %+v", e)
		case <-time.After(time.Hour):
		}
	})
}

func BenchmarkCreate(b *testing.B) {
	s := New(Config{})
	defer s.Close()
	i := 0
	for b.Loop() {
		i++
		if _, err := s.Create(b.Context(), tenant(fmt.Sprintf("n%d", i))); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
}

// BenchmarkWatchLatency measures from the call of Create to the event.
func BenchmarkWatchLatency(b *testing.B) {
	s := New(Config{})
	defer s.Close()
	w, err := s.Watch(b.Context(), datastore.KindNetNamespace, "1")
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	i := 0
	for b.Loop() {
		i++
		if _, err := s.Create(b.Context(), tenant(fmt.Sprintf("n%d", i))); err != nil {
			b.Fatal(err)
		}
		<-w.Events()
	}
}
