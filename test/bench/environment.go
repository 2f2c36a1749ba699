package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/machine"
)

// environment is what the sections share.
type environment struct {
	bin   string
	quick bool
	log   io.Writer

	// dir is for files, gone at the end.
	dir string
	// shared is the three-node lab, started when first asked for.
	shared *lab.Lab
}

func (e *environment) open() (err error) {
	if e.bin, err = filepath.Abs(e.bin); err != nil {
		return err
	}
	for _, name := range []string{"fairlead", "fairlead-agent", "fairlead-controller", "fairlead-cni"} {
		if _, err := os.Stat(e.program(name)); err != nil {
			return fmt.Errorf("the programs are not built: %w; run make build", err)
		}
	}
	e.dir, err = os.MkdirTemp("", "flbench")
	return err
}

func (e *environment) close(ctx context.Context) error {
	var err error
	if e.shared != nil {
		err = e.shared.Down(ctx)
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}

func (e *environment) program(name string) string { return filepath.Join(e.bin, name) }

// rounds is n, or less with -quick.
func (e *environment) rounds(n int) int {
	if e.quick {
		return max(1, n/10)
	}
	return n
}

// labName is one that no other run has.
func labName(kind string) string { return fmt.Sprintf("bench-%s-%d", kind, os.Getpid()) }

// lab starts the three-node lab, or returns the one that runs.
func (e *environment) lab(ctx context.Context) (*lab.Lab, error) {
	if e.shared != nil {
		return e.shared, nil
	}
	l, err := lab.Up(ctx, lab.Options{
		Name: labName("lab"), Nodes: 3,
		Agent: e.program("fairlead-agent"), Controller: e.program("fairlead-controller"), CNI: e.program("fairlead-cni"),
	}, nil)
	if err != nil {
		return nil, err
	}
	e.shared = l
	return l, nil
}

// podPlace is where a pod of the lab is.
type podPlace struct {
	state machine.PodState
	// netns is the path of its network namespace on the host.
	netns string
}

const podNamespace = "bench"

// pods starts pods, name → node, in the lab, and returns when they run.
func (e *environment) pods(ctx context.Context, l *lab.Lab, where map[string]string) (map[string]podPlace, error) {
	store, err := etcd.New(etcd.Config{Endpoints: []string{l.Datastore()}, OnCorrupt: func(string, error) {}})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	create := func(o datastore.Object) error {
		_, err := store.Create(ctx, o)
		return err
	}
	if err := create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: podNamespace}}); err != nil {
		return nil, err
	}
	for name, node := range where {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: podNamespace, Name: name},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "probe"}}},
		}
		if err := create(p); err != nil {
			return nil, err
		}
	}
	return awaitPods(ctx, l, where)
}

func awaitPods(ctx context.Context, l *lab.Lab, where map[string]string) (map[string]podPlace, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	found := map[string]podPlace{}
	err := poll(ctx, 50*time.Millisecond, func() (bool, error) {
		s, err := l.Status(ctx)
		if err != nil {
			return false, err
		}
		for _, n := range s.Nodes {
			for _, p := range n.State.Pods {
				if p.Namespace == podNamespace && p.Phase == corev1.PodRunning && len(p.IPs) > 0 {
					found[p.Name] = podPlace{state: p, netns: fmt.Sprintf("/proc/%d/root/run/netns/%s", n.Pid, p.Netns)}
				}
			}
		}
		return len(found) == len(where), nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for %d pods, of which %d run: %w", len(where), len(found), err)
	}
	return found, nil
}

// poll asks until it is told true, or an error.
func poll(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// processCPU is the CPU time that a process, in the numbers of the own pid
// namespace, has used so far (clock_getcpuclockid(3)).
func processCPU(pid int) (time.Duration, error) { return clock(int32(^uint32(pid)<<3 | 2)) }

// threadCPU is that of the calling thread. What the kernel does for it in soft
// interrupts, forwarding a packet that it has sent, counts as its own.
func threadCPU() (time.Duration, error) { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

func clock(id int32) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, fmt.Errorf("read a CPU clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// resident is the memory of a process in bytes: what is resident, and the most that ever was.
func resident(pid int) (now, peak float64, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
		}
		switch fields[0] {
		case "VmRSS:":
			now = kib * 1024
		case "VmHWM:":
			peak = kib * 1024
		}
	}
	return now, peak, nil
}
