package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const header = "apiVersion: fairlead.dev/config/v1alpha1\nkind: ControllerConfig\n"

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "controller.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExitCodes(t *testing.T) {
	good := header + "datastore: {etcd: {endpoints: ['unix:///nowhere/etcd.sock']}}\n"
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string // in what is printed
	}{
		{"version", []string{"--version"}, 0, "fairlead-controller version dev (go"},
		{"help", []string{"--help"}, 0, "--config string"},
		{"unknown flag", []string{"--conf", "x"}, 2, "fairlead-controller: there is no flag --conf: did you mean --config? (fairlead-controller --help lists the flags)"},
		{"one dash", []string{"-config", "x"}, 2, `there is no flag -c, in "-config": did you mean --config?`},
		{"flag without value", []string{"--config"}, 2, "--config needs a value: configuration file"},
		{"empty flag", []string{"--config", ""}, 2, "--config is empty: give it a value, or leave it out"},
		{"argument", []string{"start"}, 2, `"start" is one argument too many: it takes none`},
		{"no file", []string{"--config", "/nowhere/c.yaml"}, 2, "read configuration: open /nowhere/c.yaml"},
		{"several mistakes", []string{"--config", write(t, header+"vanishedNodeGrace: -1s\n")}, 2, "datastore: is missing: want kubernetes or etcd (\"kubernetes: {}\" is the cluster of the pod that this runs in); vanishedNodeGrace: -1s is not positive"},
		{"lease", []string{"--config", write(t, good+"leaderElection: {leaseDuration: 15500ms}\n")}, 2, "leaderElection.leaseDuration: 15.5s is not in whole seconds"},
		{"subnet", []string{"--config", write(t, good+"defaultSubnet: {cidrs: [10.0.0.0/16], transport: Pigeon}\n")}, 2, `defaultSubnet: spec.transport: Unsupported value: "Pigeon"`},
		{"certificates", []string{"--config", write(t, header+"datastore: {etcd: {endpoints: ['https://10.0.0.1:2379'], ca: /nowhere/ca.crt}}\n")}, 2, "etcd: ca: open /nowhere/ca.crt"},
		{"kubeconfig", []string{"--config", write(t, header+"datastore: {kubernetes: {kubeconfig: /nowhere/kubeconfig}}\n")}, 2, "datastore: kube: kubeconfig /nowhere/kubeconfig: stat /nowhere/kubeconfig: no such file"},
		{"port taken", []string{"--config", write(t, good+"metrics: {listen: '"+busy.Addr().String()+"'}\n")}, 1, "address already in use"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			if code := run(t.Context(), tt.args, &out, &out); code != tt.code || !strings.Contains(out.String(), tt.want) {
				t.Errorf("code %d, want %d; printed %q, want %q in it", code, tt.code, out.String(), tt.want)
			}
			if tt.code == exitUsage && strings.Count(out.String(), "\n") != 1 {
				t.Errorf("want one sentence, got:\n%s", out.String())
			}
		})
	}
}

// A datastore that is away is waited for, and SIGTERM ends the wait cleanly.
func TestDatastoreIsWaitedFor(t *testing.T) {
	path := write(t, header+"datastore: {etcd: {endpoints: ['unix:///nowhere/etcd.sock']}}\nmetrics: {listen: '127.0.0.1:0'}\n")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var out bytes.Buffer
	if code := run(ctx, []string{"--config", path}, &out, &out); code != exitOK || !strings.Contains(out.String(), "ended") {
		t.Errorf("code %d, printed:\n%s", code, out.String())
	}
}
