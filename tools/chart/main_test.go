package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const chartDir = "../../deploy/chart"

// TestManifestsAreUpToDate fails if the chart was changed and "make generate" not run.
func TestManifestsAreUpToDate(t *testing.T) {
	files, err := manifests(chartDir, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("../../deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("deploy/%s is not what deploy/chart renders: run make generate", name)
		}
	}
}

func TestSchemaRefusesWrongValues(t *testing.T) {
	for name, c := range map[string]struct {
		values map[string]any
		want   string
	}{
		"misspelt":     {map[string]any{"imagee": map[string]any{}}, "imagee"},
		"no range":     {map[string]any{"defaultSubnet": map[string]any{"cidrs": []any{}}}, "cidrs"},
		"small MTU":    {map[string]any{"agent": map[string]any{"mtu": 900}}, "mtu"},
		"transport":    {map[string]any{"defaultSubnet": map[string]any{"transport": "Tunnel"}}, "transport"},
		"plane":        {map[string]any{"agent": map[string]any{"plane": "ebpf"}}, "plane"},
		"no replicas":  {map[string]any{"controller": map[string]any{"replicas": 0}}, "replicas"},
		"log level":    {map[string]any{"log": map[string]any{"level": "loud"}}, "level"},
		"no conflist":  {map[string]any{"cni": map[string]any{"confFile": "10-fairlead.conf"}}, "confFile"},
		"relative dir": {map[string]any{"cni": map[string]any{"binDir": "opt"}}, "binDir"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(chartDir, c.values, true)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("render = %v, want an error about %s", err, c.want)
			}
		})
	}
}

func TestValuesReachTheManifest(t *testing.T) {
	out, err := render(chartDir, map[string]any{
		"apiServer":     map[string]any{"host": "fd00::1", "port": 443},
		"image":         map[string]any{"repository": "registry.example/net", "tag": "v9"},
		"defaultSubnet": map[string]any{"cidrs": []any{"10.1.0.0/16", "fd00:1::/64"}, "encapsulation": "CrossSubnet"},
		"agent":         map[string]any{"interface": "bond0", "mtu": 8950, "plane": "ovs", "ovsRunDir": "/run/ovs"},
		"cni":           map[string]any{"hostPorts": false, "confFile": "00-net.conflist"},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"image: registry.example/net:v9", `{name: KUBERNETES_SERVICE_HOST, value: "fd00::1"}`, `cidrs: ["10.1.0.0/16","fd00:1::/64"]`,
		"encapsulation: CrossSubnet", "plane: ovs", "{name: openvswitch, hostPath: {path: /run/ovs, type: Directory}}", "{name: openvswitch, mountPath: /var/run/openvswitch}", `underlay: {interface: "bond0"}`, "mtu: 8950", "00-net.conflist: |", "--conflist=/etc/fairlead/00-net.conflist",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the manifest lacks %q", want)
		}
	}
	if strings.Contains(string(out), "portmap") {
		t.Error("hostPorts: false leaves portmap in the network configuration")
	}
}
