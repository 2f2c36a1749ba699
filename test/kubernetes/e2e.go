package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// endToEnd runs tests of Kubernetes whose names match focus, and tells which ones failed.
// What they print and their report are left in the cache directory. So many tests run side
// by side as there are procs; those whose names match skip do not run.
func (c *cluster) endToEnd(ctx context.Context, focus, skip string, procs int, flags []string, w io.Writer) error {
	dir := c.output(time.Now().UTC().Format("20060102-150405"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "e2e.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(w, "running; what the tests print is in %s\n", log.Name())
	args := append([]string{
		"--no-color", "--focus=" + focus, "--skip=" + skip, fmt.Sprintf("--procs=%d", procs), "--timeout=24h", c.bin(endToEnd), "--",
		"--provider=skeleton", "--kubeconfig=" + c.kubeconfig("admin"), "--kubectl-path=" + c.bin("kubectl"),
		"--e2e-output-dir=" + dir, "--report-dir=" + dir,
	}, flags...)
	cmd := c.command(ctx, c.bin("ginkgo"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	ran := c.runIn(cmd)
	// Without a report what it printed tells more.
	return errors.Join(ran, summarise(filepath.Join(dir, "junit_01.xml"), w))
}

// junit is what is read of a report.
type junit struct {
	Suites []struct {
		Seconds float64 `xml:"time,attr"`
		Cases   []struct {
			Name    string  `xml:"name,attr"`
			Status  string  `xml:"status,attr"`
			Seconds float64 `xml:"time,attr"`
			Failure reason  `xml:"failure"`
			Skipped reason  `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// reason is why a test failed or skipped itself.
type reason struct {
	Message string `xml:"message,attr"`
}

// summarise prints what ran: counts, and every test that did not pass.
func summarise(path string, w io.Writer) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var report junit
	if err := xml.Unmarshal(raw, &report); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	counts := map[string]int{}
	var seconds float64
	var failed []string
	for _, s := range report.Suites {
		seconds += s.Seconds
		for _, t := range s.Cases {
			name, isTest := strings.CutPrefix(t.Name, "[It] ")
			if !isTest || t.Status == "skipped" && t.Seconds == 0 {
				continue
			}
			counts[t.Status]++
			if t.Status != "passed" {
				message, _, _ := strings.Cut(t.Failure.Message+t.Skipped.Message, "\n")
				failed = append(failed, fmt.Sprintf("%s: %s: %s", strings.ToUpper(t.Status), name, message))
			}
		}
	}
	slices.Sort(failed)
	for _, line := range failed {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d timed out, %d skipped themselves, in %.0f s\n",
		counts["passed"], counts["failed"], counts["timedout"]+counts["interrupted"], counts["skipped"], seconds)
	return nil
}
