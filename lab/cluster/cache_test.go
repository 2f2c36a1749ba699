package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// What a write of our own answers may be old news: the watch has told of another change
// since, or of the end.
func TestOldNewsBringNothingBack(t *testing.T) {
	c := &cache{changed: func() {}, objects: map[datastore.Key]datastore.Object{}}
	at := func(version string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name, p.UID, p.ResourceVersion = "demo", "web", "u", version
		return p
	}
	version := func() string {
		for _, o := range snapshot[*corev1.Pod](c) {
			return o.ResourceVersion
		}
		return "none"
	}
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() { c.wrote(at("9"), true) }, "9"},
		{func() { c.put(at("12")) }, "12"},
		{func() { c.wrote(at("11"), false) }, "12"},
		{func() { c.put(at("10")) }, "12"},
		{func() { c.wrote(at("13"), false) }, "13"},
		{func() { c.remove(at("14")) }, "none"},
		{func() { c.wrote(at("13"), false) }, "none"},
	} {
		if step.do(); version() != step.want {
			t.Errorf("step %d: the cache holds %s, want %s", i, version(), step.want)
		}
	}
}
