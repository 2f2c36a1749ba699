package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The conformance tests of ClusterNetworkPolicies, and the image that they ask for.
const (
	policyTests      = "cnp.test"
	policyTestsImage = "agnhost:2.45"
	policyLimit      = 40 * time.Minute
)

// pokeServer is how the tests' function that probes begins.
const pokeServer = "\trequire.Eventually(t, func() bool {\n\t\treturn doPokeServer("

// pokeServerTCP comes before it: a probe over SCTP is not made, and noted as an error, with
// which the case goes on. All others are counted.
const pokeServerTCP = `	probe := fmt.Sprintf("over %s, %s/%s → %s:%d", protocol, clientNamespace, clientPod, targetHost, targetPort)
	if protocol == "sctp" {
		t.Errorf("NOT PROBED %s: this kernel lacks it", probe)
		return
	}
	t.Logf("PROBED %s", probe)
`

// withoutSCTP changes the tests for kernels without SCTP. The servers of SCTP in their pods
// do nothing: they would keep every pod from being ready, and every test from running.
// A case with a probe over SCTP fails, as it must, but only after all its other probes.
func withoutSCTP(dir string) error {
	if hasSCTP() {
		return nil
	}
	path := filepath.Join(dir, "conformance/utils/kubernetes/helper.go")
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if bytes.Count(raw, []byte(pokeServer)) != 1 {
		return fmt.Errorf("%s does not probe as that of network-policy-api %s does", path, policyAPIVersion)
	}
	raw = bytes.Replace(raw, []byte(pokeServer), []byte(pokeServerTCP+pokeServer), 1)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return err
	}
	return filepath.WalkDir(filepath.Join(dir, "conformance/base"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, bytes.ReplaceAll(raw, []byte("/agnhost porter"), []byte("/agnhost pause")), 0o600)
	})
}

// hasSCTP tells whether the kernel speaks SCTP.
func hasSCTP() bool {
	_, err := os.Stat("/proc/sys/net/sctp")
	return err == nil
}

// policyConformance installs the definition of ClusterNetworkPolicies, and runs their
// tests.
func (c *cluster) policyConformance(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, policyLimit)
	defer cancel()
	crd := filepath.Join(c.src("network-policy-api"), "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml")
	if _, err := c.kubectl(ctx, nil, "apply", "--server-side", "-f", crd); err != nil {
		return err
	}
	dir := c.output(time.Now().UTC().Format("20060102-150405") + "-cnp")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "cnp.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(w, "running; what the tests print, and their report, is in %s\n", dir)
	cmd := c.command(ctx, c.bin(policyTests), "-test.run=TestConformanceProfiles", "-test.v", "-all-features",
		"-conformance-profiles=ClusterNetworkPolicy", "-organization=fairlead-sdn", "-project=fairlead",
		"-url=https://github.com/fairlead-sdn/fairlead", "-version=tree", "-contact=https://github.com/fairlead-sdn/fairlead/issues", "-additional-info=make kube-test, on one machine", "-report-output="+filepath.Join(dir, "report.yaml"))
	cmd.Stdout, cmd.Stderr = log, log
	ran := c.runIn(cmd)
	raw, err := os.ReadFile(log.Name())
	if err != nil {
		return errors.Join(ran, err)
	}
	r := readPolicyResults(raw)
	fmt.Fprintf(w, "%d cases passed, %d failed, %d were skipped\n", r.counts["PASS"], r.counts["FAIL"], r.counts["SKIP"])
	unexpected := r.tell(w)
	if unexpected == 0 && len(r.failed) > 0 && r.ended {
		return nil
	}
	return ran
}

// What "go test -v" says: the result of a case of a case (those without further ones), which
// case the next lines are about, a probe of a case that was made or was not, and an assertion
// that did not hold.
var (
	resultLine = regexp.MustCompile(`^\s+--- (PASS|FAIL|SKIP): (TestConformanceProfiles/\S+/\S+)`)
	endLine    = regexp.MustCompile(`^--- (PASS|FAIL): TestConformanceProfiles `)
	aboutLine  = regexp.MustCompile(`^=== (?:RUN|NAME|CONT)\s+(\S+)`)
	probeLine  = regexp.MustCompile(`\s(NOT PROBED|PROBED) over (\w+)`)
	errorLine  = regexp.MustCompile(`^\s+Error Trace:`)
)

// policyCase is what is known of a case that failed.
type policyCase struct {
	// made and left are the numbers of probes that were made, and not for want of SCTP.
	made, left int
	// broken: an assertion did not hold.
	broken bool
}

// otherwise reports whether it failed for another reason than SCTP.
func (c policyCase) otherwise() bool { return c.broken || c.left == 0 }

// policyResults are the results of a run.
type policyResults struct {
	counts map[string]int
	failed []string
	cases  map[string]policyCase
	// ended: the run came to its end.
	ended bool
}

func readPolicyResults(log []byte) policyResults {
	r := policyResults{counts: map[string]int{}, cases: map[string]policyCase{}}
	about := ""
	for line := range strings.Lines(string(log)) {
		c := r.cases[about]
		if m := aboutLine.FindStringSubmatch(line); m != nil {
			about = m[1]
		} else if m := probeLine.FindStringSubmatch(line); m != nil && m[1] == "PROBED" {
			c.made++
			r.cases[about] = c
		} else if m != nil {
			c.left++
			r.cases[about] = c
		} else if errorLine.MatchString(line) {
			c.broken = true
			r.cases[about] = c
		} else if m := resultLine.FindStringSubmatch(line); m != nil {
			r.counts[m[1]]++
			if m[1] == "FAIL" {
				r.failed = append(r.failed, m[2])
			}
		} else if endLine.MatchString(line) {
			r.ended = true
		}
	}
	slices.Sort(r.failed)
	return r
}

// tell names every case that failed, and returns how many did for another reason than SCTP.
func (r policyResults) tell(w io.Writer) (unexpected int) {
	made, left, only := 0, 0, 0
	for _, c := range r.cases {
		made, left = made+c.made, left+c.left
	}
	for _, name := range r.failed {
		c := r.cases[name]
		if c.otherwise() {
			unexpected++
			fmt.Fprintln(w, "FAILED:", name)
			continue
		}
		if c.made == 0 {
			only++
		}
		fmt.Fprintf(w, "FAILED for want of SCTP in this kernel (%d probes not made; %d others went as they should): %s\n", c.left, c.made, name)
	}
	fmt.Fprintf(w, "%d failed for want of SCTP (%d of them probe nothing else), %d otherwise; %d probes were made, %d over SCTP were not\n",
		len(r.failed)-unexpected, only, unexpected, made, left)
	return unexpected
}
