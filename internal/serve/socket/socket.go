package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lookEvery is how often Accept looks whether the socket is still at its path.
const lookEvery = 2 * time.Second

// Listener accepts connections from root only, at a path that nobody else holds.
// If the socket vanishes from its path, Accept makes it anew. Close stops listening;
// Remove takes the socket away too.
type Listener struct {
	path  string
	what  string // "CNI", for people
	log   *slog.Logger
	every time.Duration // lookEvery outside of tests

	mu     sync.Mutex
	socket *net.UnixListener
	self   fs.FileInfo // the socket as it was placed
	lock   *os.File    // locked while the socket is ours
	closed bool
	looked time.Time // when the path was last looked at
	lost   string    // why the socket that is gone could not be made anew
}

// Listen makes the socket; what names it to people. It appears at its path by a
// rename, with its mode set: at no moment could anybody else connect, and what a dead
// agent left is replaced. Whether an agent lives is told by a lock that the kernel
// drops with its holder.
func Listen(path, what string, log *slog.Logger) (*Listener, error) {
	l := &Listener{path: path, what: what, log: log, every: lookEvery, looked: time.Now()}
	if err := l.place(); err != nil {
		return nil, errors.Join(err, l.unlock())
	}
	return l, nil
}

// place takes the lock and makes the socket, as far as those at their paths are not ours.
func (l *Listener) place() error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return fmt.Errorf("make the folder of the %s socket: %w", l.what, err)
	}
	if !l.locked() {
		lock, err := takeLock(l.path+".lock", l.what)
		if err != nil {
			return err
		}
		_ = l.unlock() // of a file that nobody finds any more
		l.lock = lock
	}
	if l.bound() {
		return nil
	}
	socket, self, err := bind(l.path, l.what)
	if err != nil {
		return err
	}
	if l.socket != nil {
		_ = l.socket.Close() // nobody can reach it any more
	}
	l.socket, l.self = socket, self
	return nil
}

// locked reports whether the lock at the path is the one that is held.
func (l *Listener) locked() bool {
	if l.lock == nil {
		return false
	}
	held, err := l.lock.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(l.path + ".lock")
	return err == nil && os.SameFile(held, there)
}

func (l *Listener) unlock() error {
	if l.lock == nil {
		return nil
	}
	err := l.lock.Close()
	l.lock = nil
	return err
}

func takeLock(path, what string) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the %s socket: %w", what, err)
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("another fairlead-agent serves the %s socket of this node (it holds %s); stop it first", what, path)
	} else if err != nil {
		err = fmt.Errorf("lock %s: %w", path, err)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func bind(path, what string) (*net.UnixListener, fs.FileInfo, error) {
	if err := checkStale(path, what); err != nil {
		return nil, nil, err
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("remove what a dead agent left: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, nil, fmt.Errorf("listen on the %s socket: %w", what, err)
	}
	l.SetUnlinkOnClose(false) // Remove does it, by the name that the socket gets now
	var self fs.FileInfo
	if err = os.Chmod(fresh, 0o600); err == nil {
		self, err = os.Lstat(fresh)
	}
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("place the %s socket: %w", what, err), l.Close(), os.Remove(fresh))
	}
	return l, self, nil
}

// checkStale refuses to take the place of anything but a socket that nobody serves.
func checkStale(path, what string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the %s socket: %w", what, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is no socket (%s); remove it first", path, info.Mode())
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		return errors.Join(fmt.Errorf("another program serves the %s socket of this node (%s); stop it first", what, path), conn.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("find out whether anybody serves %s: %w", path, err)
	}
	return nil
}

// Accept returns the next connection of root; others are closed.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		socket, err := l.current()
		if err != nil {
			return nil, err
		}
		conn, err := socket.AcceptUnix()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return nil, err
		}
		peer, err := credentials(conn)
		if err == nil && allowed(peer) {
			return conn, nil
		}
		if err != nil {
			l.log.Warn("connection refused: its credentials cannot be read", "socket", l.what, "err", err)
		} else {
			l.log.Warn("connection refused: only root may use the socket", "socket", l.what, "uid", peer.Uid, "pid", peer.Pid)
		}
		_ = conn.Close()
	}
}

// current is what listens, until it is time to look at the path again. A socket that
// somebody took away, with its folder perhaps, is made anew: nobody could reach the
// agent otherwise until it is started again.
func (l *Listener) current() (*net.UnixListener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	if now := time.Now(); now.Sub(l.looked) >= l.every {
		l.looked = now
		if !l.bound() || !l.locked() {
			l.replace()
		}
	}
	if err := l.socket.SetDeadline(l.looked.Add(l.every)); err != nil {
		return nil, fmt.Errorf("accept on the %s socket: %w", l.what, err)
	}
	return l.socket, nil
}

// bound reports whether the socket at the path is ours.
func (l *Listener) bound() bool {
	there, err := os.Lstat(l.path)
	return err == nil && l.self != nil && os.SameFile(l.self, there)
}

// replace makes the socket anew, and logs what comes of it, each cause once.
func (l *Listener) replace() {
	err := l.place()
	switch {
	case err == nil:
		l.lost = ""
		l.log.Warn("somebody took the socket or its lock away: it is made anew", "socket", l.what, "path", l.path)
	case err.Error() != l.lost:
		l.lost = err.Error()
		l.log.Error("somebody took the socket or its lock away, and it cannot be made anew yet: trying again", "socket", l.what, "path", l.path, "err", err)
	}
}

// Close stops listening.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return l.socket.Close()
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// allowed accepts root, and whoever runs this very process: without root the agent
// is a test.
func allowed(peer *unix.Ucred) bool { return peer.Uid == 0 || int(peer.Uid) == os.Geteuid() }

// credentials of the process at the other end, as they were when it connected. A
// process in another user namespace is seen as the overflow user, not as root.
func credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	controlled := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(controlled, err)
}

// Remove takes the socket away, unless another has its place, and lets the next agent
// have it. The lock's file stays: removing it would let two agents lock two files of
// one name.
func (l *Listener) Remove() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.bound() {
		err = os.Remove(l.path)
	}
	return errors.Join(err, l.unlock())
}
