package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestTimersMayBeLate(t *testing.T) {
	const own = "/proc/self/timerslack_ns"
	before, err := os.ReadFile(own)
	if err != nil {
		t.Skip("the kernel does not tell the timer slack of others (before 4.6):", err)
	}
	if err := os.WriteFile(own, before, 0); err != nil {
		t.Skip("not allowed to set the timer slack (CAP_SYS_NICE):", err)
	}
	allowSlack()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		got, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if os.IsNotExist(err) {
			continue // it has ended
		}
		if want := strconv.Itoa(timerSlack); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("thread %s: timer slack %q, %v, want %s ns", thread.Name(), got, err, want)
		}
	}
}
