package main

import (
	"math"
	"strings"
	"testing"
)

func series(v float64) samples { return samples{v, v, v} }

func TestQuantile(t *testing.T) {
	s := samples{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := s.quantile(q); got != want {
			t.Errorf("quantile %v: got %v, want %v", q, got, want)
		}
	}
	if got := samples(nil).median(); got != 0 {
		t.Errorf("no samples: got %v", got)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name string
		f    figure
		want string
	}{
		{"no target", figure{ours: series(1)}, "–"},
		{"value below its limit", figure{ours: series(1), target: target{limit: 2}}, "PASS"},
		{"value above its limit", figure{ours: series(3), target: target{limit: 2}}, "MISS"},
		{"cost ratio met", figure{ours: series(1), base: series(5), target: target{limit: 0.25, ratio: true}}, "PASS"},
		{"cost ratio missed", figure{ours: series(2), base: series(5), target: target{limit: 0.25, ratio: true}}, "MISS"},
		{"no baseline to judge by", figure{ours: series(2), target: target{limit: 0.25, ratio: true}}, "MISS"},
		{"performance missed", figure{ours: series(10), base: series(9), inverse: true, target: target{limit: 0.95, least: true, ratio: true}}, "MISS"},
		{"missed inside of the noise", figure{ours: series(10), base: series(9), again: series(10), inverse: true, target: target{limit: 0.95, least: true, ratio: true, noise: true}}, "PASS"},
		{"noise is not asked", figure{ours: series(10), base: series(9), again: series(10), inverse: true, target: target{limit: 0.95, least: true, ratio: true}}, "MISS"},
	} {
		if got := c.f.verdict(); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestRatio(t *testing.T) {
	f := figure{ours: series(10), base: series(8), again: series(4)}
	if got := f.ratio(); got != 1.25 {
		t.Errorf("ratio: got %v", got)
	}
	if got := f.noise(); got != 0.5 {
		t.Errorf("noise: got %v", got)
	}
	f.inverse = true
	if got := f.ratio(); got != 0.8 {
		t.Errorf("inverse: got %v", got)
	}
	if got := (&figure{ours: series(1)}).ratio(); !math.IsNaN(got) {
		t.Errorf("without a baseline: got %v", got)
	}
}

func TestPrint(t *testing.T) {
	var out strings.Builder
	f := figure{name: "ADD", ours: samples{0.002, 0.004}, base: samples{0.1, 0.1}, target: target{limit: 0.25, ratio: true}}
	if err := print(&out, []result{{section: section{name: "cni", about: "calls"}, figures: []figure{f}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cni: calls", "4.00 ms", "100.00 ms", "0.040", "≤ 0.25", "PASS"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}
