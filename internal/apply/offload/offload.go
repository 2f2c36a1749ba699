package offload

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// value is struct ethtool_value of linux/ethtool.h.
type value struct{ cmd, data uint32 }

// request is struct ifreq with a pointer in its union (netdevice(7)).
type request struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// FinishFrames makes a link of the calling thread's network namespace finish its frames,
// and reports whether it had to be changed.
func FinishFrames(link string) (changed bool, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("turn transmit offloads of %s off: %w", link, err)
	}
	defer unix.Close(fd)
	on, err := ethtool(fd, link, unix.ETHTOOL_GTXCSUM, 0)
	if err == nil && on != 0 {
		changed = true
		// Without checksums the kernel turns segmentation off too.
		_, err = ethtool(fd, link, unix.ETHTOOL_STXCSUM, 0)
	}
	if err != nil {
		return false, fmt.Errorf("turn transmit offloads of %s off: %w", link, err)
	}
	return changed, nil
}

// ethtool reads or sets one value of a link.
func ethtool(fd int, link string, cmd, data uint32) (uint32, error) {
	v := value{cmd, data}
	r := request{data: unsafe.Pointer(&v)}
	if len(link) >= len(r.name) {
		return 0, unix.ENAMETOOLONG
	}
	copy(r.name[:], link)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return 0, errno
	}
	return v.data, nil
}
