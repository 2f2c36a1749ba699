package admin

import (
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// CaptureAtMost is how long an agent captures.
const CaptureAtMost = time.Hour

// Capture is which packets of a pod a node is asked for. The answer is a pcap file.
type Capture struct {
	// Namespace and Pod name it; Interface is that in the pod, needed if it has several.
	Namespace, Pod, Interface string
	// Filter in the language of package apply/capture; empty: all packets.
	Filter string
	// Snap is how many bytes of each packet are kept; 0: all.
	Snap int
	// Packets and For end the capture; 0: the agent's own limits.
	Packets uint64
	For     time.Duration
}

// Path is what a client asks for.
func (c Capture) Path() string {
	v := url.Values{"namespace": {c.Namespace}, "pod": {c.Pod}}
	for name, text := range map[string]string{"interface": c.Interface, "filter": c.Filter} {
		if text != "" {
			v.Set(name, text)
		}
	}
	if c.Snap != 0 {
		v.Set("snap", strconv.Itoa(c.Snap))
	}
	if c.Packets != 0 {
		v.Set("packets", strconv.FormatUint(c.Packets, 10))
	}
	if c.For != 0 {
		v.Set("for", c.For.String())
	}
	return "/v1/capture?" + v.Encode()
}

// ParseCapture reads what Path wrote.
func ParseCapture(v url.Values) (Capture, error) {
	c := Capture{Namespace: v.Get("namespace"), Pod: v.Get("pod"), Interface: v.Get("interface"), Filter: v.Get("filter")}
	if c.Namespace == "" || c.Pod == "" {
		return Capture{}, fmt.Errorf("namespace and pod are needed")
	}
	var err error
	if text := v.Get("snap"); text != "" {
		if c.Snap, err = strconv.Atoi(text); err != nil || c.Snap < 0 {
			return Capture{}, fmt.Errorf("snap: %q is no number of bytes", text)
		}
	}
	if text := v.Get("packets"); text != "" {
		if c.Packets, err = strconv.ParseUint(text, 10, 63); err != nil {
			return Capture{}, fmt.Errorf("packets: %q is no number of packets", text)
		}
	}
	if text := v.Get("for"); text != "" {
		if c.For, err = time.ParseDuration(text); err != nil || c.For < 0 {
			return Capture{}, fmt.Errorf("for: %q is no duration such as 30s", text)
		}
	}
	return c, nil
}
