package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Go packages whose programs are built from the module of Kubernetes itself.
var kubernetesPrograms = map[string]string{
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
	"kubelet":                 "k8s.io/kubernetes/cmd/kubelet",
	"kube-proxy":              "k8s.io/kubernetes/cmd/kube-proxy",
	"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
	"agnhost":                 "k8s.io/kubernetes/test/images/agnhost",
	// Runs the tests side by side; of the version that they are built with.
	"ginkgo": "github.com/onsi/ginkgo/v2/ginkgo",
}

// endToEnd is a test binary.
const (
	endToEnd        = "e2e.test"
	endToEndPackage = "k8s.io/kubernetes/test/e2e"
)

// foreign is a module that is built with the dependencies that its own go.mod names.
type foreign struct {
	dir, module, version, tags, ldflags string
	// programs: file below bin → package. One that ends in ".test" is a test binary.
	programs map[string]string
	// edit changes the copy of the module, if set.
	edit func(dir string) error
}

func foreignModules() []foreign {
	return []foreign{
		{
			dir: "containerd", module: "github.com/containerd/containerd/v2", version: containerdVersion,
			tags: "no_btrfs no_zfs no_devmapper", ldflags: "-X github.com/containerd/containerd/v2/version.Version=" + containerdVersion,
			programs: map[string]string{"containerd": "./cmd/containerd", "containerd-shim-runc-v2": "./cmd/containerd-shim-runc-v2", "ctr": "./cmd/ctr"},
		},
		{dir: "etcd", module: "go.etcd.io/etcd/server/v3", version: etcdVersion, programs: map[string]string{"etcd": "."}},
		{
			dir: "cni-plugins", module: "github.com/containernetworking/plugins", version: pluginsVersion,
			programs: map[string]string{
				"cni/bridge": "./plugins/main/bridge", "cni/loopback": "./plugins/main/loopback",
				"cni/host-local": "./plugins/ipam/host-local", "cni/portmap": "./plugins/meta/portmap",
			},
		},
		{
			dir: "network-policy-api", module: "sigs.k8s.io/network-policy-api", version: policyAPIVersion,
			programs: map[string]string{policyTests: "./conformance"}, edit: withoutSCTP,
		},
	}
}

// ensure builds what is missing of the programs and images.
func ensure(ctx context.Context, l layout, w io.Writer) error {
	if err := build(ctx, l, w); err != nil {
		return err
	}
	return images(ctx, l, w)
}

// builder runs the go command for the cache directory.
type builder struct {
	layout
	w io.Writer
}

// build builds the programs that are missing. From nothing it takes tens of minutes.
func build(ctx context.Context, l layout, w io.Writer) error {
	b := builder{layout: l, w: w}
	if err := os.MkdirAll(l.bin("cni"), 0o755); err != nil {
		return err
	}
	for _, f := range foreignModules() {
		for name, pkg := range f.programs {
			if b.have(name) {
				continue
			}
			if err := b.foreign(ctx, f, name, pkg); err != nil {
				return err
			}
		}
	}
	for name, pkg := range kubernetesPrograms {
		if b.have(name) {
			continue
		}
		if err := b.kubernetes(ctx, name, "build", pkg); err != nil {
			return err
		}
	}
	if !b.have(endToEnd) {
		if err := b.kubernetes(ctx, endToEnd, "test", endToEndPackage); err != nil {
			return err
		}
	}
	if b.have("coredns") {
		return nil
	}
	return b.coredns(ctx)
}

func (b builder) have(name string) bool {
	info, err := os.Stat(b.bin(name))
	return err == nil && info.Mode().IsRegular()
}

