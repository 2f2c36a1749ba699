// Command report reads "go test -json" from standard input and prints what a person
// wants of it: one line per package, the output of what failed, and at the end
// everything that was skipped, with its reason, so that nothing that did not run
// looks as if it had passed. It exits with 1 if anything failed.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is a line of test2json's output (go doc test2json).
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

type key struct{ pkg, test string }

type report struct {
	out     io.Writer
	output  map[key][]string
	skipped []string
	passed  int
	failed  int
	// packages that failed, in order.
	packages []string
}

func main() {
	list := flag.String("failed", "", "file to write the import paths of failed packages to")
	flag.Parse()
	r := report{out: os.Stdout, output: map[key][]string{}}
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
	r.summary()
	if *list != "" {
		if err := os.WriteFile(*list, []byte(strings.Join(r.packages, "\n")), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
			os.Exit(1)
		}
	}
	if r.failed > 0 {
		os.Exit(1)
	}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				// Not from a test: the build, or the go command itself.
				fmt.Fprintf(r.out, "%s\n", line)
			} else {
				r.event(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) event(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.output[k] = append(r.output[k], e.Output)
	case "pass", "skip", "fail":
		r.end(e, k)
		delete(r.output, k)
	}
}

func (r *report) end(e event, k key) {
	if e.Test == "" {
		if e.Action == "fail" {
			r.failed++
			r.packages = append(r.packages, e.Package)
			r.print(k)
		}
		if e.Action != "skip" {
			fmt.Fprintf(r.out, "%-4s %7.1fs  %s\n", e.Action, e.Elapsed, e.Package)
		}
		return
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		r.skipped = append(r.skipped, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason(r.output[k])))
	case "fail":
		r.failed++
		r.print(k)
	}
}

func (r *report) print(k key) {
	for _, line := range r.output[k] {
		fmt.Fprint(r.out, line)
	}
}

// reason is what a test said when it skipped itself.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "===") {
			continue
		}
		if _, text, found := strings.Cut(line, ".go:"); found {
			if _, text, found = strings.Cut(text, ": "); found {
				return text
			}
		}
		return line
	}
	return "no reason given"
}

func (r *report) summary() {
	slices.Sort(r.skipped)
	if len(r.skipped) > 0 {
		fmt.Fprintf(r.out, "\nDid not run (%d):\n", len(r.skipped))
		for _, s := range r.skipped {
			fmt.Fprintln(r.out, "  "+s)
		}
	}
	fmt.Fprintf(r.out, "\n%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skipped))
}
