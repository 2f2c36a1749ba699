package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// captured is a file of one packet, which is no text.
const captured = "\x4d\x3c\xb2\xa1\x02\x00\x04\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\xff\xff\x00\x00\x01\x00\x00\x00" +
	"\x01\x00\x00\x00\x02\x00\x00\x00\x06\x00\x00\x00\x06\x00\x00\x00" + "\x00\x1b[31m"

const capturedPods = `
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: waiting}
spec: {containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: host}
spec: {nodeName: node-1, hostNetwork: true, containers: [{name: c, image: i}]}
`

func TestCapture(t *testing.T) {
	c := newCluster(t)
	c.load(capturedPods)
	var asked url.Values
	c.serveStreams("node-1", nil, map[string]admin.Stream{"GET /v1/capture": func(_ context.Context, q url.Values, w io.Writer) (string, error) {
		asked = q
		if q.Get("interface") == "eth9" {
			return "", errors.New("no interface eth9")
		}
		_, err := io.WriteString(w, captured+"a part of")
		return "1 packets, 9 bytes: it has its number of packets", err
	}})
	file := filepath.Join(c.dir, "web.pcap")
	r := c.run("capture", "shop/web", "tcp", "port", "80", "-o", file, "--packets", "1", "--for", "1m", "--snap", "96")
	raw, err := os.ReadFile(file)
	if r.code != 0 || err != nil || string(raw) != captured || !strings.Contains(r.err, "1 packets, 9 bytes") || r.out != "" {
		t.Fatalf("%+v; %q, %v", r, raw, err)
	}
	if got := asked.Encode(); got != "filter=tcp+port+80&for=1m0s&namespace=shop&packets=1&pod=web&snap=96" {
		t.Errorf("the agent was asked for %s", got)
	}
	// What goes to a pipe is not changed.
	if r := c.run("capture", "web", "-n", "shop", "-o", "-"); r.code != 0 || r.out != captured {
		t.Errorf("to a pipe: %+v", r)
	}
	// A device is no file that could be lost, and stays.
	if r := c.run("capture", "shop/web", "-o", os.DevNull); r.code != 0 {
		t.Errorf("to %s: %+v", os.DevNull, r)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Fatalf("%s is %v (%v)", os.DevNull, info, err)
	}
	other := filepath.Join(c.dir, "other.pcap")
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"shop/web"}, exitUsage, "say where to write"},
		{[]string{"shop/web", "prot", "80", "-o", other}, exitUsage, `"prot" is no condition`},
		{[]string{"shop/web", "-o", other, "--for", "-1s"}, exitUsage, "nothing negative"},
		{[]string{"shop/web", "-o", other, "--for", "2h"}, exitUsage, "--for is 1h0m0s at most"},
		{[]string{"-o", other}, exitUsage, "capture POD"},
		{[]string{"shop/web", "-o", file}, exitFailed, "exists, and is not overwritten: choose another name"},
		{[]string{"shop/gone", "-o", other}, exitFailed, "not found in namespace shop"},
		{[]string{"shop/waiting", "-o", other}, exitFailed, "bound to no node"},
		{[]string{"shop/host", "-o", other}, exitFailed, "no link of its own"},
		{[]string{"shop/web", "-o", other, "--interface", "eth9"}, exitFailed, "node node-1: no interface eth9"},
	} {
		if r := c.run(append([]string{"capture"}, tt.args...)...); r.code != tt.code || !strings.Contains(r.err, tt.want) {
			t.Errorf("%v: %+v, want %d and %q", tt.args, r, tt.code, tt.want)
		}
		if _, err := os.Stat(other); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: a capture without a byte leaves a file (%v)", tt.args, err)
		}
	}
}
