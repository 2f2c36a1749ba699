package agent

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/fairlead-sdn/fairlead/internal/apply/capture"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// The limits of captures: they may not harm the node that somebody is worried about.
const (
	maxCaptures     = 4
	maxCaptureBytes = 1 << 30
	// maxCaptureRate is in bytes a second.
	maxCaptureRate = 16 << 20
)

// captures counts those that run.
type captures struct{ running atomic.Int32 }

// begin takes one of the places, and reports false if there is none.
func (c *captures) begin() bool {
	if c.running.Add(1) > maxCaptures {
		c.end()
		return false
	}
	return true
}

func (c *captures) end() { c.running.Add(-1) }

// streams answer the CLI with what has no end of its own.
func (a *Agent) streams() map[string]admin.Stream {
	return map[string]admin.Stream{"GET /v1/capture": a.serveCapture}
}

// serveCapture copies the packets of a pod's link, seen at the host's end of it. That is
// the same on every plane.
func (a *Agent) serveCapture(ctx context.Context, v url.Values, w io.Writer) (string, error) {
	q, err := admin.ParseCapture(v)
	if err != nil {
		return "", err
	}
	filter, err := capture.ParseFilter(q.Filter)
	if err != nil {
		return "", err
	}
	at, err := a.attachmentOf(q)
	if err != nil {
		return "", err
	}
	if !a.captures.begin() {
		return "", fmt.Errorf("node %s: %d captures run already: end one of them", a.Node, maxCaptures)
	}
	defer a.captures.end()
	o := capture.Options{
		Link: at.HostInterface, Filter: filter, Snap: q.Snap, Packets: q.Packets,
		Bytes: maxCaptureBytes, Rate: maxCaptureRate, For: admin.CaptureAtMost,
	}
	if q.For > 0 {
		o.For = min(q.For, admin.CaptureAtMost)
	}
	c, err := capture.Open(o)
	if err != nil {
		return "", fmt.Errorf("node %s: %w", a.Node, err)
	}
	defer func() { _ = c.Close() }() // It was read only.
	what := fmt.Sprintf("capture of pod %s/%s (%s) with the filter %q", q.Namespace, q.Pod, at.HostInterface, q.Filter)
	a.note(what + " begins")
	result, err := c.Copy(ctx, w)
	a.note(what + " ended: " + result.String())
	return result.String(), err
}

// attachmentOf finds the link of a pod.
func (a *Agent) attachmentOf(q admin.Capture) (world.Attachment, error) {
	var found []world.Attachment
	var has []string
	for _, x := range a.attachments.List() {
		if x.Pod.Namespace != q.Namespace || x.Pod.Name != q.Pod {
			continue
		}
		has = append(has, x.Interface)
		if q.Interface == "" || q.Interface == x.Interface {
			found = append(found, x)
		}
	}
	switch {
	case len(has) == 0:
		return world.Attachment{}, fmt.Errorf("node %s has no link of pod %s/%s: the pod is on the host's network, is on another node, or is being made", a.Node, q.Namespace, q.Pod)
	case len(found) == 0:
		return world.Attachment{}, fmt.Errorf("pod %s/%s on node %s has no interface %q of Fairlead's; it has %s", q.Namespace, q.Pod, a.Node, q.Interface, strings.Join(has, ", "))
	case len(found) > 1:
		return world.Attachment{}, fmt.Errorf("pod %s/%s on node %s has several interfaces: say --interface with one of %s", q.Namespace, q.Pod, a.Node, strings.Join(has, ", "))
	}
	return found[0], nil
}
