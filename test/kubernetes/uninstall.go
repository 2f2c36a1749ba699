package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const uninstallLimit = 5 * time.Minute

// leftovers prints what is on a node and is of Fairlead, and exits with 1 if anything is:
// links that are neither the node's own nor made by kernel modules, routes of our protocol,
// rules, the table, pins and files.
const leftovers = `
left=0
for f in /etc/cni/net.d/* /opt/cni/bin/fairlead-cni /var/lib/fairlead/* /run/fairlead/* /sys/fs/bpf/fairlead; do
	if [ -e "$f" ]; then echo "left: $f"; left=1; fi
done
if ip -o link | grep -vE '^[0-9]+: (lo|eth0|tunl0|sit0|gre0|gretap0|erspan0|ip6tnl0|ip6gre0|ip_vti0|ip6_vti0)[@:]'; then left=1; fi
if nft list tables | grep -i fairlead; then left=1; fi
if ip route show table all proto 97 | grep . || ip -6 route show table all proto 97 | grep .; then left=1; fi
if ip rule | grep -vE 'lookup (local|main|default)$'; then left=1; fi
if ip -6 rule | grep -vE 'lookup (local|main|default)$'; then left=1; fi
exit $left
`

// uninstall removes Fairlead as docs/kubernetes.md says, and checks that nothing is left on
// the nodes and in the API server. The cluster has no network afterwards.
func (c *cluster) uninstall(ctx context.Context, installed, uninstall string, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, uninstallLimit)
	defer cancel()
	p := progress{w: w, start: time.Now()}
	for _, args := range [][]string{
		{"-n", "kube-system", "delete", "daemonset/fairlead-agent", "deployment/fairlead-controller"},
		{"apply", "-f", uninstall},
		{"-n", "kube-system", "rollout", "status", "daemonset/fairlead-uninstall", "--timeout=150s"},
	} {
		if _, err := c.kubectl(ctx, nil, args...); err != nil {
			return err
		}
	}
	p.say("the nodes say that they are clean")
	var errs []error
	for i := 1; i <= c.Nodes; i++ {
		code, err := c.exec(nodeName(i), []string{"sh", "-c", leftovers})
		if err == nil && code != 0 {
			err = fmt.Errorf("something is left on %s", nodeName(i))
		}
		errs = append(errs, err)
	}
	if _, err := c.kubectl(ctx, nil, "delete", "-f", uninstall, "-f", installed, "--ignore-not-found", "--timeout=120s"); err != nil {
		return errors.Join(append(errs, err)...)
	}
	p.say("the objects are deleted")
	out, err := c.kubectl(ctx, nil, "get", "customresourcedefinitions,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"+
		"daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings", "-A", "-l", "app.kubernetes.io/name=fairlead", "-o", "name")
	if err == nil && out != "" {
		err = fmt.Errorf("objects are left: %s", out)
	}
	if err = errors.Join(append(errs, err)...); err == nil {
		p.say("nothing is left on the nodes and in the API server")
	}
	return err
}
