package selector

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

func drawQuery(t *rapid.T) Query {
	matcher := func(label string) Matcher {
		s := &world.Selector{}
		for range rapid.IntRange(0, 2).Draw(t, label) {
			r := world.Requirement{Key: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"), Operator: rapid.SampledFrom([]string{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator")}
			if r.Operator == "In" || r.Operator == "NotIn" {
				r.Values = rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", ""}), 1, 2).Draw(t, "values")
			}
			s.MatchExpressions = append(s.MatchExpressions, r)
		}
		if rapid.IntRange(0, 9).Draw(t, "absent") == 0 {
			s = nil
		}
		m, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	q := Query{Pods: matcher("pods"), Namespaces: matcher("namespaces")}
	if rapid.Bool().Draw(t, "one namespace") {
		q.Namespace = rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "namespace")
	}
	return q
}

func drawLabels(t *rapid.T) map[string]string {
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"", "x", "y", "z"}), 0, 2).Draw(t, "labels")
}

// TestIndexAndCatalogAskEverybody changes pods and namespaces at random: the Index
// selects, and the Catalog finds, what asking each pod each query does.
func TestIndexAndCatalogAskEverybody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var queries []Query
		for range rapid.IntRange(1, 6).Draw(t, "queries") {
			queries = append(queries, drawQuery(t))
		}
		catalog := NewCatalog(queries)
		var index Index[int]
		var namespaces world.Table[*world.Namespace]
		pods := map[place]*Pod[int]{}
		for step := range rapid.IntRange(1, 15).Draw(t, "steps") {
			earlier, was := index, maps.Clone(pods)
			wasNamespaces := namespaces
			changed := map[place]PodChange[int]{}
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				p := &Pod[int]{Key: world.Key{Namespace: rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "namespace"), Name: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "name")}, Value: step}
				if p.Known = rapid.IntRange(0, 3).Draw(t, "known") > 0; p.Known {
					p.Labels = drawLabels(t)
				}
				c := PodChange[int]{Old: was[p.place()], New: p}
				if rapid.IntRange(0, 3).Draw(t, "gone") == 0 {
					c.New = nil
				}
				if c.Old != nil || c.New != nil {
					changed[p.place()] = c
				}
			}
			var list []PodChange[int]
			for at, c := range changed {
				list = append(list, c)
				if delete(pods, at); c.New != nil {
					pods[at] = c.New
				}
			}
			if rapid.Bool().Draw(t, "namespace changes") {
				name := rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "namespace")
				namespaces = namespaces.With(world.Key{Name: name}, &world.Namespace{Name: name, Labels: drawLabels(t)})
			}
			index = index.With(namespaces, list)
			check(t, queries, catalog, index, namespaces, pods)
			check(t, queries, catalog, earlier, wasNamespaces, was) // It has not changed.
		}
	})
}

func check(t *rapid.T, queries []Query, catalog *Catalog, index Index[int], namespaces world.Table[*world.Namespace], pods map[place]*Pod[int]) {
	t.Helper()
	want, selected, found := map[string]Answer{}, map[string]Answer{}, map[string]Answer{}
	name := func(i int, p *Pod[int]) string { return fmt.Sprintf("query %d, %v %t %d", i, p.Key, p.Known, p.Value) }
	for _, p := range pods {
		if index.Get(p.Key, p.Known) != p {
			t.Fatalf("the index lacks %v", p)
		}
		ns, _ := namespaces.Get(world.Key{Name: p.Key.Namespace})
		for i, q := range queries {
			if a := q.Ask(p.Key.Namespace, ns, p.Labels, p.Known); a != No {
				want[name(i, p)] = a
			}
		}
		for i, a := range catalog.Ask(p.Key.Namespace, ns, p.Labels, p.Known) {
			if _, twice := found[name(i, p)]; twice {
				t.Fatalf("%s twice", name(i, p))
			}
			found[name(i, p)] = a
		}
	}
	for i, q := range queries {
		for p, a := range index.Select(q) {
			if _, twice := selected[name(i, p)]; twice {
				t.Fatalf("%s twice", name(i, p))
			}
			selected[name(i, p)] = a
		}
	}
	if diff := cmp.Diff(want, selected, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("the index selects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, found, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("the catalog finds (-want +got):\n%s", diff)
	}
}

// TestCatalogAsksFew: a pod asks the queries that its labels or its namespace lead
// to, not all.
func TestCatalogAsksFew(t *testing.T) {
	var queries []Query
	for i := range 1000 {
		m, err := Parse(&world.Selector{MatchLabels: map[string]string{"app": fmt.Sprintf("app%d", i%500)}})
		if err != nil {
			t.Fatal(err)
		}
		q := Query{Namespaces: Everything(), Pods: m}
		if i%2 == 0 {
			q = Query{Namespace: fmt.Sprintf("ns%d", i), Pods: Everything()}
		}
		queries = append(queries, q)
	}
	c := NewCatalog(queries)
	if len(c.rest) != 0 {
		t.Errorf("%d queries are asked about every pod", len(c.rest))
	}
	if got := len(c.byTerm[term{podLabel, "app", "app7"}]); got != 2 {
		t.Errorf("the label leads to %d queries, want 2", got)
	}
	n := 0
	for range c.Ask("ns8", &world.Namespace{Name: "ns8"}, map[string]string{"app": "app7"}, true) {
		n++
	}
	if n != 3 {
		t.Errorf("%d queries select the pod, want 3", n)
	}
}

// TestKeys: keys tell queries apart that ask something else, and no others.
func TestKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawQuery(t), drawQuery(t)
		if a.Namespace != "" {
			a.Namespaces = Matcher{}
		}
		if b.Namespace != "" {
			b.Namespaces = Matcher{}
		}
		same := cmp.Equal(a, b, cmp.AllowUnexported(Query{}, Matcher{}, requirement{}), cmpopts.EquateEmpty())
		if (a.Key() == b.Key()) != same {
			t.Fatalf("%+v and %+v have the keys %q and %q", a, b, a.Key(), b.Key())
		}
	})
}
