package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// inside executes a command inside a machine and returns what it prints.
func (c *cluster) inside(name, stdin string, argv ...string) (string, error) {
	r, err := c.find(name)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "fairlead-run-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte(stdin), 0o600); err != nil {
		return "", err
	}
	from, err := os.Open(in)
	if err != nil {
		return "", err
	}
	defer from.Close()
	to, err := os.Create(out)
	if err != nil {
		return "", err
	}
	defer to.Close()
	p, err := netspace.Start(r.Pid, "", "/usr/bin/env", append([]string{"env"}, argv...), &os.ProcAttr{
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Files: []*os.File{from, to, to},
	})
	if err != nil {
		return "", err
	}
	state, err := p.Wait()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(out)
	if err == nil && !state.Success() {
		err = fmt.Errorf("%s on %s: %s", strings.Join(argv, " "), name, state)
	}
	return string(text), err
}

// cniAnswer is an error of the plugin, of code 0 if it has succeeded.
type cniAnswer struct {
	Code         int
	Msg, Details string
}

// cni calls the plugin as a container runtime does.
func (c *cluster) cni(node, command string, a attachment) (cniAnswer, error) {
	const config = `{"cniVersion": "1.1.0", "name": "fairlead", "type": "fairlead-cni", "standalone": true}`
	argv := []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + a.Container, "CNI_NETNS=" + a.Netns, "CNI_IFNAME=" + a.Interface, "CNI_PATH=/opt/cni/bin"}
	if o := a.Owner; o.Name != "" {
		argv = append(argv, fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", o.Namespace, o.Name, o.UID))
	}
	text, err := c.inside(node, config, append(argv, "/opt/cni/bin/fairlead-cni")...)
	if err == nil {
		return cniAnswer{}, nil
	}
	var answer cniAnswer
	if json.Unmarshal([]byte(text), &answer) != nil || answer.Code == 0 {
		return cniAnswer{}, fmt.Errorf("%w: %s", err, text)
	}
	return answer, nil
}

// agent finds the process of a node's agent. It is in a container of its own, in the network
// of the node.
func (c *cluster) agent(node string) (int, error) {
	r, err := c.find(node)
	if err != nil {
		return 0, err
	}
	return c.process(r, "net", agentProgram)
}

// agentIsBack waits until a node has an agent other than the one with the pid, and it says
// that it is ready.
func (c *cluster) agentIsBack(ctx context.Context, node string, old int) error {
	dial, err := c.dialer(node)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	return poll(ctx, 100*time.Millisecond, func() error {
		if pid, err := c.agent(node); err != nil || pid == old {
			return errors.Join(fmt.Errorf("node %s has no new agent", node), err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9477/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("the agent of %s is not ready: %s", node, resp.Status)
		}
		return nil
	})
}
