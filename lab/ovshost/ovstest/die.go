package ovstest

import "syscall"

// dieWithParent lets the kernel kill a daemon when the test's process ends before
// its cleanup.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
}
