package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/fairlead-sdn/fairlead"

// listed is what "go list -json" tells of a package.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
	GoFiles    []string
	Doc        string
}

func list(t *testing.T, args ...string) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Imports,Deps,GoFiles,Doc"}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	found := map[string]listed{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		found[p.ImportPath] = p
	}
}

// under reports whether pkg is one of dirs (relative to the module) or below one.
func under(pkg string, dirs ...string) bool {
	rel := strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/")
	return slices.ContainsFunc(dirs, func(d string) bool { return rel == d || strings.HasPrefix(rel, d+"/") })
}

func internal(pkg string) bool { return pkg == module || strings.HasPrefix(pkg, module+"/") }

// impure are the standard packages that pure code may not import: I/O, clocks,
// loggers, goroutines of others.
var impure = []string{"os", "net", "net/http", "log", "log/slog", "syscall", "os/exec", "io/ioutil", "database/sql", "os/signal"}

// TestImports holds the import rules of docs/architecture.md.
func TestImports(t *testing.T) {
	values := []string{"internal/intent", "internal/packet", "internal/world", "internal/openflow", "internal/nftables", "internal/claims"}
	pure := append(slices.Clone(values), "internal/decide", "internal/ipam", "internal/oracle", "internal/render")
	for name, p := range list(t, "./...") {
		for _, dep := range p.Imports {
			if internal(dep) {
				checkInternal(t, name, dep, values)
				continue
			}
			standard := !strings.Contains(strings.SplitN(dep, "/", 2)[0], ".")
			switch {
			case under(name, pure...) && !under(name, "internal/world/feed", "internal/world/worldtest"):
				if standard && slices.Contains(impure, dep) {
					t.Errorf("%s imports %s: it is pure", name, dep)
				}
				if !standard && dep != "go4.org/netipx" && dep != "github.com/gaissmai/bart" {
					t.Errorf("%s imports %s: pure packages use the standard library, netipx and bart", name, dep)
				}
			case strings.HasPrefix(dep, "k8s.io/") || strings.HasPrefix(dep, "sigs.k8s.io/") && dep != "sigs.k8s.io/yaml":
				if !under(name, "api", "internal/datastore", "internal/world/feed", "internal/agent", "internal/controller", "internal/cli", "lab", "cmd", "test") {
					t.Errorf("%s imports %s", name, dep)
				}
			case strings.HasPrefix(dep, "github.com/vishvananda/netlink"), strings.HasPrefix(dep, "github.com/cilium/ebpf"), strings.HasPrefix(dep, "github.com/google/nftables"):
				if !under(name, "internal/apply", "lab", "test") {
					t.Errorf("%s imports %s: only drivers and the lab touch the kernel", name, dep)
				}
			case strings.HasPrefix(dep, "go.etcd.io/etcd/server"):
				if !under(name, "lab") {
					t.Errorf("%s imports %s: the etcd server belongs to the lab", name, dep)
				}
			}
		}
	}
}

func checkInternal(t *testing.T, name, dep string, values []string) {
	t.Helper()
	switch {
	case under(name, "internal/oracle") && under(dep, "internal/decide", "internal/render", "internal/intent"):
		t.Errorf("%s imports %s: the oracle reads the objects with code of its own", name, dep)
	case under(name, values...) && !under(name, "internal/world/feed") && !under(dep, values...):
		t.Errorf("%s imports %s: values import only each other", name, dep)
	case under(name, "internal/decide", "internal/ipam", "internal/oracle") && !under(dep, append(values, "internal/decide", "internal/ipam", "internal/oracle")...):
		t.Errorf("%s imports %s: it is pure", name, dep)
	case under(name, "internal/render") && !under(dep, append(values, "internal/render")...):
		t.Errorf("%s imports %s: renderers know intents and rule values only", name, dep)
	case under(name, "internal/apply") && !under(dep, append(values, "internal/render", "internal/apply")...):
		t.Errorf("%s imports %s: what touches the kernel decides nothing", name, dep)
	}
}

// TestNames refuses packages that are called after what they are not.
func TestNames(t *testing.T) {
	for name, p := range list(t, "./...") {
		if slices.Contains([]string{"util", "utils", "common", "helpers", "types", "manager", "misc"}, path.Base(name)) {
			t.Errorf("package %s: name it after what it is about", name)
		}
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("package %s has no package comment", name)
		}
	}
}

// TestBinaries holds what each binary may link.
func TestBinaries(t *testing.T) {
	for cmd, forbidden := range map[string][]string{
		"fairlead-cni":        {"net", "net/http", "encoding/json", "k8s.io/", "github.com/"},
		"fairlead-agent":      {"go.etcd.io/etcd/server", module + "/lab"},
		"fairlead-controller": {"go.etcd.io/etcd/server", "github.com/vishvananda/netlink", "github.com/cilium/ebpf", module + "/internal/apply/", module + "/lab"},
	} {
		p, ok := list(t, "./cmd/"+cmd)[module+"/cmd/"+cmd]
		if !ok {
			t.Errorf("there is no binary %s", cmd)
		}
		for _, dep := range p.Deps {
			for _, f := range forbidden {
				if dep == f || strings.HasSuffix(f, "/") && strings.HasPrefix(dep, f) && !strings.HasPrefix(dep, module) || strings.HasPrefix(f, module) && strings.HasPrefix(dep, f) ||
					strings.Contains(f, ".") && !strings.HasSuffix(f, "/") && strings.HasPrefix(dep, f+"/") {
					t.Errorf("%s links %s", cmd, dep)
				}
			}
		}
	}
}
