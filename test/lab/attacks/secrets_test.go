package attacks

import (
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// The places that secrets are put into, and the canary in each.
const (
	canaryPrefix     = "fairlead-secret-canary-"
	canaryEnv        = canaryPrefix + "environment"
	canaryAnnotation = canaryPrefix + "annotation"
	canaryCommand    = canaryPrefix + "command"
	canaryAgentEnv   = canaryPrefix + "agent-environment"
	canaryKey        = canaryPrefix + "key-file"
	canaryConfig     = canaryPrefix + "configuration"
)

// TestScenarioS10Secrets: what pods and files keep secret is in no log, no process's
// arguments and no bundle for support.
func TestScenarioS10Secrets(t *testing.T) {
	bin, err := labtest.Bin()
	if err != nil {
		t.Fatal(err)
	}
	fairlead := filepath.Join(bin, "fairlead")
	if _, err := os.Stat(fairlead); err != nil {
		t.Skipf("the command line is missing: %v: run make build", err)
	}
	l := labtest.Up(t, lab.Options{Nodes: 2, LogLevel: "debug", AgentEnv: []string{"ATTACK_SECRET=" + canaryAgentEnv}})
	l.Apply(`
apiVersion: v1
kind: Namespace
metadata: {name: vault, annotations: {secret: ` + canaryAnnotation + `}}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: vault, annotations: {secret: ` + canaryAnnotation + `}}
spec:
  nodeName: node-1
  containers: [{name: c, env: [{name: PASSWORD, value: ` + canaryEnv + `}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: vault, annotations: {secret: ` + canaryAnnotation + `}}
spec:
  nodeName: node-2
  containers: [{name: c, command: [sleep, "1000"], env: [{name: PASSWORD, value: ` + canaryEnv + `}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: refused, namespace: vault, annotations: {secret: ` + canaryAnnotation + `, fairlead.dev/subnet: nowhere}}
spec:
  nodeName: node-1
  containers: [{name: c, command: [echo, ` + canaryCommand + `], env: [{name: PASSWORD, value: ` + canaryEnv + `}]}]
`)
	waitPod(t, l, "vault/a")
	waitPod(t, l, "vault/b")
	l.Fault("agent-restart", "node-1")
	l.Fault("node-reboot", "node-2")
	l.WaitReady("node-1")
	l.WaitReady("node-2")
	waitPod(t, l, "vault/b")

	search := func(where, text string) {
		t.Helper()
		if i := strings.Index(text, canaryPrefix); i >= 0 {
			t.Errorf("%s holds a secret: …%s…", where, text[max(0, i-200):min(len(text), i+60)])
		}
	}
	searchLogs(t, l, search)
	searchArguments(t, search)

	bundle := filepath.Join(t.TempDir(), "bundle")
	root := filepath.Dir(l.Directory())
	run := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), fairlead, args...).CombinedOutput()
		t.Logf("fairlead %s: %v", strings.Join(args, " "), err)
		search("the output of "+strings.Join(args, " "), string(out))
		return string(out)
	}
	out := run("--lab-root", root, "--lab", l.Name(), "diag", "-o", bundle)
	raw, err := gunzip(bundle)
	if err != nil || len(raw) < 1000 {
		t.Fatalf("the bundle has %d bytes, %v: %s", len(raw), err, out)
	}
	search("the bundle", string(raw))
	if !strings.Contains(string(raw), "node-2") {
		t.Error("the bundle does not speak of node-2: it says nothing")
	}
	for _, path := range []string{"status", "audit", "peers", "attachments", "ipam", "intent", "config", "journal"} {
		search("/v1/"+path, string(labtest.AdminGet[verbatim](l, "node-1", "/v1/"+path)))
	}

	// Files that hold secrets, and are broken.
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	key := write("key.pem", "-----BEGIN PRIVATE KEY-----\n"+canaryKey+"\n-----END PRIVATE KEY-----\n")
	if out := run("--etcd", "https://127.0.0.1:1", "--etcd-ca", key, "--etcd-cert", key, "--etcd-key", key, "diag", "-o", bundle+"2"); out == "" {
		t.Error("a broken key is no error")
	}
	if out := run("--etcd", "https://user:"+canaryConfig+"@127.0.0.1:1", "get", "pods"); out == "" {
		t.Error("a URL with a password is no error")
	}
	config := write("agent.yaml", "apiVersion: fairlead.dev/config/v1alpha1\nkind: AgentConfig\nnode: node-1\npassword: "+canaryConfig+
		"\ndatastore: {etcd: {endpoints: ['https://user:"+canaryConfig+"@10.0.0.1:2379'], key: "+key+"}}\n")
	if out := run("config", "check", config); out == "" {
		t.Error("an unknown field is no error")
	}
}

// gunzip reads a compressed file.
func gunzip(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// verbatim is an answer as it is.
type verbatim []byte

func (r *verbatim) UnmarshalJSON(b []byte) error { *r = append((*r)[:0], b...); return nil }

// searchLogs goes through all logs but those of containers, and through what agents
// keep on disk.
func searchLogs(t *testing.T, l *labtest.Lab, search func(where, text string)) {
	t.Helper()
	read := 0
	err := filepath.WalkDir(l.Directory(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // a namespace's file that is gone
		}
		name := d.Name()
		switch {
		case d.IsDir() && (name == "etcd" || name == "netns" || name == "cni"):
			return filepath.SkipDir // the datastore itself holds pods as they are
		// What the lab was asked for, readable for root alone, is no log.
		case name == "options.json", !d.Type().IsRegular() || strings.Contains(path, "/log/") && strings.Count(name, "_") == 2:
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		read++
		search(strings.TrimPrefix(path, l.Directory()), string(raw))
		return nil
	})
	if err != nil || read < 8 {
		t.Fatalf("read %d files: %v", read, err)
	}
}

// searchArguments goes through the command lines of all processes but containers'.
func searchArguments(t *testing.T, search func(where, text string)) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	ours := 0
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(raw), "fairlead") {
			continue // it has ended, or is not ours
		}
		ours++
		search("the arguments of "+filepath.Dir(f), string(raw))
	}
	if ours < 4 {
		t.Fatalf("found %d processes of Fairlead", ours)
	}
}
