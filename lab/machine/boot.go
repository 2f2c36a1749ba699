package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/fabric"
)

// maxFiles is the number of descriptors that a node's process 1 wants: sandboxes,
// servers and probes.
const maxFiles = 65536

// boot turns a process in fresh mount, uts and network namespaces into a node.
func boot(c Config) error {
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := Isolate(); err != nil {
		return err
	}
	if err := mountBPF(); err != nil {
		return err
	}
	if err := mountNode(c.Directory); err != nil {
		return err
	}
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("make the directory of network namespaces: %w", err)
	}
	// More descriptors are a convenience for hundreds of pods: a kernel that refuses
	// is reported by whoever runs out of them.
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: maxFiles, Max: maxFiles})
	if err := fabric.Prepare(nil, false); err != nil {
		return err
	}
	if err := fabric.Configure(nil, c.Interface); err != nil {
		return err
	}
	return finishFrames(c)
}

// Isolate gives a process in a fresh mount namespace a /proc of its pid namespace
// and a /sys of its network namespace. What it mounts is seen by nobody else; what
// the host unmounts disappears here too.
func Isolate() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separate the mounts: %w", err)
	}
	for _, m := range []struct{ kind, path string }{{"proc", "/proc"}, {"sysfs", "/sys"}} {
		err := unix.Mount(m.kind, m.path, m.kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		// Busy: that of this very network namespace is mounted there already, as for a
		// command beside the process that the namespace belongs to.
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.path, err)
		}
	}
	return nil
}

// mountBPF gives the node pins of its own. A kernel without BPF has no such
// directory.
func mountBPF() error {
	err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700")
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("mount /sys/fs/bpf: %w", err)
	}
	return nil
}

// mountNode lays the node's own /run and its own directories of /var/lib over the
// host's. A directory to mount on need not exist on the host, and none may be made
// there: /var/lib becomes a small file system whose entries are links to the
// host's.
func mountNode(directory string) error {
	const varLib = "/var/lib"
	host, err := os.OpenFile(varLib, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", varLib, err)
	}
	defer host.Close()
	home, err := os.OpenFile(directory, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open the node's directory: %w", err)
	}
	defer home.Close()
	entries, err := os.ReadDir(varLib)
	if err != nil {
		return fmt.Errorf("read %s: %w", varLib, err)
	}
	if err := unix.Mount("tmpfs", varLib, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4m,mode=0755"); err != nil {
		return fmt.Errorf("mount %s: %w", varLib, err)
	}
	below := func(f *os.File, name string) string {
		return filepath.Join("/proc/self/fd", fmt.Sprint(f.Fd()), name)
	}
	own := map[string]string{
		varLib + "/.host": below(host, ""),
		StateDir:          below(home, DirVar),
		cniDir:            below(home, DirCNI),
		HomeDir:           below(home, ""),
	}
	for path, source := range own {
		if err := os.Mkdir(path, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		if err := bind(source, path); err != nil {
			return err
		}
	}
	for _, e := range entries {
		link := filepath.Join(varLib, e.Name())
		if _, ours := own[link]; ours {
			continue
		}
		if err := os.Symlink(filepath.Join(varLib, ".host", e.Name()), link); err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
	}
	return bind(below(home, DirRun), "/run")
}

func bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}
