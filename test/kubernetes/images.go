package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/deploy/ociarchive"
)

// repositories of images that Kubernetes and its tests ask for.
const (
	testImages = "registry.k8s.io/e2e-test-images/"
	defaultEnv = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// images makes the archives that are missing. Fairlead's own is made by "make images".
func images(ctx context.Context, l layout, w io.Writer) error {
	if err := os.MkdirAll(filepath.Dir(l.image("")), 0o755); err != nil {
		return err
	}
	for name, make := range map[string]func(context.Context, layout, versions) ([]ociarchive.Image, error){
		"pause": pauseImage, "busybox": busyboxImage, "agnhost": agnhostImage, "coredns": corednsImage,
	} {
		if _, err := os.Stat(l.image(name)); err == nil {
			continue
		}
		fmt.Fprintf(w, "making image %s\n", name)
		v, err := readVersions(ctx, l, w)
		if err != nil {
			return err
		}
		made, err := make(ctx, l, v)
		if err != nil {
			return fmt.Errorf("make image %s: %w", name, err)
		}
		for i := range made {
			made[i].Architecture = runtime.GOARCH
			made[i].Env = []string{defaultEnv}
		}
		if err := ociarchive.Write(l.image(name), made...); err != nil {
			return err
		}
	}
	return nil
}

// versions are the tags of images that the tests ask for, by their names in the tests'
// list.
type versions map[string]string

var imageLine = regexp.MustCompile(`(?m)^\tconfigs\[(\w+)\] = Config\{.*, "([^"]*)"\}$`)

func readVersions(ctx context.Context, l layout, w io.Writer) (versions, error) {
	dir, err := kubernetesSource(ctx, l, w)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "test/utils/image/manifest.go"))
	if err != nil {
		return nil, err
	}
	v := versions{}
	for _, m := range imageLine.FindAllStringSubmatch(string(raw), -1) {
		v[m[1]] = m[2]
	}
	for _, name := range []string{"Pause", "BusyBox", "Agnhost", "GlibcDnsTesting", "DistrolessIptables", "Nginx", "NginxNew"} {
		if v[name] == "" {
			return nil, fmt.Errorf("the tests of Kubernetes %s name no image %s", kubernetesVersion, name)
		}
	}
	return v, nil
}

// kubernetesSource is the directory of the module of Kubernetes.
func kubernetesSource(ctx context.Context, l layout, w io.Writer) (string, error) {
	return builder{layout: l, w: w}.module(ctx, "k8s.io/kubernetes", kubernetesVersion)
}

// pauseProgram holds a pod's namespaces and collects its orphans.
const pauseProgram = `#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>
static void stop(int s) { (void)s; _exit(0); }
static void reap(int s) { (void)s; while (waitpid(-1, NULL, WNOHANG) > 0) {} }
int main(void) {
	struct sigaction a = {.sa_handler = stop}, r = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
	sigaction(SIGINT, &a, NULL);
	sigaction(SIGTERM, &a, NULL);
	sigaction(SIGCHLD, &r, NULL);
	for (;;) pause();
}
`

func pauseImage(ctx context.Context, _ layout, v versions) ([]ociarchive.Image, error) {
	dir, err := os.MkdirTemp("", "pause-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.CommandContext(ctx, "gcc", "-static", "-Os", "-s", "-x", "c", "-o", filepath.Join(dir, "pause"), "-")
	cmd.Stdin = strings.NewReader(pauseProgram)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w: %s", err, out)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "pause"))
	if err != nil {
		return nil, err
	}
	t := ociarchive.NewTree()
	t.Bytes("pause", 0o755, raw)
	const name = "registry.k8s.io/pause:"
	names := []string{name + v["Pause"], name + "3.10"}
	slices.Sort(names)
	return []ociarchive.Image{{Names: slices.Compact(names), Tree: t, Entrypoint: []string{"/pause"}}}, nil
}

func corednsImage(_ context.Context, l layout, _ versions) ([]ociarchive.Image, error) {
	t := ociarchive.NewTree()
	accounts(t)
	if err := t.File("coredns", 0o755, l.bin("coredns")); err != nil {
		return nil, err
	}
	return []ociarchive.Image{{Names: []string{"registry.k8s.io/coredns/coredns:local"}, Tree: t, Entrypoint: []string{"/coredns"}}}, nil
}

func busyboxImage(ctx context.Context, _ layout, v versions) ([]ociarchive.Image, error) {
	t := ociarchive.NewTree()
	t.Dir("usr/sbin", 0o755)
	t.Link("bin", "usr/bin")
	accounts(t)
	if err := addBusybox(ctx, t); err != nil {
		return nil, err
	}
	return []ociarchive.Image{{Names: []string{testImages + "busybox:" + v["BusyBox"]}, Tree: t, Cmd: []string{"sh"}}}, nil
}

// addBusybox adds every applet whose name is free.
func addBusybox(ctx context.Context, t *ociarchive.Tree) error {
	const busybox = "/bin/busybox"
	if err := t.File("usr/bin/busybox", 0o755, busybox); err != nil {
		return fmt.Errorf("%w: install busybox-static (make kube-packages)", err)
	}
	out, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	for applet := range strings.FieldsSeq(string(out)) {
		if !t.Has("usr/bin/"+applet) && !t.Has("usr/sbin/"+applet) {
			t.Link("usr/bin/"+applet, "busybox")
		}
	}
	return nil
}

// accounts adds what images of the tests are expected to have in /etc.
func accounts(t *ociarchive.Tree) {
	for _, dir := range []string{"etc", "root", "proc", "sys", "dev", "run"} {
		t.Dir(dir, 0o755)
	}
	t.Dir("tmp", 0o1777)
	t.Dir("var/tmp", 0o1777)
	t.Bytes("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nuser-defined-in-image:x:1000:1000::/:/bin/sh\n"))
	t.Bytes("etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"))
	t.Bytes("etc/nsswitch.conf", 0o644, []byte("passwd: files\ngroup: files\nhosts: files dns\n"))
}

