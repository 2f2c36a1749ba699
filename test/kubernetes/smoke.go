package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// smokeLimit bounds the checks.
const smokeLimit = 5 * time.Minute

const smokeNamespace = "smoke"

// agnhostName is the image that the tests of Kubernetes use, as a node has imported it. A
// kubelet tells of its images some minutes after it has started.
func (c *cluster) agnhostName(ctx context.Context) (name string, err error) {
	err = poll(ctx, time.Second, func() error {
		name, err = c.reportedAgnhost(ctx)
		return err
	})
	return name, err
}

func (c *cluster) reportedAgnhost(ctx context.Context) (string, error) {
	var nodes struct {
		Items []struct {
			Status struct{ Images []struct{ Names []string } }
		}
	}
	if err := c.get(ctx, &nodes, "nodes"); err != nil {
		return "", err
	}
	for _, n := range nodes.Items {
		for _, i := range n.Status.Images {
			for _, name := range i.Names {
				if strings.HasPrefix(name, testImages+"agnhost:") {
					return name, nil
				}
			}
		}
	}
	return "", errors.New("no node reports the image agnhost yet")
}

// smoke makes a pod on every node and checks every way of reaching it, and what our command
// line tool says of them.
func (c *cluster) smoke(ctx context.Context, fairlead string, w io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, smokeLimit)
	defer cancel()
	var image string
	err = poll(ctx, time.Second, func() error {
		image, err = c.agnhostName(ctx)
		return err
	})
	if err != nil {
		return err
	}
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\n", smokeNamespace)
	for i := 1; i <= c.Nodes; i++ {
		manifest += fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: p%[1]d, namespace: %[2]s, labels: {app: smoke}}
spec:
  nodeName: %[3]s
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: %[4]s
    imagePullPolicy: Never
    args: [netexec, --http-port=8080]
    ports: [{containerPort: 8080, hostPort: 18080}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
    livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 2}
---
`, i, smokeNamespace, nodeName(i), image)
	}
	manifest += fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: %s}\nspec: {type: NodePort, ipFamilyPolicy: PreferDualStack, selector: {app: smoke}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}\n", smokeNamespace)
	defer func() {
		_, e := c.kubectl(context.WithoutCancel(ctx), nil, "delete", "namespace", smokeNamespace, "--ignore-not-found", "--timeout=60s")
		err = errors.Join(err, e)
	}()
	// The service account of a new namespace appears a little later.
	if err := poll(ctx, 500*time.Millisecond, func() error { return c.apply(ctx, manifest) }); err != nil {
		return err
	}
	start := time.Now()
	if _, err := c.kubectl(ctx, nil, "-n", smokeNamespace, "wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s"); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d pods are Ready after %.1f s: probes work\n", c.Nodes, time.Since(start).Seconds())
	return c.checkPods(ctx, fairlead, w)
}

// podList is what is read of pods.
type podList struct {
	Items []struct {
		Metadata struct{ Name string }
		Status   struct {
			PodIP, HostIP string
			PodIPs        []struct{ IP string }
		}
	}
}

func (c *cluster) checkPods(ctx context.Context, fairlead string, w io.Writer) error {
	var pods podList
	if err := c.get(ctx, &pods, "-n", smokeNamespace, "pods"); err != nil {
		return err
	}
	failed := 0
	check := func(what string, err error) {
		if err == nil {
			fmt.Fprintln(w, "ok  ", what)
			return
		}
		failed++
		fmt.Fprintf(w, "FAIL %s: %v\n", what, err)
	}
	fetch := func(pod, url string) error {
		_, err := c.kubectl(ctx, nil, "-n", smokeNamespace, "exec", pod, "--", "curl", "-fsSk", "-m", "5", "-o", "/dev/null", url)
		return err
	}
	for _, p := range pods.Items {
		name := p.Metadata.Name
		logs, err := c.kubectl(ctx, nil, "-n", smokeNamespace, "logs", name)
		if err == nil && logs == "" {
			err = errors.New("they are empty")
		}
		check(name+": logs", err)
		for _, q := range pods.Items {
			check(fmt.Sprintf("%s → %s, pod address", name, q.Metadata.Name), fetch(name, "http://"+q.Status.PodIP+":8080/hostname"))
			check(fmt.Sprintf("%s → %s, host port", name, q.Metadata.Name), fetch(name, "http://"+q.Status.HostIP+":18080/hostname"))
			check(fmt.Sprintf("%s → %s, node port", name, q.Status.HostIP), fetch(name, "http://"+q.Status.HostIP+":30080/hostname"))
		}
		check(name+" → service by name", fetch(name, "http://web."+smokeNamespace+".svc.cluster.local/hostname"))
		check(name+" → API server by service", fetch(name, "https://kubernetes.default.svc.cluster.local/healthz"))
		check(name+" → outside", fetch(name, fmt.Sprintf("http://%s:%d/hostname", outsideAddress(), outsidePort)))
	}
	if len(pods.Items) > 0 && len(pods.Items[0].Status.PodIPs) > 1 {
		if err := c.checkPods6(ctx, pods, check, fetch); err != nil {
			return err
		}
	}
	if c.CNI == cniFairlead && c.Nodes > 1 {
		if err := c.checkPlugin(ctx, fairlead, check); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

// checkPods6 does the same over IPv6, where pods have an address of each family.
func (c *cluster) checkPods6(ctx context.Context, pods podList, check func(string, error), fetch func(pod, url string) error) error {
	service, err := c.kubectl(ctx, nil, "-n", smokeNamespace, "get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[1]}")
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		name := p.Metadata.Name
		for i, q := range pods.Items {
			check(fmt.Sprintf("%s → %s, IPv6 pod address", name, q.Metadata.Name), fetch(name, "http://["+q.Status.PodIPs[1].IP+"]:8080/hostname"))
			node := nodeAddress6(i + 1).String()
			check(fmt.Sprintf("%s → %s, node port", name, node), fetch(name, "http://["+node+"]:30080/hostname"))
		}
		check(name+" → service, IPv6", fetch(name, "http://["+service+"]/hostname"))
		check(name+" → outside, IPv6", fetch(name, fmt.Sprintf("http://[%s]:%d/hostname", outsideAddress6(), outsidePort)))
	}
	return nil
}
