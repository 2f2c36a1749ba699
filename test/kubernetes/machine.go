package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/process"
)

// machine is what the process 1 of a machine is told.
type machine struct {
	Name string
	// Directory of the machine: logs, and with Node what the node writes.
	Directory string
	// Node gives it the mounts of a node: its own /etc, /opt, /var, /run and cgroups.
	Node  bool
	Steps []step
}

// step is something that process 1 does, in order.
type step struct {
	// Name of the log, and of the daemon.
	Name    string
	Command []string
	// Daemon keeps running; the next step follows at once. Anything else is run until it
	// succeeds.
	Daemon bool
}

// cgroupName is what a machine's cgroup is called in every hierarchy.
func cgroupName(name string) string { return "fairlead-kube-" + name }

// cgroups are the directories of a machine's cgroup: one of a version 2 hierarchy, or one in
// each of version 1's.
func cgroups(name string) []string {
	const top = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err == nil {
		return []string{filepath.Join(top, cgroupName(name))}
	}
	var out []string
	for _, h := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "unified"} {
		if _, err := os.Stat(filepath.Join(top, h)); err == nil {
			out = append(out, filepath.Join(top, h, cgroupName(name)))
		}
	}
	return out
}

// systemCgroup is where the daemons of a node are, beside its pods, in a hierarchy of version 1
// for CPU time: as on a host of its own they get a share together. Each for itself in the root,
// those of three nodes would leave next to nothing to all pods, the agent among them.
func systemCgroup(name string) string {
	return filepath.Join("/sys/fs/cgroup/cpu", cgroupName(name), "system")
}

// makeCgroups makes them. A cpuset of version 1 does not inherit what its processes need.
func makeCgroups(name string) error {
	for _, dir := range cgroups(name) {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make a cgroup: %w", err)
		}
		if system := systemCgroup(name); filepath.Dir(system) == dir {
			if err := os.Mkdir(system, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make a cgroup: %w", err)
			}
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
			if err != nil || filepath.Base(filepath.Dir(dir)) != "cpuset" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
				return fmt.Errorf("prepare a cgroup: %w", err)
			}
		}
	}
	return nil
}

// removeCgroups removes them with what is below. Processes that are being killed keep
// theirs for a moment.
func removeCgroups(ctx context.Context, name string) error {
	for _, dir := range cgroups(name) {
		err := poll(ctx, 50*time.Millisecond, func() error { return removeTree(dir) })
		if err != nil {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return err
}

// running is a machine that was started.
type running struct {
	Name string `json:"name"`
	Pid  int    `json:"pid"`
	// Start is the process's start time as /proc tells it: a pid may be used again.
	Start string `json:"start"`
}

// start starts a machine in a network namespace.
func (l layout) start(m machine, ns *os.File) (running, error) {
	// It outlives whoever has started this program, and must not hold on to their locks.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return running{}, fmt.Errorf("keep open files from machine %s: %w", m.Name, err)
	}
	if err := os.MkdirAll(m.Directory, 0o755); err != nil {
		return running{}, err
	}
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return running{}, err
	}
	if err := os.WriteFile(filepath.Join(m.Directory, "machine.json"), raw, 0o600); err != nil {
		return running{}, err
	}
	log, err := os.OpenFile(filepath.Join(m.Directory, "init.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return running{}, err
	}
	defer log.Close()
	// #nosec G204 -- this very program
	cmd := exec.Command("/proc/self/exe", "machine", filepath.Join(m.Directory, "machine.json"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(l.root, "bin")+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if err := netspace.Do(ns, cmd.Start); err != nil {
		return running{}, fmt.Errorf("start machine %s: %w", m.Name, err)
	}
	r := running{Name: m.Name, Pid: cmd.Process.Pid}
	if r.Start, err = startTime(r.Pid); err != nil {
		return r, fmt.Errorf("machine %s ended at once: %s", m.Name, process.Tail(log.Name()))
	}
	// It outlives this program; whoever comes then collects it.
	return r, cmd.Process.Release()
}

// startTime is field 22 of /proc/PID/stat.
func startTime(pid int) (string, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The name, in parentheses, may hold anything.
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	if fields[0] == "Z" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return fields[19], nil
}

// alive reports whether the machine's process 1 runs.
func (r running) alive() bool {
	start, err := startTime(r.Pid)
	return err == nil && start == r.Start
}

// kill ends a machine and everything in it.
func (r running) kill(ctx context.Context) error {
	fd, err := unix.PidfdOpen(r.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	} else if err != nil {
		return fmt.Errorf("open process %d: %w", r.Pid, err)
	}
	defer unix.Close(fd)
	// The descriptor holds on to the process: what is checked now is what is killed.
	if !r.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill machine %s: %w", r.Name, err)
	}
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 100)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for machine %s: %w", r.Name, err)
		case ctx.Err() != nil:
			return fmt.Errorf("machine %s does not end: %w", r.Name, ctx.Err())
		}
	}
}

// poll tries again until ctx ends, and returns the last error then.
func poll(ctx context.Context, pause time.Duration, try func() error) error {
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-t.C:
		}
	}
}
