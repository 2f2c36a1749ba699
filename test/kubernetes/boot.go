package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/process"
)

// restartPause is how long a daemon that ended stays down.
const restartPause = time.Second

// bootMachine is process 1 of a machine: it prepares the machine, does the steps, writes the
// file "up", and keeps the daemons running until it is killed.
func bootMachine(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var m machine
	if err := json.Unmarshal(raw, &m); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if os.Getpid() != 1 {
		return errors.New("this is not process 1 of a machine: use the command up")
	}
	if err := m.prepare(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	table := process.NewTable(nil)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return table.Run(ctx) })
	for _, s := range m.Steps {
		if s.Daemon {
			g.Go(func() error { return m.keep(ctx, table, s) })
			continue
		}
		err := poll(ctx, 200*time.Millisecond, func() error { return m.once(ctx, table, s) })
		if err != nil {
			return fmt.Errorf("step %s: %w", s.Name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(m.Directory, "up"), nil, 0o600); err != nil {
		return err
	}
	return g.Wait()
}

// keep runs a daemon, and starts it again when it ends.
func (m machine) keep(ctx context.Context, table *process.Table, s step) error {
	for {
		log, err := os.OpenFile(filepath.Join(m.Directory, s.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		p, err := table.Start(process.Command{
			Path: s.Command[0], Args: s.Command, Env: os.Environ(), Dir: "/", Files: []*os.File{nil, log, log},
		})
		log.Close()
		if err != nil {
			return err
		}
		select {
		case <-p.Done():
			_, how := p.Exit()
			fmt.Printf("%s %s: %s; it is started again\n", time.Now().Format(time.RFC3339), s.Name, how)
		case <-ctx.Done():
			return p.Stop(context.WithoutCancel(ctx), 0)
		}
		select {
		case <-time.After(restartPause):
		case <-ctx.Done():
			return nil
		}
	}
}

func (m machine) once(ctx context.Context, table *process.Table, s step) error {
	stdout, stderr, exit, err := table.Output(ctx, process.Command{Path: s.Command[0], Args: s.Command, Env: os.Environ(), Dir: "/"}, nil)
	if err != nil {
		return err
	}
	if exit != 0 {
		text := strings.TrimSpace(string(stderr) + string(stdout))
		fmt.Printf("%s %s: exit status %d: %s\n", time.Now().Format(time.RFC3339), s.Name, exit, text)
		return fmt.Errorf("exit status %d: %s", exit, text)
	}
	return nil
}

// prepare makes the namespaces a machine.
func (m machine) prepare() error {
	if err := unix.Sethostname([]byte(m.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separate the mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := m.mountSys(); err != nil {
		return err
	}
	if !m.Node {
		return nil
	}
	// All daemons, and what they start, come with this process.
	err := os.WriteFile(filepath.Join(systemCgroup(m.Name), "cgroup.procs"), []byte("0"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("enter the cgroup of the node's daemons: %w", err)
	}
	if err := m.mountNode(); err != nil {
		return err
	}
	// Volumes and network namespaces that pods mount are to be seen by others.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the node's mounts: %w", err)
	}
	return m.sysctls()
}

// mountSys mounts the sysfs of this network namespace and moves the cgroup file systems to
// where they were. /sys itself is a plain directory, its entries those of the sysfs: in that,
// every look at a path below /sys/fs/cgroup takes the lock that the kernel's making of a link
// waits for while it holds the one of all links. Machines with kernels of their own do not
// have each other's runtimes in that queue.
func (m machine) mountSys() error {
	const cgroup = "/sys/fs/cgroup"
	whole, aside := filepath.Join(m.Directory, "sysfs"), filepath.Join(m.Directory, "cgroup")
	for _, dir := range []string{whole, aside} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(cgroup, aside, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the cgroups away: %w", err)
	}
	if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the host's /sys: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("sysfs", whole, "sysfs", flags, ""); err != nil {
		return fmt.Errorf("mount the sysfs: %w", err)
	}
	if err := unix.Mount("tmpfs", "/sys", "tmpfs", flags, "mode=0755"); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	entries, err := os.ReadDir(whole)
	if err != nil {
		return err
	}
	for _, e := range entries {
		target := filepath.Join("/sys", e.Name())
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
		if e.Name() == "fs" {
			continue // what is below it nobody here looks at, but for these two
		}
		if err := unix.Mount(filepath.Join(whole, e.Name()), target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show %s: %w", target, err)
		}
	}
	for _, dir := range []string{cgroup, "/sys/fs/bpf"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(aside, cgroup, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the cgroups back: %w", err)
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", flags, "mode=0700"); err != nil {
		return fmt.Errorf("mount /sys/fs/bpf: %w", err)
	}
	return nil
}

// mountNode gives the node its own /etc, /opt, /var and /run: what it writes there is above
// the host's files, in the node's directory.
func (m machine) mountNode() error {
	for _, dir := range []string{"/etc", "/opt", "/var"} {
		upper, work := filepath.Join(m.Directory, "upper", dir), filepath.Join(m.Directory, "work", dir)
		for _, d := range []string{upper, work} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
		if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
			return fmt.Errorf("lay the node's own files over %s: %w", dir, err)
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, dir := range []string{"/run/lock", "/run/netns", "/etc/cni/net.d", "/opt/cni/bin"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// Images are layers over layers, which an overlay cannot hold; a kubelet wants to know
	// how full a real disk is.
	for _, name := range []string{"containerd", "kubelet", "fairlead"} {
		source, target := filepath.Join(m.Directory, name), filepath.Join("/var/lib", name)
		for _, d := range []string{source, target} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	return nil
}

// sysctls sets those of the network namespace that a node's administrator sets, and shows
// the kubelet the values that it wants of the whole machine's, so that it writes none.
func (m machine) sysctls() error {
	for key, value := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		"net/bridge/bridge-nf-call-iptables": "1", "net/bridge/bridge-nf-call-ip6tables": "1",
	} {
		err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0o644)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("set %s: %w", key, err)
		}
	}
	for key, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	} {
		file := filepath.Join(m.Directory, "sysctl-"+filepath.Base(key))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, filepath.Join("/proc/sys", key), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show the kubelet %s: %w", key, err)
		}
	}
	return nil
}
