//go:build failpoints

package main

import (
	"os"
	"syscall"
)

// crashAt is the environment variable that names the step of ADD or DEL (one of
// attach.Steps) after which an agent built with the tag failpoints dies.
const crashAt = "FAIRLEAD_CRASH_AT"

// failpoints kills the process as a power loss or the OOM killer would: no deferred
// call and no signal handler runs.
func failpoints() func(string) error {
	at := os.Getenv(crashAt)
	return func(step string) error {
		if step == at {
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
			select {} // until the signal has arrived
		}
		return nil
	}
}
