package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// Command is what to start.
type Command struct {
	Path string
	// Args with the name in front.
	Args []string
	Env  []string
	Dir  string
	// Files become the descriptors 0, 1, 2 and so on; nil is /dev/null.
	Files []*os.File
	// Cloneflags of clone(2): the new namespaces.
	Cloneflags uintptr
	// NetNS is the network namespace that it starts in; nil is this program's own.
	NetNS *os.File
}

// Table owns the children of this process.
type Table struct {
	// hostProc is a directory of a /proc in whose numbers Host is given.
	hostProc *os.File
	mu       sync.Mutex
	children map[int]*Process
}

// NewTable makes a Table. hostProc is an open /proc of an outer pid namespace, in
// whose numbers Process.Host is given, or nil.
func NewTable(hostProc *os.File) *Table {
	return &Table{hostProc: hostProc, children: map[int]*Process{}}
}

// Process is one child.
type Process struct {
	// Pid in the pid namespace of this program, and in that of NewTable's hostProc (0
	// if that is not known).
	Pid, Host int
	Started   time.Time

	pidfd  int
	mu     sync.Mutex
	closed bool
	status syscall.WaitStatus
	done   chan struct{}
}

// Run collects children that end, until ctx does.
func (t *Table) Run(ctx context.Context) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		t.reap()
		select {
		case <-ended:
		case <-ctx.Done():
			return nil
		}
	}
}

func (t *Table) reap() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if p := t.children[pid]; p != nil {
			delete(t.children, pid)
			p.finish(status)
		}
	}
}

// Start starts a command. The lock keeps the reaper away until the child is known.
func (t *Table) Start(c Command) (*Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	defer null.Close()
	files := make([]uintptr, max(3, len(c.Files)))
	for i := range files {
		files[i] = null.Fd()
		if i < len(c.Files) && c.Files[i] != nil {
			files[i] = c.Files[i].Fd()
		}
	}
	pidfd := -1
	attr := &syscall.ProcAttr{
		Dir: c.Dir, Env: c.Env, Files: files,
		// A session of its own: signals of a terminal reach no child.
		Sys: &syscall.SysProcAttr{Cloneflags: c.Cloneflags, PidFD: &pidfd, Setsid: true},
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var pid int
	err = netspace.Do(c.NetNS, func() error {
		pid, err = syscall.ForkExec(c.Path, c.Args, attr)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	p := &Process{Pid: pid, Started: time.Now(), pidfd: pidfd, done: make(chan struct{})}
	if t.hostProc != nil {
		p.Host = hostPid(t.hostProc, pidfd)
	}
	t.children[pid] = p
	return p, nil
}

// hostPid reads what the process behind pidfd is called in the pid namespace of an
// outer /proc.
func hostPid(proc *os.File, pidfd int) int {
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d/self/fdinfo/%d", proc.Fd(), pidfd))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), "Pid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil || pid < 0 {
				return 0
			}
			return pid
		}
	}
	return 0
}

func (p *Process) finish(status syscall.WaitStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = status
	p.closed = true
	unix.Close(p.pidfd)
	close(p.done)
}

// Signal sends a signal. A process that has ended is no error.
func (p *Process) Signal(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if err := unix.PidfdSendSignal(p.pidfd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %d to process %d: %w", sig, p.Pid, err)
	}
	return nil
}

// Done is closed when the process has ended and was collected.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Exit says how the process ended: its exit status, 128 and the signal's number if
// a signal ended it, and the same in words. It is meaningful after Done.
func (p *Process) Exit() (int, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.Signaled() {
		return 128 + int(p.status.Signal()), "killed by signal " + unix.SignalName(p.status.Signal())
	}
	return p.status.ExitStatus(), fmt.Sprintf("exit status %d", p.status.ExitStatus())
}

// Stop asks the process to end (SIGTERM), waits for as long as grace, then kills it
// and waits until it is gone.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		if err := p.Signal(unix.SIGTERM); err != nil {
			return err
		}
		// A stopped process takes a signal only when it continues.
		if err := p.Signal(unix.SIGCONT); err != nil {
			return err
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.done:
			return nil
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("process %d does not end: %w", p.Pid, ctx.Err())
	}
}
