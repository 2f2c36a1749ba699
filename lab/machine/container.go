package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/lab/process"
)

const (
	// maxGrace bounds a pod's terminationGracePeriodSeconds: a container's command
	// is process 1 of its namespace and ignores SIGTERM unless it handles it, and
	// nobody wants to wait for that in a lab.
	maxGrace = time.Second
	// Containers that end are started again after minRestart, then twice that, up
	// to maxRestart; one that ran for maxRestart begins anew.
	minRestart = 100 * time.Millisecond
	maxRestart = 10 * time.Second
	// steady is how long a container that was started again has to run before it
	// counts as running.
	steady = time.Second
)

// Launch is what the process that becomes a container, or a command of `exec`, is
// told on descriptor 3.
type Launch struct {
	// Hostname, if not empty, is set in the fresh uts namespace.
	Hostname string `json:"hostname,omitempty"`
	// Isolate: the process is in a fresh mount namespace.
	Isolate bool     `json:"isolate,omitempty"`
	Dir     string   `json:"dir,omitempty"`
	Command []string `json:"command"`
	Env     []string `json:"env"`
}

// Become turns the calling process into the command that in describes. It returns
// only if that fails.
func Become(in *os.File) error {
	var l Launch
	if err := json.NewDecoder(in).Decode(&l); err != nil {
		return fmt.Errorf("read what to run: %w", err)
	}
	in.Close()
	if len(l.Command) == 0 {
		return errors.New("there is no command to run")
	}
	if l.Hostname != "" {
		if err := unix.Sethostname([]byte(l.Hostname)); err != nil {
			return fmt.Errorf("set the host name: %w", err)
		}
	}
	if l.Isolate {
		if err := Isolate(); err != nil {
			return err
		}
	}
	if l.Dir != "" {
		if err := os.Chdir(l.Dir); err != nil {
			return err
		}
	}
	for _, e := range l.Env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			if err := os.Setenv("PATH", path); err != nil {
				return err
			}
		}
	}
	path, err := exec.LookPath(l.Command[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", path, unix.Exec(path, l.Command, l.Env))
}

// Environ is the environment of a pod's container, or of a command run beside it.
func Environ(pod *corev1.Pod, c *corev1.Container, nodeIP string) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "HOSTNAME=" + pod.Name}
	if c == nil {
		return env
	}
	var ip, ips string
	if len(pod.Status.PodIPs) > 0 {
		var all []string
		for _, p := range pod.Status.PodIPs {
			all = append(all, p.IP)
		}
		ip, ips = all[0], strings.Join(all, ",")
	}
	fields := map[string]string{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
		"spec.nodeName": pod.Spec.NodeName, "status.hostIP": nodeIP, "status.podIP": ip, "status.podIPs": ips,
	}
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			value = fields[e.ValueFrom.FieldRef.FieldPath]
		}
		env = append(env, e.Name+"="+value)
	}
	return env
}

// builtIn tells whether a container gets the built-in server: it has no command.
func builtIn(c *corev1.Container) bool { return len(c.Command) == 0 && len(c.Args) == 0 }

// runContainer runs a container's command, again and again as policy says, until
// that says no more (true if the last run succeeded) or ctx ends.
func (p *pod) runContainer(ctx context.Context, c *corev1.Container, policy corev1.RestartPolicy) bool {
	backoff := minRestart
	for {
		began := time.Now()
		exit, err := p.runOnce(ctx, c)
		p.update(c.Name, func(s *ContainerState) {
			s.Running, s.Exited, s.Pid, s.Failing = false, true, 0, ""
			s.ExitCode, s.Finished, s.Reason = exit, time.Now(), "Completed"
			if err != nil {
				s.Reason = err.Error()
			} else if exit != 0 {
				s.Reason = "Error"
			}
		})
		ok := err == nil && exit == 0
		if ctx.Err() != nil || policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && ok {
			return ok
		}
		if time.Since(began) > maxRestart {
			backoff = minRestart
		}
		why := p.failure(c, exit, err)
		p.update(c.Name, func(s *ContainerState) { s.Failing = why })
		if !sleep(ctx, backoff) {
			return ok
		}
		backoff = min(2*backoff, maxRestart)
		p.update(c.Name, func(s *ContainerState) { s.Restarts++ })
	}
}

// failure says why a container is to be started again: how it ended, and what it said
// last if it failed.
func (p *pod) failure(c *corev1.Container, exit int, err error) string {
	if err != nil {
		return err.Error()
	}
	why := fmt.Sprintf("the command ended with exit code %d", exit)
	if exit == 0 {
		return why
	}
	last := process.LastLine(p.logPath(c))
	if last == "" {
		return why
	}
	return why + ": " + last
}

func (p *pod) logPath(c *corev1.Container) string {
	return filepath.Join(HomeDir, DirLog, fmt.Sprintf("%s_%s_%s.log", p.object.Namespace, p.object.Name, c.Name))
}

// runOnce starts a container's process and waits for its end. When ctx ends the
// process is stopped.
func (p *pod) runOnce(ctx context.Context, c *corev1.Container) (int, error) {
	if len(c.Command) == 0 {
		return 128, errors.New("args without command: the lab has no images, so it knows no entrypoint; write spec.containers[].command")
	}
	proc, err := p.launch(c)
	if err != nil {
		return 128, err
	}
	p.update(c.Name, func(s *ContainerState) {
		s.Running, s.Pid, s.Started = true, proc.Host, proc.Started
	})
	settled := time.AfterFunc(steady, func() {
		p.update(c.Name, func(s *ContainerState) {
			if s.Running && s.Pid == proc.Host {
				s.Failing = ""
			}
		})
	})
	defer settled.Stop()
	select {
	case <-proc.Done():
	case <-ctx.Done():
		grace := maxGrace
		if t := p.object.Spec.TerminationGracePeriodSeconds; t != nil {
			grace = min(grace, time.Duration(*t)*time.Second)
		}
		// Once killed, a process ends: there is nothing to wait for but the kernel.
		if err := proc.Stop(context.WithoutCancel(ctx), grace); err != nil {
			return 128, err
		}
	}
	exit, _ := proc.Exit()
	return exit, nil
}

// launch starts a container's process in namespaces of its own and the pod's
// network namespace.
func (p *pod) launch(c *corev1.Container) (*process.Process, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	defer write.Close()
	log, err := os.OpenFile(p.logPath(c), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command := process.Command{
		Path:       "/proc/self/exe",
		Args:       slices.Clone(p.node.becomeArgs),
		Env:        []string{},
		Dir:        "/",
		Files:      []*os.File{nil, log, log, read},
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		NetNS:      p.netns,
	}
	proc, err := p.node.table.Start(command)
	if err != nil {
		return nil, err
	}
	hostname := p.object.Name
	if p.object.Spec.HostNetwork {
		hostname = ""
	}
	object := p.object.DeepCopy()
	for _, ip := range p.addresses() {
		object.Status.PodIPs = append(object.Status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	launch := Launch{
		Hostname: hostname, Isolate: true, Dir: c.WorkingDir,
		Command: append(slices.Clone(c.Command), c.Args...), Env: Environ(object, c, p.node.hostIP()),
	}
	if err := json.NewEncoder(write).Encode(launch); err != nil {
		return nil, fmt.Errorf("tell container %s what to run: %w", c.Name, err)
	}
	return proc, nil
}

// sleep waits for d, or reports false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
