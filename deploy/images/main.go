// Command images writes the image of Fairlead's programs as an OCI archive that any
// container runtime imports, without a container engine ("make images").
//
//	go run ./deploy/images -bin bin -o bin/fairlead-images.tar
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/deploy/ociarchive"
)

// repository of the image; its tag is the chart's appVersion.
const repository = "ghcr.io/fairlead-sdn/fairlead"

func main() {
	bin := flag.String("bin", "bin", "`DIR` of the programs")
	chart := flag.String("chart", "deploy/chart", "`DIR` of the chart, whose appVersion becomes the tag")
	out := flag.String("o", "bin/fairlead-images.tar", "`FILE` to write")
	arch := flag.String("arch", runtime.GOARCH, "architecture of the programs")
	flag.Parse()
	name, err := write(*bin, *chart, *out, *arch)
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %s\n", *out, name)
}

func write(bin, chart, out, arch string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		return "", err
	}
	var about struct {
		AppVersion string `json:"appVersion"`
	}
	if err := yaml.Unmarshal(raw, &about); err != nil {
		return "", fmt.Errorf("%s/Chart.yaml: %w", chart, err)
	}
	if about.AppVersion == "" {
		return "", fmt.Errorf("%s/Chart.yaml: has no appVersion", chart)
	}
	t := ociarchive.NewTree()
	t.Dir("tmp", 0o1777)
	// Runtimes name namespaces below /var/run.
	t.Link("var/run", "/run")
	t.Bytes("etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nfairlead:x:65532:65532:fairlead:/:/sbin/nologin\n"))
	t.Bytes("etc/group", 0o644, []byte("root:x:0:\nfairlead:x:65532:\n"))
	for _, p := range []string{"fairlead", "fairlead-agent", "fairlead-controller", "fairlead-cni"} {
		if err := t.File("usr/bin/"+p, 0o755, filepath.Join(bin, p)); err != nil {
			return "", fmt.Errorf("%w: run make build first", err)
		}
	}
	name := repository + ":" + about.AppVersion
	return name, ociarchive.Write(out, ociarchive.Image{
		Names: []string{name}, Tree: t, Architecture: arch, Env: []string{"PATH=/usr/bin"}, Entrypoint: []string{"/usr/bin/fairlead"},
	})
}
