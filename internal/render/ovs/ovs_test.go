package ovs

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

// install gives an Open vSwitch the bridge and the flows of an intent.
func install(t *testing.T, o *ovstest.OVS, n intent.Node, options Options) {
	t.Helper()
	numbers := numbersOf(n)
	_, _ = o.Try(nil, "ovs-vsctl", "--if-exists", "del-br", claims.OVSBridge)
	args := []string{"add-br", claims.OVSBridge, "--", "set", "bridge", claims.OVSBridge, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow15"}
	for _, b := range RenderBridges(n, Switch{Datapath: Netdev}) {
		for _, p := range b.Ports {
			typ := p.Type
			if typ == "" {
				typ = "internal" // as if it were the link of a pod
			}
			args = append(args, "--", "add-port", b.Name, p.Name, "--", "set", "interface", p.Name, "type="+typ, "ofport_request="+strconv.Itoa(int(numbers[p.Name])))
			for _, k := range slices.Sorted(maps.Keys(p.Options)) {
				args = append(args, "options:"+k+"="+p.Options[k])
			}
		}
	}
	o.Run("ovs-vsctl", args...)
	for name, number := range numbers {
		if got := strings.TrimSpace(o.Run("ovs-vsctl", "get", "interface", name, "ofport")); got != strconv.Itoa(int(number)) {
			t.Fatalf("port %s has the number %s, want %d: %s", name, got, number, o.Run("ovs-vsctl", "get", "interface", name, "error"))
		}
	}
	flows := Render(n, numbers, options).Flows()
	if out, err := o.Try([]byte(of.Text(flows)), "ovs-ofctl", "-O", "OpenFlow15", "--bundle", "add-flows", claims.OVSBridge, "-"); err != nil {
		t.Fatalf("ovs-ofctl: %v\n%s", err, out)
	}
	dumped := o.Run("ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "--no-names", "dump-flows", claims.OVSBridge)
	if got := strings.Count(dumped, "actions="); got != len(flows) {
		t.Fatalf("the switch has %d flows of %d", got, len(flows))
	}
	installed, err := of.ParseFlows(dumped)
	if err != nil {
		t.Fatal(err)
	}
	if of.Hash(installed) != of.Hash(flows) {
		t.Error("the switch gives back other flows than those that it got")
	}
}

// TestOpenVSwitch loads the examples into a real switch and lets it trace packets.
func TestOpenVSwitch(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	control := openflowconn.Control{Run: o.Host.Run}
	list := walks()
	for _, name := range slices.Sorted(maps.Keys(list)) {
		e := examples()[name]
		install(t, o, e.node, e.options)
		for _, w := range list[name] {
			t.Run(name+"/"+w.name, func(t *testing.T) {
				got, text := trace(t, control, w)
				if got != w.want {
					t.Errorf("%s\nis %s, want %s\n%s", w.flow, got, w.want, text)
				}
			})
		}
	}
}

var sentTo = regexp.MustCompile(`(?m)^\s*(output:\d+|IN_PORT)$`)

// trace asks the switch what becomes of a packet.
func trace(t *testing.T, c openflowconn.Control, w walked) (became, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	flow := w.flow
	if w.mark != 0 {
		flow += ",ct_mark=" + strconv.FormatUint(uint64(w.mark), 10)
	}
	args := []string{claims.OVSBridge, flow}
	if w.next != "" {
		args = append(args, "--ct-next", w.next)
		if strings.Contains(w.flow, "nw_frag") { // is tracked twice
			args = append(args, "--ct-next", w.next)
		}
	}
	text, err := c.Call(ctx, "ovs-vswitchd", "ofproto/trace", args...)
	if err != nil {
		t.Fatal(err)
	}
	sent := sentTo.FindAllString(text, -1)
	switch {
	case len(sent) == 0:
		return dropped, text
	case len(sent) > 1:
		return "sent several times", text
	case strings.TrimSpace(sent[0]) == "IN_PORT":
		return answered, text
	}
	return "port " + strings.TrimPrefix(strings.TrimSpace(sent[0]), "output:"), text
}
