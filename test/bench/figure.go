package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// samples are measurements of one thing: durations in seconds, or sizes in bytes.
type samples []float64

func (s *samples) add(d time.Duration) { *s = append(*s, d.Seconds()) }

// quantile is the value that a share q of the samples does not exceed; 0 without
// samples.
func (s samples) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (s samples) median() float64 { return s.quantile(0.5) }
func (s samples) p99() float64    { return s.quantile(0.99) }

// unit says how samples are printed.
type unit int

const (
	seconds unit = iota
	octets
	perSecond
)

func (u unit) format(v float64) string {
	switch {
	case v == 0 || math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case u == octets:
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	case u == perSecond:
		return fmt.Sprintf("%.0f/s", v)
	case v < 1e-3:
		return fmt.Sprintf("%.2f µs", v*1e6)
	case v < 1:
		return fmt.Sprintf("%.2f ms", v*1e3)
	}
	return fmt.Sprintf("%.2f s", v)
}

// target is what a figure should be. The zero target judges nothing.
type target struct {
	limit float64
	// least says that limit is the smallest good value, otherwise it is the largest.
	least bool
	// ratio says that it is about the ratio to the baseline, otherwise about the
	// value itself.
	ratio bool
	// noise says that a miss counts only outside of the noise that A/A shows.
	noise bool
}

func (t target) format(u unit) string {
	if t == (target{}) {
		return "–"
	}
	sign := "≤"
	if t.least {
		sign = "≥"
	}
	if t.ratio {
		return fmt.Sprintf("%s %.2f", sign, t.limit)
	}
	return sign + " " + u.format(t.limit)
}

// figure is a line of the table.
type figure struct {
	name string
	unit unit
	// ours and base are measured in turn; again is the baseline once more. Only ours
	// is needed.
	ours, base, again samples
	// at is the quantile that the ratio is made of; zero is the median.
	at float64
	// inverse makes the ratio that of the baseline to ours: how much of the
	// baseline's performance ours reaches.
	inverse bool
	target  target
}

func (f *figure) value(s samples) float64 { return s.quantile(cmp.Or(f.at, 0.5)) }

// ratio of ours to the baseline, or NaN without one.
func (f *figure) ratio() float64 { return f.over(f.ours, f.base) }

// noise is the ratio of the baseline to itself, or NaN.
func (f *figure) noise() float64 { return f.over(f.again, f.base) }

func (f *figure) over(a, b samples) float64 {
	x, y := f.value(a), f.value(b)
	if f.inverse {
		x, y = y, x
	}
	if x == 0 || y == 0 {
		return math.NaN()
	}
	return x / y
}

// verdict is PASS or MISS, or nothing without a target.
func (f *figure) verdict() string {
	if f.target == (target{}) {
		return "–"
	}
	v := f.value(f.ours)
	if f.target.ratio {
		v = f.ratio()
	}
	band := 1.0
	if n := f.noise(); f.target.noise && !math.IsNaN(n) {
		band = max(n, 1/n)
	}
	good := v <= f.target.limit*band
	if f.target.least {
		good = v >= f.target.limit/band
	}
	if good {
		return "PASS"
	}
	return "MISS" // NaN too
}

func ratioText(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.3f", v)
}

// header of the table.
var header = []string{"figure", "ours p50", "p99", "baseline p50", "p99", "ratio", "A/A", "target", "", "n"}

func (f *figure) cells() []string {
	return []string{
		f.name, f.unit.format(f.ours.median()), f.unit.format(f.ours.p99()), f.unit.format(f.base.median()), f.unit.format(f.base.p99()),
		ratioText(f.ratio()), ratioText(f.noise()), f.target.format(f.unit), f.verdict(), fmt.Sprint(len(f.ours)),
	}
}

// result is what a section found.
type result struct {
	section section
	figures []figure
	err     error
	took    time.Duration
}

// print writes the table.
func print(w io.Writer, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(cells []string) {
		for _, c := range cells {
			fmt.Fprintf(t, "%s\t", c)
		}
		fmt.Fprintln(t)
	}
	for _, r := range results {
		fmt.Fprintf(t, "\n%s: %s (-only %s, %.0f s)\n", r.section.name, r.section.about, r.section.name, r.took.Seconds())
		if len(r.figures) > 0 {
			line(header)
		}
		for i := range r.figures {
			line(r.figures[i].cells())
		}
		if r.err != nil {
			fmt.Fprintf(t, "NOT MEASURED: %v\n", r.err)
		}
	}
	return t.Flush()
}
