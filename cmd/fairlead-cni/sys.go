package main

import (
	"syscall"
	"unsafe"
)

const (
	stdin  = 0
	stdout = 1
	stderr = 2
)

// readAll reads fd to its end, or until it has limit bytes.
func readAll(fd, limit int) ([]byte, error) {
	data := make([]byte, 0, 8<<10)
	for len(data) < limit {
		var n int
		var err error
		data, n, err = readMore(fd, data)
		if err == syscall.EAGAIN {
			err = wait(fd, false)
		} else if n == 0 && err == nil {
			return data, nil
		}
		if err != nil {
			return data, err
		}
	}
	return data[:limit], nil
}

// readMore appends what one read(2) yields; n is 0 at the end.
func readMore(fd int, data []byte) (more []byte, n int, err error) {
	if cap(data)-len(data) < 4<<10 {
		grown := make([]byte, len(data), 2*cap(data)+8<<10)
		copy(grown, data)
		data = grown
	}
	for {
		n, err = syscall.Read(fd, data[len(data):cap(data)])
		if err == syscall.EINTR {
			continue
		}
		if n < 0 {
			n = 0
		}
		return data[:len(data)+n], n, err
	}
}

// writeAll writes all of data. EAGAIN from a socket is its timeout; from a standard
// stream, which the runtime may have made non-blocking, it means to wait.
func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := syscall.Write(fd, data)
		if n > 0 {
			data = data[n:]
		}
		if err == syscall.EAGAIN && fd <= stderr {
			err = wait(fd, true)
		}
		if err != nil && err != syscall.EINTR {
			return err
		}
	}
	return nil
}

// wait blocks until a standard stream is ready.
func wait(fd int, write bool) error {
	var set syscall.FdSet
	set.Bits[0] |= 1 << uint(fd)
	read, written := &set, (*syscall.FdSet)(nil)
	if write {
		read, written = nil, &set
	}
	if _, err := syscall.Select(fd+1, read, written, nil, nil); err != nil && err != syscall.EINTR {
		return err
	}
	return nil
}

func isTerminal(fd int) bool {
	var settings syscall.Termios
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TCGETS, uintptr(unsafe.Pointer(&settings)))
	return errno == 0
}
