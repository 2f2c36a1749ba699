package preflight

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// State says how a Check ended.
type State string

// The states.
const (
	OK State = "ok"
	// Warning: it works, but a person should know.
	Warning State = "warning"
	// Missing: the host cannot be a node like this.
	Missing State = "missing"
)

// Check is one thing that was looked at.
type Check struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Found is what is so, Next what to do about it.
	Found string `json:"found"`
	Next  string `json:"next,omitempty"`
}

// Options say what the host is to be a node of.
type Options struct {
	// Subnets are the prefixes of pods, Services those of Services.
	Subnets, Services []netip.Prefix
	// ConfDir is the runtime's directory of network configurations, ConfFile the name of
	// ours.
	ConfDir, ConfFile string
	// BPFDir is below a BPF file system.
	BPFDir string
}

// Run makes every check, in the calling thread's network namespace.
func Run(o Options) []Check {
	root := checkRoot()
	out := []Check{root, checkKernel()}
	out = append(out, features(root.State == OK)...)
	return append(out,
		checkBPFDir(o.BPFDir), checkSysctls(), checkUnderlay(), checkPort(), checkConfigurations(o.ConfDir, o.ConfFile),
		checkPrefixes(o.Subnets, o.Services), checkRoutes(o.Subnets),
	)
}

func ok(name, format string, args ...any) Check {
	return Check{Name: name, State: OK, Found: fmt.Sprintf(format, args...)}
}

func missing(name string, err error, next string) Check {
	return Check{Name: name, State: Missing, Found: err.Error(), Next: next}
}

func checkRoot() Check {
	if id := os.Geteuid(); id != 0 {
		return missing("root", fmt.Errorf("this is user %d", id), "run it as root: what the kernel can do is not told to others")
	}
	return ok("root", "this is root")
}

// oldest is the first kernel of which everything that is used is known to be there.
const (
	oldestMajor, oldestMinor = 5, 10
	// owned tables are those from 6.9 on.
	ownedMajor, ownedMinor = 6, 9
)

func checkKernel() Check {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return missing("kernel", err, "")
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return Check{"kernel", Warning, "release " + release + " is no version that can be read", ""}
	}
	return judgeKernel(release, major, minor)
}

func judgeKernel(release string, major, minor int) Check {
	before := func(a, b int) bool { return major < a || major == a && minor < b }
	switch {
	case before(oldestMajor, oldestMinor):
		return missing("kernel", fmt.Errorf("release %s is older than %d.%d", release, oldestMajor, oldestMinor), "install a newer kernel")
	case before(ownedMajor, ownedMinor):
		return Check{"kernel", Warning, fmt.Sprintf("Linux %s: before %d.%d an nftables table has no owner, so others can flush it; it is repaired then", release, ownedMajor, ownedMinor), ""}
	}
	return ok("kernel", "Linux %s", release)
}

func checkBPFDir(dir string) Check {
	for d := dir; ; d = parent(d) {
		var fs unix.Statfs_t
		switch err := unix.Statfs(d, &fs); {
		case errors.Is(err, unix.ENOENT) && d != "/":
			continue
		case err != nil:
			return missing("bpf file system", fmt.Errorf("%s: %w", d, err), "mount -t bpf bpf /sys/fs/bpf")
		case fs.Type != unix.BPF_FS_MAGIC:
			return missing("bpf file system", fmt.Errorf("%s is not below a BPF file system", dir), "mount -t bpf bpf /sys/fs/bpf")
		}
		return ok("bpf file system", "%s is below one", dir)
	}
}

// parent is the directory above; the BPF file system's own is its last that exists.
func parent(dir string) string {
	for i := len(dir) - 1; i > 0; i-- {
		if dir[i] == '/' {
			return dir[:i]
		}
	}
	return "/"
}

func checkSysctls() Check {
	const forwarding = "/proc/sys/net/ipv4/ip_forward"
	f, err := os.OpenFile(forwarding, os.O_WRONLY, 0)
	if err != nil {
		return missing("sysctls", err, "/proc/sys must be writable: in a container it takes a privileged one")
	}
	_ = f.Close() // Nothing was written.
	return ok("sysctls", "/proc/sys/net can be written")
}
