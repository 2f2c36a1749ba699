package feed_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// paged lists Nodes in pages, and begins anew after the first; then it ends the test.
type paged struct {
	datastore.Store
	done context.CancelFunc
}

func (p *paged) Pages(_ context.Context, _ datastore.Kind, page func(bool, []datastore.Object)) (string, error) {
	node := func(name string) []datastore.Object {
		return []datastore.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	}
	page(true, node("gone"))
	page(true, node("a"))
	page(false, node("b"))
	return "7", nil
}

func (p *paged) Watch(context.Context, datastore.Kind, string) (datastore.Watcher, error) {
	p.done()
	return nil, errors.New("the test is over")
}

func TestPagesThatBeginAnew(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := world.NewStore(nil)
	f, err := feed.New(feed.Config{Store: &paged{done: cancel}, World: w, Kinds: []world.Kind{world.KindNode}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Run(ctx); err != nil {
		t.Fatal(err)
	}
	s, _ := w.Snapshot()
	var got []string
	for k := range s.Nodes.All() {
		got = append(got, k.Name)
	}
	if len(got) != 2 || got[0] != "a" || got[1] != "b" {
		t.Errorf("the world has the nodes %v, want a and b", got)
	}
	if s.Position[world.KindNode] != "7" || !s.Synced[world.KindNode] {
		t.Errorf("position %q, synced %t", s.Position[world.KindNode], s.Synced[world.KindNode])
	}
}
