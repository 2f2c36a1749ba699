package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A mistake on the command line is told in one sentence, with exit code 2; one of the
// running agent's is 1.
func TestMistakes(t *testing.T) {
	config := filepath.Join(t.TempDir(), "agent.yaml")
	text := "apiVersion: fairlead.dev/config/v1alpha1\nkind: AgentConfig\nnode: n1\nrunDir: " + t.TempDir() + "\ndatastore: {etcd: {endpoints: [https://10.0.0.1:2379]}}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"statsu"}, 2, `there is no command "statsu": fairlead-agent --help lists the commands`},
		{[]string{"instal"}, 2, `there is no command "instal": did you mean install`},
		{[]string{"admin"}, 2, "admin: no argument was given, and it takes one argument: fairlead-agent admin PATH, such as fairlead-agent admin status"},
		{[]string{"admin", "a", "b"}, 2, `admin: "b" is one argument too many`},
		{[]string{"--confg", "x"}, 2, "there is no flag --confg: did you mean --config?"},
		{[]string{"admin", "status", "--until-eof=maybe"}, 2, `admin: --until-eof was given "maybe": want true or false, such as --until-eof=false`},
		{[]string{"--config"}, 2, "--config needs a value: configuration file"},
		{[]string{"--config", ""}, 2, "--config is empty"},
		{[]string{"install", "x"}, 2, `install: "x" is one argument too many: it takes none`},
		{[]string{"--config", filepath.Join(t.TempDir(), "none.yaml")}, 2, "none.yaml"},
		{[]string{"admin", "status", "--config", config}, 1, "admin.sock"},
	} {
		root := command()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(tt.args)
		err := root.ExecuteContext(t.Context())
		if code := exitCode(err); code != tt.code || err == nil || !strings.Contains(err.Error(), tt.want) || out.Len() > 0 {
			t.Errorf("%v: exit %d: %v, want exit %d and %q; printed %q", tt.args, code, err, tt.code, tt.want, out.String())
		}
	}
}

func TestPathOf(t *testing.T) {
	for given, want := range map[string]string{
		"status": "/v1/status", "/status": "/v1/status", "v1/status": "/v1/status", "/v1/status": "/v1/status", "journal?since=2026-01-02T15:04:05Z": "/v1/journal?since=2026-01-02T15:04:05Z",
	} {
		if got := pathOf(given); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
}
