package datastoretest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Freeze stops a server's process and returns when all of it has stopped: it looks alive
// to TCP. A SIGCONT lets it go on.
func Freeze(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
		if err != nil {
			t.Fatal(err)
		}
		running := len(tasks) == 0
		for _, task := range tasks {
			stat, err := os.ReadFile(task)
			if err != nil {
				continue // the thread has ended
			}
			if _, state, ok := strings.Cut(string(stat), ") "); !ok || state[0] != 'T' {
				running = true
			}
		}
		if !running {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the process did not stop")
		}
	}
}
