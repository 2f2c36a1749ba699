package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// plugin is our command line tool as people call it who have a cluster: kubectl fairlead.
type plugin struct {
	*cluster
	dir string
}

// newPlugin puts the program where kubectl looks for its plugins. close removes it.
func newPlugin(c *cluster, fairlead string) (plugin, error) {
	program, err := filepath.Abs(fairlead)
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		return plugin{}, fmt.Errorf("the program that kubectl fairlead runs (make build): %w", err)
	}
	dir, err := os.MkdirTemp("", "fairlead-kubectl-")
	if err != nil {
		return plugin{}, err
	}
	p := plugin{c, dir}
	if err := os.Symlink(program, filepath.Join(dir, "kubectl-fairlead")); err != nil {
		return plugin{}, errors.Join(err, p.close())
	}
	return p, nil
}

func (p plugin) close() error { return os.RemoveAll(p.dir) }

// says runs kubectl fairlead, which must succeed and print each of the words.
func (p plugin) says(ctx context.Context, words []string, args ...string) error {
	cmd := p.command(ctx, p.bin("kubectl"), append([]string{"fairlead"}, args...)...)
	cmd.Env = append(cmd.Env, "PATH="+p.dir+":"+p.bin("")+":"+os.Getenv("PATH"))
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := p.runIn(cmd); err != nil {
		return fmt.Errorf("%w: it says:\n%s", err, text.String())
	}
	for _, w := range words {
		if !strings.Contains(text.String(), w) {
			return fmt.Errorf("%q is not in what it says:\n%s", w, text.String())
		}
	}
	return nil
}

// closedManifest lets nobody reach the pods of the checks.
const closedManifest = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: ` + smokeNamespace + `}
spec: {podSelector: {}, policyTypes: [Ingress]}
`

// checkPlugin asks everything that a person asks a cluster about two of its pods.
func (c *cluster) checkPlugin(ctx context.Context, fairlead string, check func(string, error)) (err error) {
	p, err := newPlugin(c, fairlead)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	deny := filepath.Join(p.dir, "deny.yaml")
	if err := os.WriteFile(deny, []byte(closedManifest), 0o600); err != nil {
		return err
	}
	ask := func(words []string, args ...string) {
		check("kubectl fairlead "+strings.ReplaceAll(strings.Join(args, " "), p.dir+"/", ""), p.says(ctx, words, args...))
	}
	ask([]string{"all components are well"}, "status")
	ask([]string{nodeName(1), nodeName(c.Nodes)}, "node", "status")
	ask(nil, "node", "status", nodeName(1))
	ask(nil, "audit")
	ask(nil, "ipam", "check")
	ask([]string{"default"}, "ipam", "show")
	ask([]string{"default"}, "get", "subnets")
	ask(nil, "events")
	ask([]string{smokeNamespace + "/p1"}, "journal", nodeName(1))
	between := func(args ...string) []string {
		return append(args, "-n", smokeNamespace, "p1", "p2:8080/TCP")
	}
	const agree = "kernels' rules agree"
	ask([]string{"ALLOWED"}, between("policy", "why")...)
	ask([]string{"ALLOWED", agree}, between("trace")...)
	ask([]string{smokeNamespace + "/p2", "denied"}, "policy", "whatif", "--no-flows", "-f", deny)
	// The kubelet's probes are packets enough.
	pcap, archive := filepath.Join(p.dir, "p1.pcap"), filepath.Join(p.dir, "diag.tar.gz")
	ask(nil, "capture", "-n", smokeNamespace, "p1", "tcp", "port", "8080", "--packets", "4", "--for", "20s", "-o", pcap)
	check("it is in the capture", holdsMore(pcap, 24+4*16))
	ask(nil, "diag", "-o", archive)
	check("it is in the archive", holdsMore(archive, 1000))
	if err := c.apply(ctx, closedManifest); err != nil {
		return err
	}
	check("kubectl fairlead policy why, denied", poll(ctx, 100*time.Millisecond, func() error {
		return p.says(ctx, []string{"DENIED"}, between("policy", "why")...)
	}))
	ask([]string{"DENIED", agree}, between("trace")...)
	return nil
}

// holdsMore: a file that was written is longer than its headers.
func holdsMore(path string, size int64) error {
	info, err := os.Stat(path)
	if err == nil && info.Size() <= size {
		err = fmt.Errorf("%s has %d bytes only", filepath.Base(path), info.Size())
	}
	return err
}