// agnhostPackages are what the real image has of Alpine's.
var agnhostPackages = []string{
	"bash", "dash", "coreutils", "grep", "sed", "gawk", "curl", "bind9-dnsutils", "netcat-openbsd", "iproute2", "iputils-ping", "iperf",
	"socat", "util-linux", "procps", "libc-bin", "hostname", "iptables", "nftables", "conntrack",
}

// agnhostImage makes the image that nearly all tests use, and stand-ins with the same
// content for others of the network's tests.
func agnhostImage(ctx context.Context, l layout, v versions) ([]ociarchive.Image, error) {
	t := ociarchive.NewTree()
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		t.Dir("usr/"+dir, 0o755)
		t.Link(dir, "usr/"+dir)
	}
	if err := addDebian(ctx, t, agnhostPackages); err != nil {
		return nil, err
	}
	accounts(t)
	t.Link("usr/bin/nc", "nc.openbsd")
	t.Link("usr/bin/sh", "dash")
	t.Link("usr/bin/awk", "gawk")
	if err := addBusybox(ctx, t); err != nil {
		return nil, err
	}
	t.Link("agnhost-2", "agnhost")
	t.Dir("uploads", 0o755)
	source, err := kubernetesSource(ctx, l, io.Discard)
	if err != nil {
		return nil, err
	}
	for name, file := range map[string]string{
		"agnhost": l.bin("agnhost"), "coredns": l.bin("coredns"),
		"localhost.crt": filepath.Join(source, "test/images/agnhost/porter/localhost.crt"),
		"localhost.key": filepath.Join(source, "test/images/agnhost/porter/localhost.key"),
	} {
		if err := t.File(name, 0o755, file); err != nil {
			return nil, err
		}
	}
	return []ociarchive.Image{
		{Names: []string{testImages + "agnhost:" + v["Agnhost"], testImages + policyTestsImage}, Tree: t, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}},
		{Names: []string{
			testImages + "glibc-dns-testing:" + v["GlibcDnsTesting"], "registry.k8s.io/build-image/distroless-iptables:" + v["DistrolessIptables"],
		}, Tree: t, Cmd: []string{"sh"}},
		{Names: []string{testImages + "nginx:" + v["Nginx"], testImages + "nginx:" + v["NginxNew"]}, Tree: t, Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}},
	}, nil
}

// unwanted are packages that only package managers need, and files that nobody reads in an
// image.
var (
	unwantedPackage = regexp.MustCompile(`^(perl|libperl|usrmerge|dpkg_|debconf|init-system|.*-perl_)`)
	unwantedFile    = regexp.MustCompile(`^usr/(share/(doc|man|locale|info)/|lib/x86_64-linux-gnu/gconv/)`)
)

// addDebian adds packages with everything that they depend on, without running any of their
// scripts.
func addDebian(ctx context.Context, t *ociarchive.Tree, packages []string) error {
	dir, err := os.MkdirTemp("", "packages-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Mkdir(filepath.Join(dir, "partial"), 0o755); err != nil {
		return err
	}
	// With no package installed, as far as apt can tell, it fetches all of them.
	empty := filepath.Join(dir, "status")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		return err
	}
	args := append([]string{
		"-qq", "-y", "--no-install-recommends", "--download-only", "-o", "APT::Sandbox::User=root",
		"-o", "Dir::State::status=" + empty, "-o", "Dir::Cache::archives=" + dir, "install",
	}, packages...)
	// #nosec G204 -- names of this file
	if out, err := exec.CommandContext(ctx, "apt-get", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get: %w: %s", err, out)
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if unwantedPackage.MatchString(filepath.Base(deb)) {
			continue
		}
		if err := addDeb(ctx, t, deb); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(deb), err)
		}
	}
	return nil
}

func addDeb(ctx context.Context, t *ociarchive.Tree, deb string) error {
	// #nosec G204 -- a file that apt has fetched
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = t.Unpack(out, func(name string) bool { return !unwantedFile.MatchString(name) })
	if err == nil {
		// What follows the end of an archive is padding.
		_, err = io.Copy(io.Discard, out)
	}
	if waited := cmd.Wait(); err == nil {
		err = waited
	}
	return err
}
