package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCertificatesServeOneAnother(t *testing.T) {
	l := layout{root: t.TempDir()}
	if err := l.makePKI(2); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(l.pki("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("the authority's certificate cannot be read")
	}
	for file, name := range map[string]string{"apiserver": controlAddress().String(), "node2": "node2", "node1": nodeAddress(1).String()} {
		pair, err := tls.LoadX509KeyPair(l.pki(file+".crt"), l.pki(file+".key"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	pair, err := tls.LoadX509KeyPair(l.pki("node2.crt"), l.pki("node2.key"))
	if err != nil {
		t.Fatal(err)
	}
	// What the API server's authorizer of nodes goes by.
	if s := pair.Leaf.Subject; s.CommonName != "system:node:node2" || !cmp.Equal(s.Organization, []string{"system:nodes"}) {
		t.Errorf("subject of node2: %s", s)
	}
}

func TestRightsGrantedAndUsed(t *testing.T) {
	granted, err := grantedRights(`kind: ConfigMap
metadata: {name: x}
---
kind: ClusterRole
metadata: {name: fairlead-agent}
rules:
- {apiGroups: [fairlead.dev], resources: [ipblocks, nodenetworks/status], verbs: [patch]}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := map[right]bool{
		{"fairlead-agent", "fairlead.dev", "ipblocks", "patch"}:            true,
		{"fairlead-agent", "fairlead.dev", "nodenetworks/status", "patch"}: true,
	}
	if diff := cmp.Diff(want, granted, cmp.AllowUnexported(right{})); diff != "" {
		t.Errorf("granted (-want +got):\n%s", diff)
	}
	used, refused, err := usedRights(strings.NewReader(`{"verb":"patch","user":{"username":"system:serviceaccount:kube-system:fairlead-agent"},"objectRef":{"apiGroup":"fairlead.dev","resource":"nodenetworks","subresource":"status"},"responseStatus":{"code":200}}
{"verb":"get","user":{"username":"system:serviceaccount:kube-system:fairlead-agent"},"responseStatus":{"code":200}}
{"verb":"get","user":{"username":"system:serviceaccount:kube-system:fairlead-agent"},"objectRef":{"resource":"secrets"},"responseStatus":{"code":403}}
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(used) != 1 || !used[right{"fairlead-agent", "fairlead.dev", "nodenetworks/status", "patch"}] {
		t.Errorf("used = %v", used)
	}
	if len(refused) != 1 || !refused[right{"fairlead-agent", "", "secrets", "get"}] {
		t.Errorf("refused = %v", refused)
	}
}

func TestRightsGrantedAreThoseUsed(t *testing.T) {
	watch := right{"fairlead-agent", "", "pods", "watch"}
	list := right{"fairlead-agent", "", "pods", "list"}
	secrets := right{"fairlead-agent", "", "secrets", "get"}
	for name, c := range map[string]struct {
		granted, used, refused map[right]bool
		want                   string
	}{
		"equal":            {granted: map[right]bool{watch: true}, used: map[right]bool{watch: true}},
		"not used":         {granted: map[right]bool{watch: true, list: true}, used: map[right]bool{watch: true}, want: "was not used"},
		"refused at first": {granted: map[right]bool{watch: true}, used: map[right]bool{watch: true}, refused: map[right]bool{watch: true}},
		"granted, refused": {granted: map[right]bool{list: true}, refused: map[right]bool{list: true}, want: "was refused"},
		"refused":          {granted: map[right]bool{list: true}, refused: map[right]bool{secrets: true}, want: "was refused"},
	} {
		err := compareRights(c.granted, c.used, c.refused, io.Discard)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestHistogramOfADD(t *testing.T) {
	text := `fairlead_cni_request_seconds_bucket{code="0",command="ADD",le="0.01"} 5
fairlead_cni_request_seconds_bucket{code="0",command="ADD",le="0.1"} 9
fairlead_cni_request_seconds_bucket{code="0",command="ADD",le="+Inf"} 10
fairlead_cni_request_seconds_bucket{code="11",command="ADD",le="0.01"} 99
fairlead_cni_request_seconds_bucket{code="0",command="DEL",le="0.01"} 99
fairlead_cni_request_seconds_sum{code="0",command="ADD"} 1.5
fairlead_cni_request_seconds_count{code="0",command="ADD"} 10
`
	h := histogram{buckets: map[float64]float64{}}
	h.read(text)
	h.read(text) // another node
	if h.count != 20 || h.sum != 3 || h.quantile(0.5) != 0.01 || h.quantile(0.9) != 0.1 {
		t.Errorf("histogram = %+v", h)
	}
	if d := h.minus(h); d.count != 0 || d.sum != 0 || d.buckets[0.1] != 0 {
		t.Errorf("difference to itself = %+v", d)
	}
}

func TestSummaryNamesEveryFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "junit.xml")
	const report = `<testsuites><testsuite time="61.5">
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
<testcase name="[It] [sig-network] one" status="passed" time="20"></testcase>
<testcase name="[It] [sig-network] two" status="failed" time="40"><failure message="timed out&#10;more">details</failure></testcase>
<testcase name="[It] [sig-network] three" status="skipped" time="0"></testcase>
<testcase name="[It] [sig-network] four" status="skipped" time="2"><skipped message="no SCTP"></skipped></testcase>
</testsuite></testsuites>`
	if err := os.WriteFile(path, []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := summarise(path, &out); err != nil {
		t.Fatal(err)
	}
	want := `FAILED: [sig-network] two: timed out
SKIPPED: [sig-network] four: no SCTP
1 passed, 1 failed, 0 timed out, 1 skipped themselves, in 62 s
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}

func TestPolicyResultsTellSCTPFromTheRest(t *testing.T) {
	const c = "TestConformanceProfiles/CNPAdminTierGress/"
	r := readPolicyResults([]byte(`=== RUN   TestConformanceProfiles/CNPAdminTierGress
=== RUN   ` + c + `a
    helper.go:75: PROBED over tcp, n/a → 10.244.1.26:80
    helper.go:71: FAILED Command was [/agnhost connect --timeout=3s --protocol=tcp 10.244.1.26:80]
=== RUN   ` + c + `b
    helper.go:72: NOT PROBED over sctp, n/a → 10.244.1.26:9003: this kernel lacks it
    helper.go:75: PROBED over tcp, n/a → 10.244.1.26:80
=== RUN   ` + c + `c
    helper.go:72: NOT PROBED over sctp, n/a → 10.244.1.26:9003: this kernel lacks it
    helper.go:75: PROBED over tcp, n/a → 10.244.1.26:80
    helper.go:76: 
        	Error Trace:	helper.go:76
=== RUN   ` + c + `d
    x.go:1: no such object
=== RUN   ` + c + `e
    helper.go:72: NOT PROBED over sctp, n/a → 10.244.1.26:9003: this kernel lacks it
--- FAIL: TestConformanceProfiles (9.00s)
    --- FAIL: TestConformanceProfiles/CNPAdminTierGress (5.00s)
        --- PASS: ` + c + `a (1.00s)
        --- FAIL: ` + c + `b (4.00s)
        --- FAIL: ` + c + `c (4.00s)
        --- FAIL: ` + c + `d (4.00s)
        --- FAIL: ` + c + `e (4.00s)
    --- SKIP: TestConformanceProfiles/CNPOther (0.00s)
`))
	if r.counts["PASS"] != 1 || r.counts["FAIL"] != 4 || !r.ended || !cmp.Equal(r.failed, []string{c + "b", c + "c", c + "d", c + "e"}) {
		t.Errorf("results = %+v", r)
	}
	var out strings.Builder
	if n := r.tell(&out); n != 2 {
		t.Errorf("%d failed for another reason than SCTP, want c and d", n)
	}
	want := `FAILED for want of SCTP in this kernel (1 probes not made; 1 others went as they should): ` + c + `b
FAILED: ` + c + `c
FAILED: ` + c + `d
FAILED for want of SCTP in this kernel (1 probes not made; 0 others went as they should): ` + c + `e
2 failed for want of SCTP (1 of them probe nothing else), 2 otherwise; 3 probes were made, 3 over SCTP were not
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("what is told (-want +got):\n%s", diff)
	}
}

func TestPidThatIsUsedAgainIsNotKilled(t *testing.T) {
	start, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if r := (running{Pid: os.Getpid(), Start: start}); !r.alive() {
		t.Error("this process is not alive")
	}
	other := running{Pid: os.Getpid(), Start: start + "1"}
	if other.alive() {
		t.Error("another process's start time is accepted")
	}
	// If it were killed, nobody would see the end of this test.
	if err := other.kill(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestModuleWithoutLocalReplacements(t *testing.T) {
	source, dir := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module m\n\nreplace (\n\ta => ../a\n\tb => b v1.0.0\n)\n",
		"main.go":     "package main\n",
		"vendor/x.go": "package x\n",
	} {
		path := filepath.Join(source, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o400)); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyModule(dir, source); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("module m\n\nreplace (\n\tb => b v1.0.0\n)\n", string(got)); diff != "" {
		t.Errorf("go.mod (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(dir, "vendor")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("vendor was copied: %v", err)
	}
}

func TestHistogramEstimate(t *testing.T) {
	h := histogram{buckets: map[float64]float64{0.1: 50, 0.2: 90, 0.5: 98, math.Inf(1): 100}, count: 100}
	for q, want := range map[float64]float64{0.5: 0.1, 0.7: 0.15, 0.9: 0.2, 0.94: 0.35, 0.99: 0.5} {
		if got := h.estimate(q); math.Abs(got-want) > 1e-9 {
			t.Errorf("the %.2f quantile is about %v, want %v", q, got, want)
		}
	}
	if got := (histogram{}).estimate(0.99); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// A packet that passed has taken what itself took; one that comes after lost ones, all since
// the first.
func TestGreetingArrival(t *testing.T) {
	at := time.Unix(100, 0)
	ms := func(n int) int64 { return at.Add(time.Duration(-n) * time.Millisecond).UnixNano() }
	for _, c := range []struct {
		name string
		g    greeting
		want arrival
	}{
		{"none lost", greeting{Number: 0, First: ms(90), Sent: ms(2)}, arrival{0, 2 * time.Millisecond}},
		{"lost before", greeting{Number: 3, First: ms(90), Sent: ms(2)}, arrival{3, 90 * time.Millisecond}},
	} {
		if got := c.g.arrival(at); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
