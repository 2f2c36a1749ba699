package config

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// paths lists the leaves of a configuration as its files write them.
func paths(t reflect.Type, prefix string) []string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[Duration]() {
		return []string{strings.TrimSuffix(prefix, ".")}
	}
	var out []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" {
			name += "."
		}
		out = append(out, paths(f.Type, prefix+name)...)
	}
	return out
}

// leaves lists those of a YAML document.
func leaves(v any, prefix string) []string {
	m, ok := v.(map[string]any)
	if !ok {
		return []string{prefix}
	}
	var out []string
	for k, v := range m {
		out = append(out, leaves(v, strings.TrimPrefix(prefix+"."+k, "."))...)
	}
	return out
}

// The files in docs/config.md and docs/controller.md are valid, and the former show
// every field.
func TestDocumentation(t *testing.T) {
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	shown := map[string]map[string]bool{}
	for _, page := range []string{"config.md", "controller.md"} {
		raw, err := os.ReadFile(filepath.Join("../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllStringSubmatch(string(raw), -1) {
			kind, err := Check(write(t, m[1]))
			if err != nil {
				t.Errorf("%s shows a file that is not valid: %v", page, err)
			}
			var doc any
			if err := yaml.Unmarshal([]byte(m[1]), &doc); err != nil {
				t.Fatal(err)
			}
			if page == "config.md" {
				shown[kind] = map[string]bool{}
				for _, l := range leaves(doc, "") {
					shown[kind][l] = true
				}
			}
		}
	}
	for kind, typ := range map[string]reflect.Type{KindAgent: reflect.TypeFor[Agent](), KindController: reflect.TypeFor[Controller]()} {
		fields := paths(typ, "")
		if len(fields) < 14 || !slices.Contains(fields, "datastore.etcd.endpoints") || !slices.Contains(fields, "apiVersion") {
			t.Fatalf("%s: the fields are %q", kind, fields)
		}
		for _, f := range fields {
			// Both daemons connect alike, to one of two: the agent's file shows how to etcd,
			// the controller's how to Kubernetes.
			if !shown[kind][f] && !(strings.HasPrefix(f, "datastore.") && (shown[KindAgent][f] || shown[KindController][f])) {
				t.Errorf("docs/config.md does not show %s of %s", f, kind)
			}
		}
	}
}

// What docs/config.md says is the default, by its value or in a comment.
func TestDocumentedDefaults(t *testing.T) {
	got, err := LoadAgent(write(t, agent))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(strings.SplitN(string(raw), "```yaml\n", 2)[1], "```")
	shown, err := LoadAgent(write(t, first))
	if err != nil {
		t.Fatal(err)
	}
	// These have another default, which a comment tells.
	shown.Node, shown.Datastore, shown.Underlay, shown.Metrics = got.Node, got.Datastore, got.Underlay, Metrics{}
	if d := cmp.Diff(got, shown); d != "" {
		t.Errorf("docs/config.md shows other values than the agent's defaults (-default +shown):\n%s", d)
	}
}
