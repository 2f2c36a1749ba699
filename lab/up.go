package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/process"
	"github.com/fairlead-sdn/fairlead/lab/spec"
)

// ErrExists says that a lab of that name is running.
var ErrExists = errors.New("the lab is running")

// Up starts a lab and returns when pods can be attached on all its nodes. progress,
// which may be nil, is told of every step. If it fails, or if ctx ends, nothing of
// the lab is left; the error names the step.
func Up(ctx context.Context, o Options, progress func(Step)) (*Lab, error) {
	o, err := withDefaults(o)
	if err != nil {
		return nil, err
	}
	if err := preflight(o); err != nil {
		return nil, err
	}
	if progress == nil {
		progress = func(Step) {}
	}
	l := &Lab{name: o.Name, root: o.Root}
	lock, err := l.claim()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	pid, last, err := l.launch(ctx, o, lock, progress)
	if err == nil {
		return l, nil
	}
	err = fmt.Errorf("lab %s: step %s: %w", o.Name, last, l.diskFull(err))
	ctx = context.WithoutCancel(ctx)
	if pid != 0 {
		err = errors.Join(err, l.kill(ctx, pid))
	}
	return nil, errors.Join(err, l.remove())
}

// minDisk is less than what a lab needs to start, in bytes: etcd reserves it for its log.
const minDisk = 64e6

// diskFull adds to a failure that the lab's directory has no space left: programs
// that cannot write cannot say why in their logs either.
func (l *Lab) diskFull(err error) error {
	var fs unix.Statfs_t
	if unix.Statfs(l.dir(), &fs) != nil {
		return err
	}
	free := fs.Bavail * uint64(fs.Bsize)
	if free >= minDisk && (fs.Files == 0 || fs.Ffree > 0) {
		return err
	}
	return fmt.Errorf("%w below %s (%d bytes and %d files are free, and etcd alone reserves 64 MB): make room, or choose another directory with --lab-root: %w",
		unix.ENOSPC, l.root, free, fs.Ffree, err)
}

// claim makes the lab's directory and takes its lock.
func (l *Lab) claim() (*os.File, error) {
	if err := os.MkdirAll(l.root, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of labs: %w", err)
	}
	if err := os.Mkdir(l.dir(), 0o700); errors.Is(err, os.ErrExist) {
		if running, err := l.running(); err != nil {
			return nil, err
		} else if !running {
			return nil, fmt.Errorf("lab %s: remains of a lab that has ended are in %s: remove them with fairlead lab down --lab %s", l.name, l.dir(), l.name)
		}
		return nil, fmt.Errorf("lab %s: %w: use it, end it with fairlead lab down --lab %s, or start another with --lab NAME", l.name, ErrExists, l.name)
	} else if err != nil {
		return nil, fmt.Errorf("make the lab's directory: %w", err)
	}
	lock, err := os.OpenFile(l.path(spec.FileLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the lab: %w", err), os.RemoveAll(l.dir()))
	}
	return lock, nil
}

// launch starts the supervisor and follows its steps to the end. It returns the
// supervisor's pid, if it was started, and the name of the last step.
func (l *Lab) launch(ctx context.Context, o Options, lock *os.File, progress func(Step)) (int, string, error) {
	const first = "prepare"
	raw, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(l.path(spec.FileOptions), raw, 0o600)
	}
	if err != nil {
		return 0, first, err
	}
	steps, write, err := os.Pipe()
	if err != nil {
		return 0, first, err
	}
	defer steps.Close()
	pid, err := l.startSupervisor(lock, write)
	write.Close()
	if err != nil {
		return 0, first, err
	}
	stop := context.AfterFunc(ctx, func() { steps.Close() })
	defer stop()
	last := first
	for lines := bufio.NewScanner(steps); lines.Scan(); {
		var s Step
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return pid, last, fmt.Errorf("read the supervisor's progress: %w", err)
		}
		last = s.Name
		if s.Err != "" {
			return pid, last, errors.New(s.Err)
		}
		progress(s)
		if s.Ready {
			return pid, last, nil
		}
	}
	if ctx.Err() != nil {
		return pid, last, ctx.Err()
	}
	return pid, last, fmt.Errorf("the supervisor has ended: %s", process.Tail(l.path(spec.FileLog)))
}

// startSupervisor starts the process that keeps the lab: process 1 of a pid
// namespace, so that nothing of the lab survives it.
func (l *Lab) startSupervisor(lock, progress *os.File) (int, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	log, err := os.OpenFile(l.path(spec.FileLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	hostProc, err := os.Open("/proc")
	if err != nil {
		return 0, err
	}
	defer hostProc.Close()
	proc, err := os.StartProcess("/proc/self/exe", commands{}.line(roleSupervisor, l.dir()), &os.ProcAttr{
		Dir: "/", Env: os.Environ(),
		Files: []*os.File{null, log, log, lock, progress, hostProc}, // supervisor.FDLock, FDProgress, FDHostProc
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		},
	})
	if err != nil {
		return 0, fmt.Errorf("start the supervisor: %w", err)
	}
	pid := proc.Pid
	// It outlives this program; Down ends it through its pid.
	return pid, proc.Release()
}
