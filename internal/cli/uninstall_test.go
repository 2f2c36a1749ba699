package cli

import (
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Whatever the manifest installs is deleted, but for what the nodes need until they are clean.
func TestUninstallKnowsEveryObject(t *testing.T) {
	raw, err := os.ReadFile("../../deploy/fairlead.yaml")
	if err != nil {
		t.Fatal(err)
	}
	plural := strings.NewReplacer("policy", "policies").Replace
	for _, document := range strings.Split(string(raw), "\n---\n") {
		var o metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatal(err)
		}
		resource := strings.ToLower(o.Kind) + "s"
		if strings.HasSuffix(o.Kind, "Policy") {
			resource = plural(strings.ToLower(o.Kind))
		}
		suffix := "/" + resource + "/" + o.Name
		if o.Kind == "" || o.Kind == "DaemonSet" || o.Kind == "Deployment" || slices.ContainsFunc(installed, func(p string) bool { return strings.HasSuffix(p, suffix) }) {
			continue
		}
		t.Errorf("%s %s is not deleted by --objects: no path ends with %s", o.Kind, o.Name, suffix)
	}
}

// What cleans the nodes is the agents' image, and looks where the agents wrote.
func TestUninstallTakesImageAndPathsOfTheAgents(t *testing.T) {
	agents := &appsv1.DaemonSet{}
	agents.Spec.Template.Spec = corev1.PodSpec{
		Containers:   []corev1.Container{{Name: "agent", Image: "registry.example/net:v9"}},
		NodeSelector: map[string]string{"pool": "a"},
		Volumes:      []corev1.Volume{{Name: "cni-bin", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/usr/lib/cni"}}}},
	}
	set, config, err := uninstallObjects("net", agents)
	if err != nil {
		t.Fatal(err)
	}
	spec := set.Spec.Template.Spec
	if set.Namespace != "net" || config.Namespace != "net" || spec.InitContainers[0].Image != "registry.example/net:v9" || spec.Containers[0].Image != "registry.example/net:v9" || spec.NodeSelector["pool"] != "a" {
		t.Errorf("%+v", set)
	}
	i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == "cni-bin" })
	if i < 0 || spec.Volumes[i].HostPath.Path != "/usr/lib/cni" {
		t.Errorf("volumes: %+v", spec.Volumes)
	}
}

func TestUninstallRefusesWhatItCannotMean(t *testing.T) {
	c := newCluster(t)
	for _, args := range [][]string{
		{"uninstall", "--objects"},
		{"uninstall", "--timeout", "1s"},
		{"uninstall", "--lab", "x"},
		{"uninstall", "--kubeconfig", "x", "--bin-dir", "/x"},
		{"uninstall", "--config", c.dir + "/none.yaml"},
	} {
		if r := c.run(args...); r.code != exitUsage {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
