package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// State is how a daemon is.
type State string

// The states of a daemon.
const (
	Running State = "running"
	Frozen  State = "frozen"
	Exited  State = "exited"  // by itself
	Stopped State = "stopped" // because somebody asked
)

// Status is how a daemon is, as shown to people.
type Status struct {
	State State `json:"state"`
	// Pid in the numbers of the host.
	Pid     int       `json:"pid,omitempty"`
	Started time.Time `json:"started,omitzero"`
	// Exit says how it ended, if it has.
	Exit string `json:"exit,omitempty"`
	// Starts counts how often it was started.
	Starts int `json:"starts"`
}

// stopGrace is how long a daemon may take to end when asked.
const stopGrace = 5 * time.Second

// Daemon is a process that runs until somebody acts on it. It is never started
// again by itself: that it ended is for people to see.
type Daemon struct {
	// Before, if set, is called before every start.
	Before func() error

	table   *Table
	command Command
	log     string
	changed func()

	// act serialises actions; mu guards what status reads.
	act     sync.Mutex
	mu      sync.Mutex
	current *Process
	frozen  bool
	stopped bool
	starts  int
}

// NewDaemon describes a daemon. Its output is appended to the file log; changed is
// called when its status may have changed.
func NewDaemon(table *Table, command Command, log string, changed func()) *Daemon {
	return &Daemon{table: table, command: command, log: log, changed: changed}
}

// Start starts the daemon with additional environment. One that runs stays.
func (d *Daemon) Start(env []string) error {
	d.act.Lock()
	defer d.act.Unlock()
	return d.start(env)
}

func (d *Daemon) start(env []string) error {
	d.mu.Lock()
	running := d.current != nil && d.current.Running()
	d.mu.Unlock()
	if running {
		return nil
	}
	if d.Before != nil {
		if err := d.Before(); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", filepath.Base(d.command.Path), err)
	}
	defer log.Close()
	c := d.command
	c.Files = append([]*os.File{nil, log, log}, c.Files...)
	c.Env = append(append([]string{}, c.Env...), env...)
	p, err := d.table.Start(c)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.current, d.frozen, d.stopped = p, false, false
	d.starts++
	d.mu.Unlock()
	d.changed()
	go func() {
		// Ends with the process, which ends with this program at the latest.
		<-p.Done()
		d.changed()
	}()
	return nil
}

// Signal kills, freezes or continues the daemon.
func (d *Daemon) Signal(sig unix.Signal) error {
	d.act.Lock()
	defer d.act.Unlock()
	d.mu.Lock()
	p := d.current
	d.mu.Unlock()
	if p == nil || !p.Running() {
		return fmt.Errorf("%s is not running", filepath.Base(d.command.Path))
	}
	if err := p.Signal(sig); err != nil {
		return err
	}
	d.mu.Lock()
	switch sig {
	case unix.SIGSTOP:
		d.frozen = true
	case unix.SIGCONT:
		d.frozen = false
	case unix.SIGKILL:
		d.stopped = true
	}
	d.mu.Unlock()
	if sig == unix.SIGKILL {
		<-p.Done()
	}
	d.changed()
	return nil
}

// Stop asks the daemon to end and kills it if it does not. One that has ended is no
// error.
func (d *Daemon) Stop(ctx context.Context) error {
	d.act.Lock()
	defer d.act.Unlock()
	return d.stop(ctx)
}

func (d *Daemon) stop(ctx context.Context) error {
	d.mu.Lock()
	p := d.current
	d.stopped = true
	d.mu.Unlock()
	if p == nil {
		return nil
	}
	err := p.Stop(ctx, stopGrace)
	d.changed()
	return err
}

// Restart stops and starts the daemon.
func (d *Daemon) Restart(ctx context.Context, env []string) error {
	d.act.Lock()
	defer d.act.Unlock()
	if err := d.stop(ctx); err != nil {
		return err
	}
	return d.start(env)
}

// Status is how the daemon is now.
func (d *Daemon) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Status{State: Stopped, Starts: d.starts}
	if d.current == nil {
		return s
	}
	s.Started = d.current.Started
	if d.current.Running() {
		s.State, s.Pid = Running, d.current.Host
		if d.frozen {
			s.State = Frozen
		}
		return s
	}
	_, s.Exit = d.current.Exit()
	if !d.stopped {
		s.State = Exited
	}
	return s
}