// goIn runs the go command in a directory of the cache.
func (b builder) goIn(ctx context.Context, dir string, args ...string) ([]byte, error) {
	// #nosec G204 -- arguments of this program's own
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod -buildvcs=false", "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go %s (in %s): %w: %s", strings.Join(args, " "), dir, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// compile builds one program beside its place and moves it there: what is there is whole.
func (b builder) compile(ctx context.Context, dir, name string, args ...string) error {
	fmt.Fprintf(b.w, "building %s\n", name)
	out := b.bin(name) + ".new"
	args = append([]string{args[0], "-trimpath", "-o", out}, args[1:]...)
	if _, err := b.goIn(ctx, dir, args...); err != nil {
		return err
	}
	return os.Rename(out, b.bin(name))
}

// module downloads a module and returns its directory.
func (b builder) module(ctx context.Context, module, version string) (string, error) {
	raw, err := b.goIn(ctx, b.root, "mod", "download", "-json", module+"@"+version)
	if err != nil {
		return "", err
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(raw, &m); err != nil {
		return "", err
	}
	return m.Dir, nil
}

// foreign copies a module, because its go.mod is to be changed: what it replaces by
// directories is not in a module's archive.
func (b builder) foreign(ctx context.Context, f foreign, name, pkg string) error {
	dir := b.src(f.dir)
	marker := filepath.Join(dir, "."+f.version)
	if _, err := os.Stat(marker); errors.Is(err, fs.ErrNotExist) {
		source, err := b.module(ctx, f.module, f.version)
		if err != nil {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := copyModule(dir, source); err != nil {
			return err
		}
		if f.edit != nil {
			if err := f.edit(dir); err != nil {
				return err
			}
		}
		if err := os.WriteFile(marker, nil, 0o600); err != nil {
			return err
		}
	}
	verb := []string{"build"}
	if strings.HasSuffix(name, ".test") {
		verb = []string{"test", "-c", "-vet=off"}
	}
	return b.compile(ctx, dir, name, append(verb, "-tags", f.tags, "-ldflags", "-s -w "+f.ldflags, pkg)...)
}

// localReplacement is a line of a go.mod.
var localReplacement = regexp.MustCompile(`(?m)^.*=> \.\.?/.*\n`)

func copyModule(dir, source string) error {
	return filepath.WalkDir(source, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			if e.Name() == "vendor" {
				return fs.SkipDir
			}
			return os.MkdirAll(filepath.Join(dir, rel), 0o755)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if rel == "go.mod" {
			raw = localReplacement.ReplaceAll(raw, nil)
		}
		return os.WriteFile(filepath.Join(dir, rel), raw, 0o644)
	})
}

// kubernetesModule makes the module that Kubernetes is built in: its own go.mod, in which the
// staging modules (which its archive does not have) are replaced by their published versions.
func (b builder) kubernetesModule(ctx context.Context) (string, error) {
	dir := b.src("k8s")
	marker := filepath.Join(dir, "."+kubernetesVersion)
	if _, err := os.Stat(marker); err == nil {
		return dir, nil
	}
	source, err := b.module(ctx, "k8s.io/kubernetes", kubernetesVersion)
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return "", err
	}
	staging := "v0." + strings.TrimPrefix(kubernetesVersion, "v1.")
	text := strings.Replace(string(raw), "module k8s.io/kubernetes\n", "module kubebuild\n", 1)
	text = regexp.MustCompile(`(?m)=> \./staging/src/k8s\.io/(.*)$`).ReplaceAllString(text, "=> k8s.io/$1 "+staging)
	text += "\nrequire k8s.io/kubernetes " + kubernetesVersion + "\n"
	sums, err := os.ReadFile(filepath.Join(source, "go.sum"))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for name, content := range map[string][]byte{"go.mod": []byte(text), "go.sum": sums} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return "", err
		}
	}
	// Adds the sums of the modules that only the archives lack.
	list := []string{"list", "-deps"}
	for _, pkg := range kubernetesPrograms {
		list = append(list, pkg)
	}
	if _, err := b.goIn(ctx, dir, list...); err != nil {
		return "", err
	}
	if _, err := b.goIn(ctx, dir, "list", "-deps", "-test", endToEndPackage); err != nil {
		return "", err
	}
	return dir, os.WriteFile(marker, nil, 0o600)
}

func (b builder) kubernetes(ctx context.Context, name, verb, pkg string) error {
	dir, err := b.kubernetesModule(ctx)
	if err != nil {
		return err
	}
	// Components refuse to talk to others of no version.
	part := strings.SplitN(strings.TrimPrefix(kubernetesVersion, "v"), ".", 3)
	flags := "-s -w"
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags += fmt.Sprintf(" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean -X %[1]s.buildDate=1970-01-01T00:00:00Z",
			p, kubernetesVersion, part[0], part[1])
	}
	args := []string{verb, "-ldflags", flags}
	if verb == "test" {
		args = append(args, "-vet=off", "-c")
	}
	return b.compile(ctx, dir, name, append(args, pkg)...)
}

// coredns builds a CoreDNS that has only the plugins of a cluster's DNS: none for any cloud.
func (b builder) coredns(ctx context.Context) error {
	dir := b.src("coredns")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := "package main\n\nimport (\n\t\"github.com/coredns/coredns/coremain\"\n"
	for _, plugin := range []string{
		"bind", "cache", "errors", "file", "forward", "health", "hosts", "kubernetes", "loadbalance", "log", "loop", "ready", "reload", "rewrite", "template",
	} {
		text += fmt.Sprintf("\t_ \"github.com/coredns/coredns/plugin/%s\"\n", plugin)
	}
	text += ")\n\nfunc main() { coremain.Run() }\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(text), 0o600); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); errors.Is(err, fs.ErrNotExist) {
		if _, err := b.goIn(ctx, dir, "mod", "init", "corednsbuild"); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"get", "github.com/coredns/coredns@" + corednsVersion}, {"mod", "tidy"}} {
		if _, err := b.goIn(ctx, dir, args...); err != nil {
			return err
		}
	}
	return b.compile(ctx, dir, "coredns", "build", "-ldflags", "-s -w", ".")
}
