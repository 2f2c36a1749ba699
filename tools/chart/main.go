// Command chart renders deploy/chart into the manifests that are applied without Helm, with
// Helm's own engine. It is a module of its own, so that Helm's dependencies stay out of the
// product's.
//
//	cd tools/chart && go run . -chart ../../deploy/chart -dir ../../deploy
//
// With -values it renders a manifest for a cluster that wants something else.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// namespace of what is installed.
const namespace = "kube-system"

const header = `# Made from deploy/chart by "make generate": change that.
`

func main() {
	path := flag.String("chart", "../../deploy/chart", "`DIR` of the chart")
	dir := flag.String("dir", "../../deploy", "`DIR` to write fairlead.yaml and uninstall.yaml to")
	values := flag.String("values", "", "`FILE` with values that differ from the chart's own")
	flag.Parse()
	files, err := manifests(*path, *values)
	if err == nil {
		for name, text := range files {
			if e := os.WriteFile(filepath.Join(*dir, name), text, 0o644); e != nil {
				err = e
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// manifests renders every file that is made from the chart.
func manifests(path, values string) (map[string][]byte, error) {
	chosen := chartutil.Values{}
	if values != "" {
		var err error
		if chosen, err = chartutil.ReadValuesFile(values); err != nil {
			return nil, fmt.Errorf("values: %w", err)
		}
	}
	install, err := render(path, chosen, true)
	if err != nil {
		return nil, err
	}
	chosen["uninstall"] = true
	uninstall, err := render(path, chosen, false)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"fairlead.yaml": install, "uninstall.yaml": uninstall}, nil
}

// render renders the chart with values that differ from its own, as "helm template" would.
// With definitions the CustomResourceDefinitions come first; without, only what templates of
// the values alone make: the rest is there already.
func render(path string, values map[string]any, definitions bool) ([]byte, error) {
	c, err := loader.LoadDir(path)
	if err != nil {
		return nil, fmt.Errorf("load the chart: %w", err)
	}
	// Checks the values against the schema, too.
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: c.Name(), Namespace: namespace, IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	rendered, err := engine.Render(c, all)
	if err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	var out bytes.Buffer
	out.WriteString(header)
	if definitions {
		crds := c.CRDObjects()
		slices.SortFunc(crds, func(a, b chart.CRD) int { return strings.Compare(a.Filename, b.Filename) })
		for _, crd := range crds {
			write(&out, string(crd.File.Data))
		}
	}
	for _, name := range order(rendered) {
		if !definitions && filepath.Base(name) != "uninstall.yaml" && filepath.Base(name) != "config.yaml" {
			continue
		}
		write(&out, rendered[name])
	}
	return out.Bytes(), nil
}

// order is that in which objects are best created.
func order(rendered map[string]string) []string {
	rank := []string{"accounts.yaml", "admission.yaml", "config.yaml", "controller.yaml", "agent.yaml", "uninstall.yaml"}
	var names []string
	for name := range rendered {
		if strings.HasSuffix(name, ".yaml") {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return slices.Index(rank, filepath.Base(a)) - slices.Index(rank, filepath.Base(b))
	})
	return names
}

// write adds documents, each with its separator.
func write(out *bytes.Buffer, text string) {
	text = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(text), "---"))
	if text == "" {
		return
	}
	fmt.Fprintf(out, "---\n%s\n", text)
}
