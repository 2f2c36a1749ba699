package main

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

var buildEmpty = sync.OnceValues(func() (string, error) { return build("./testdata/empty", "empty") })

// BenchmarkCall compares the CPU time (user and system, median) of an ADD with that
// of a Go program that does nothing, executed in turn, and that program with
// itself: the noise. The plugin's share must stay below 1.4.
//
//	go test -run '^$' -bench Call -benchtime 200x ./cmd/fairlead-cni
func BenchmarkCall(b *testing.B) {
	empty, err := buildEmpty()
	if err != nil {
		b.Fatal(err)
	}
	full := plugin(b)
	result := []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"0a:58:0a:f4:00:05","sandbox":"/run/netns/x"}],"ips":[{"interface":0,"address":"10.244.0.5/32"}]}`)
	agent(b, func(context.Context, cniapi.Request) cniapi.Response { return cniapi.Response{Stdout: result} })
	config := `{"cniVersion":"1.1.0","name":"fairlead","type":"fairlead-cni"}`
	env := []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + strings.Repeat("a", 64), "CNI_NETNS=/run/netns/x", "CNI_IFNAME=eth0",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_UID=b", "CNI_PATH=/opt/cni/bin",
	}
	cost := func(path string) time.Duration {
		cmd := exec.CommandContext(b.Context(), path)
		cmd.Env, cmd.Stdin = env, strings.NewReader(config)
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	var first, second, ours []time.Duration
	for b.Loop() {
		first = append(first, cost(empty))
		ours = append(ours, cost(full))
		second = append(second, cost(empty))
	}
	base := median(append(slices.Clone(first), second...))
	ratio := float64(median(ours)) / float64(base)
	noise := float64(median(second)) / float64(median(first))
	b.ReportMetric(ratio, "cpu-ratio")
	b.ReportMetric(noise, "cpu-ratio-of-noise")
	b.ReportMetric(float64(base.Microseconds()), "empty-µs")
	b.ReportMetric(float64(median(ours).Microseconds()), "plugin-µs")
	if len(ours) >= 50 && ratio > 1.4*max(noise, 1/noise) {
		b.Errorf("an ADD costs %.2f times an empty program, want at most 1.4 (noise %.2f)", ratio, noise)
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
