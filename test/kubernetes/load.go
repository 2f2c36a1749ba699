package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// loadLimit bounds an upgrade.
const loadLimit = 5 * time.Minute

// loadUnder loads while flows run that must not notice it, and packets are sent that a policy
// denies.
func (c *cluster) loadUnder(ctx context.Context, o upOptions, flows int, w io.Writer) error {
	if flows == 0 {
		return c.load(ctx, o, w)
	}
	f := &faulty{cluster: c, w: w}
	return f.withPods(ctx, func(ctx context.Context) error {
		return f.underFlows(ctx, flows, func(ctx context.Context) error { return c.load(ctx, o, w) })
	})
}

// load gives the nodes another build of Fairlead's image and rolls it out.
func (c *cluster) load(ctx context.Context, o upOptions, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	if c.CNI != cniFairlead {
		return fmt.Errorf("this cluster's network is %s, not fairlead", c.CNI)
	}
	p := progress{w: w, start: time.Now()}
	if err := copyFile(c.image("fairlead"), o.images); err != nil {
		return fmt.Errorf("the archive of Fairlead's image (make images): %w", err)
	}
	for i := 1; i <= c.Nodes; i++ {
		code, err := c.exec(nodeName(i), []string{c.bin("ctr"), "-a", containerdSocket, "-n", "k8s.io", "images", "import", "--local", c.image("fairlead")})
		if err == nil && code != 0 {
			err = exitCode(code)
		}
		if err != nil {
			return fmt.Errorf("import into %s: %w", nodeName(i), err)
		}
	}
	p.say("imported on %d nodes", c.Nodes)
	raw, err := os.ReadFile(o.manifest)
	if err != nil {
		return err
	}
	if err := c.install(ctx, string(raw)); err != nil {
		return err
	}
	var errs []error
	for _, what := range []string{"daemonset/fairlead-agent", "deployment/fairlead-controller"} {
		if _, err := c.kubectl(ctx, nil, "-n", "kube-system", "rollout", "restart", what); err != nil {
			return err
		}
		_, err := c.kubectl(ctx, nil, "-n", "kube-system", "rollout", "status", what, "--timeout=180s")
		errs = append(errs, err)
		p.say("%s is rolled out", what)
	}
	return errors.Join(errs...)
}
