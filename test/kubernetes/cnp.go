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

// withoutSCTP lets the servers of SCTP in the tests' pods do nothing: on a kernel without
// SCTP they would keep every pod from being ready, and every test from running. The cases
// about SCTP fail there, as they must.
func withoutSCTP(dir string) error {
	if hasSCTP() {
		return nil
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
	unexpected := 0
	for _, name := range r.failed {
		if !r.otherwise[name] && !hasSCTP() {
			fmt.Fprintln(w, "FAILED over SCTP, which this kernel lacks:", name)
			continue
		}
		unexpected++
		fmt.Fprintln(w, "FAILED:", name)
	}
	fmt.Fprintf(w, "%d cases passed, %d failed, %d were skipped\n", r.counts["PASS"], r.counts["FAIL"], r.counts["SKIP"])
	if unexpected == 0 && len(r.failed) > 0 {
		return nil
	}
	return ran
}

// What "go test -v" says: the result of a case of a case (those without further ones), which
// case the next lines are about, and a probe of a case that did not go as it should.
var (
	resultLine = regexp.MustCompile(`^\s+--- (PASS|FAIL|SKIP): (TestConformanceProfiles/\S+/\S+)`)
	aboutLine  = regexp.MustCompile(`^=== (?:RUN|NAME|CONT)\s+(\S+)`)
	probeLine  = regexp.MustCompile(`FAILED Command was \[.*--protocol=(\w+)`)
)

// policyResults are the results of a run.
type policyResults struct {
	counts map[string]int
	failed []string
	// otherwise are the cases in which something else than a probe over SCTP went wrong.
	otherwise map[string]bool
}

func readPolicyResults(log []byte) policyResults {
	r := policyResults{counts: map[string]int{}, otherwise: map[string]bool{}}
	probed := map[string]bool{}
	about := ""
	for line := range strings.Lines(string(log)) {
		if m := aboutLine.FindStringSubmatch(line); m != nil {
			about = m[1]
		} else if m := probeLine.FindStringSubmatch(line); m != nil {
			probed[about] = true
			if m[1] != "sctp" {
				r.otherwise[about] = true
			}
		} else if m := resultLine.FindStringSubmatch(line); m != nil {
			r.counts[m[1]]++
			if m[1] == "FAIL" {
				r.failed = append(r.failed, m[2])
			}
		}
	}
	for _, name := range r.failed {
		if !probed[name] {
			r.otherwise[name] = true
		}
	}
	slices.Sort(r.failed)
	return r
}
