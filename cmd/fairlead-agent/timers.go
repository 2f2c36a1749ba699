package main

import (
	"fmt"
	"os"
)

// timerSlack is how late, in nanoseconds, timers of the agent may be. While any thread works
// Go's runtime looks every 20 µs whether another has been in a system call for too long.
// With the kernel's 50 µs that was a fifth of all the CPU time of an agent that attaches a
// pod, most of it for nothing; nothing that the agent waits for is exact to a millisecond.
const timerSlack = 1_000_000

// allowSlack sets the timer slack of the threads that there are; those to come take theirs
// from who starts them. Where that is not allowed all stays as it is: it costs only time.
func allowSlack() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		// A thread of another number than the process's has this file, too (proc(5)).
		_ = os.WriteFile(fmt.Sprintf("/proc/%s/timerslack_ns", t.Name()), fmt.Append(nil, timerSlack), 0)
	}
}
