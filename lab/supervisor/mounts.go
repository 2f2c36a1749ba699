package supervisor

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseNamespaces unmounts the host's named namespaces from this mount namespace:
// a copy of the mounts would keep namespaces alive that the host has removed.
func releaseNamespaces() error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the mounts: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		mount, kind, ok := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		if !ok || !strings.HasPrefix(kind, "nsfs ") || len(fields) < 5 {
			continue
		}
		path := unescape.Replace(fields[4])
		// One that is hidden below another mount, or gone, cannot be unmounted.
		_ = unix.Unmount(path, unix.MNT_DETACH)
	}
	return nil
}

// unescape undoes the escapes of mountinfo (proc(5)).
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
