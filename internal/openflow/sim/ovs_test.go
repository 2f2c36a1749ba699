package sim

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

// TestAgreesWithSwitch holds walks through random pipelines against what a real
// switch says that it would do (ofproto/trace).
func TestAgreesWithSwitch(t *testing.T) {
	s := startSwitch(t)
	stats := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		d := draw(rapid.Uint64().Draw(t, "seed"), rapid.Bool().Draw(t, "ct"))
		if !s.install(t, d) {
			stats["pipelines refused"]++
			t.Skip("the switch refuses what ovs-ofctl has made of it")
		}
		for _, p := range d.packets {
			s.compare(t, d, p, stats)
		}
	})
	t.Log(stats)
	for _, what := range []string{"sent", "dropped", "loops", "missed", "conjunctions", "tracked", "cut short", "headers"} {
		if stats[what] == 0 && !t.Failed() {
			t.Errorf("no walk was %q: the drawn pipelines prove nothing about it", what)
		}
	}
}

// realSwitch is a bridge with ports 1 to 4.
type realSwitch struct {
	ovs     *ovstest.OVS
	control openflowconn.Control
	// numbers are the ports' numbers in OpenFlow, by those in the datapath.
	numbers map[string]string
}

func startSwitch(t *testing.T) *realSwitch {
	t.Helper()
	s := &realSwitch{ovs: ovstest.Start(t, netnstest.New(t)), numbers: map[string]string{}}
	s.control = openflowconn.Control{Run: s.ovs.Host.Run}
	args := []string{"add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow15"}
	for i := range drawnPorts {
		n := strconv.Itoa(i + 1)
		args = append(args, "--", "add-port", "br0", "p"+n, "--", "set", "interface", "p"+n, "type=internal", "ofport_request="+n)
	}
	s.ovs.Run("ovs-vsctl", args...)
	for _, m := range regexp.MustCompile(`(?m)^\s+(\S+) (\d+|65534)/(\d+):`).FindAllStringSubmatch(s.ovs.Run("ovs-appctl", "dpif/show"), -1) {
		s.numbers[m[3]] = m[2]
	}
	if len(s.numbers) != drawnPorts+1 {
		t.Fatalf("the bridge has ports %v", s.numbers)
	}
	return s
}

// install reports whether the switch took the pipeline. It does not take some masked
// set_field within a clone.
func (s *realSwitch) install(t interface{ Fatalf(string, ...any) }, d *drawn) bool {
	out, err := s.ovs.Try([]byte(d.bundle()), "ovs-ofctl", "-O", "OpenFlow15", "bundle", "br0", "-")
	if err != nil && !strings.Contains(out, "OFPBAC_BAD_SET_LEN") {
		t.Fatalf("%v: %s\n%s", err, out, d.bundle())
	}
	return err == nil
}

var (
	cookies = regexp.MustCompile(`cookie (0x[0-9a-f]+|0)\b`)
	actions = regexp.MustCompile(`(?m)^Datapath actions: (.*)$`)
	final   = regexp.MustCompile(`(?m)^Final flow: (.*)$`)
)

func (s *realSwitch) compare(t *rapid.T, d *drawn, p Packet, stats map[string]int) {
	pipeline, err := New(d.flows, d.groups)
	if err != nil {
		t.Fatal(err)
	}
	sw := &Switch{Pipeline: pipeline, Trace: true}
	result := &Result{}
	w := &walk{sw: sw, p: p, run: &run{result: result}}
	walkErr := w.enter(visit{})
	if walkErr != nil && (strings.Contains(walkErr.Error(), "came back from") || len(result.Trace) > 3000) {
		stats["not asked"]++ // ofproto/trace follows such loops, and the switch stands still.
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	text, err := s.control.Trace(ctx, "br0", p.Flow())
	if err != nil {
		t.Fatalf("%s: %v", p, err)
	}
	explain := func() string { return p.String() + "\n" + d.bundle() + text + "\n" + result.Trace.String() }
	gaveUp := strings.Contains(text, "over max translation depth") || strings.Contains(text, "resubmit actions")
	if walkErr != nil || gaveUp {
		if walkErr == nil != !gaveUp {
			t.Fatalf("the simulator says %v\n%s", walkErr, explain())
		}
		stats["loops"]++
		return
	}
	var theirs []string
	for _, m := range cookies.FindAllStringSubmatch(text, -1) {
		theirs = append(theirs, m[1])
	}
	if diff := gocmp.Diff(theirs, path(d, result.Trace)); diff != "" {
		t.Fatalf("flows (-switch +simulator): %s\n%s", diff, explain())
	}
	if diff := gocmp.Diff(s.outputs(text), sent(result)); diff != "" {
		t.Fatalf("ports (-switch +simulator): %s\n%s", diff, explain())
	}
	if got, want := strip(w.p.String()), strip(strings.ReplaceAll(final.FindStringSubmatch(text)[1], "unchanged", p.String())); got != want {
		t.Fatalf("the packet becomes\n%s, in the simulator\n%s\n%s", want, got, explain())
	} else if got != strip(p.String()) {
		stats["headers"]++
	}
	count(result, stats)
}

func count(r *Result, stats map[string]int) {
	stats["packets"]++
	if r.Dropped() {
		stats["dropped"]++
	} else {
		stats["sent"]++
	}
	for _, step := range r.Trace {
		switch {
		case step.Effect == Missed:
			stats["missed"]++
		case step.Effect == Tracked:
			stats["tracked"]++
		case step.Effect == Ended:
			stats["cut short"]++
		case step.Effect == Matched && strings.Contains(step.Flow, "conj_id"):
			stats["conjunctions"]++
		}
	}
}

// path is the cookies of the flows that a packet met, in the order of ofproto/trace,
// which follows packets from the connection tracker last.
func path(d *drawn, trace Trace) []string {
	steps := slices.Clone(trace.Path())
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Compare(a.Round, b.Round) })
	var out []string
	for _, step := range steps {
		for _, f := range d.flows {
			if step.Effect == Matched && f.Comment == step.Comment {
				out = append(out, "0x"+strconv.FormatUint(f.Cookie, 16))
			}
		}
	}
	return out
}

// outputs are the ports, sorted, that the datapath sends to.
func (s *realSwitch) outputs(text string) []string {
	var out []string
	for _, m := range actions.FindAllStringSubmatch(text, -1) {
		for _, word := range regexp.MustCompile(`clone\(|[a-z_0-9]+\([^()]*(\([^()]*(\([^()]*\)[^()]*)*\)[^()]*)*\)|\d+`).FindAllString(m[1], -1) {
			if n, ok := s.numbers[word]; ok {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return out
}

func sent(r *Result) []string {
	var out []string
	for _, o := range r.Outputs {
		if o.Port <= drawnPorts || o.Port == of.PortLocal { // Others do not exist.
			out = append(out, strconv.FormatUint(port16(o.Port), 10))
		}
	}
	slices.Sort(out)
	return out
}

// strip makes two spellings of a packet comparable.
func strip(flow string) string {
	var out []string
	for _, item := range strings.Split(flow, ",") {
		name, value, _ := strings.Cut(item, "=")
		switch {
		case strings.Trim(value, "0x:.") == "" && value != "", name == "nw_frag", name == "eth":
		case strings.HasSuffix(name, "_port") && name != "in_port":
		default:
			out = append(out, item)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}
