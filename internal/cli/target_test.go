package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What names a network, and what two of them at once do.
func TestTargets(t *testing.T) {
	dir := t.TempDir()
	fromEnvironment := filepath.Join(dir, "environment")
	t.Setenv("KUBECONFIG", fromEnvironment)
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // this may be a pod
	for _, tt := range []struct {
		name   string
		args   []string
		plugin bool
		code   int
		want   string
	}{
		{"two networks", []string{"get", "pods", "--etcd", "http://127.0.0.1:1", "--context", "prod"}, false, exitUsage, "--etcd, --kubeconfig and --context each name a network: give one"},
		{"two networks' agents", []string{"audit", "--lab", "a", "--kubeconfig", "f"}, false, exitUsage, "--lab, --kubeconfig and --context each name a network: give one"},
		{"a lab's command", []string{"lab", "status", "--context", "prod"}, false, exitUsage, "this command is about a lab"},
		{"a kubeconfig", []string{"get", "pods", "--kubeconfig", filepath.Join(dir, "gone")}, false, exitFailed, filepath.Join(dir, "gone") + ": no such file"},
		{"a context", []string{"get", "pods", "--context", "prod"}, false, exitFailed, "kubeconfig " + fromEnvironment + ", context prod"},
		{"the environment is not enough", []string{"get", "pods"}, false, exitFailed, "there is no such lab"},
		{"as kubectl's plugin", []string{"get", "pods"}, true, exitFailed, "kubeconfig " + fromEnvironment},
		{"as kubectl's plugin, about a lab", []string{"get", "pods", "--lab", "x"}, true, exitFailed, "there is no such lab"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			a := &app{in: strings.NewReader(""), out: &out, err: &out}
			a.flags.plugin = tt.plugin
			a.openStore, a.agents = a.targetStore, a.targetAgents
			if code := a.run(t.Context(), append(tt.args, "--lab-root", dir)); code != tt.code || !strings.Contains(out.String(), tt.want) {
				t.Errorf("exit %d, want %d; printed %q, want %q in it", code, tt.code, out.String(), tt.want)
			}
		})
	}
	if !isPlugin("/usr/local/bin/kubectl-fairlead") || isPlugin("/usr/local/bin/fairlead") {
		t.Error("the program does not know by which name it was called")
	}
}

// A kubeconfig that is there is used: nobody listens where it points.
func TestKubeconfigTarget(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `apiVersion: v1
kind: Config
clusters: [{name: k, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: canary}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &out, err: &out}
	a.openStore, a.agents = a.targetStore, a.targetAgents
	code := a.run(t.Context(), []string{"get", "pods", "--kubeconfig", file, "--context", "c"})
	if code != exitFailed || !strings.Contains(out.String(), "list pods at https://127.0.0.1:1") || strings.Contains(out.String(), "canary") {
		t.Errorf("exit %d: %s", code, out.String())
	}
}
