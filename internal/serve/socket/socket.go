package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Listener accepts connections from root only, at a path that nobody else holds.
// Close stops listening; Remove takes the socket away too.
type Listener struct {
	*net.UnixListener
	path string
	what string   // "CNI", for people
	lock *os.File // locked while the socket is ours
	log  *slog.Logger
}

// Listen makes the socket; what names it to people. It appears at its path by a
// rename, with its mode set: at no moment could anybody else connect, and what a dead
// agent left is replaced. Whether an agent lives is told by a lock that the kernel
// drops with its holder.
func Listen(path, what string, log *slog.Logger) (*Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of the %s socket: %w", what, err)
	}
	lock, err := takeLock(path+".lock", what)
	if err != nil {
		return nil, err
	}
	l, err := bind(path, what)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Listener{UnixListener: l, path: path, what: what, lock: lock, log: log}, nil
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

func bind(path, what string) (*net.UnixListener, error) {
	if err := checkStale(path, what); err != nil {
		return nil, err
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove what a dead agent left: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on the %s socket: %w", what, err)
	}
	l.SetUnlinkOnClose(false) // Remove does it, by the name that the socket gets now
	if err = os.Chmod(fresh, 0o600); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("place the %s socket: %w", what, err), l.Close(), os.Remove(fresh))
	}
	return l, nil
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
		conn, err := l.AcceptUnix()
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

// Remove takes the socket away and lets the next agent have its place. The lock's
// file stays: removing it would let two agents lock two files of one name.
func (l *Listener) Remove() error {
	err := os.Remove(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.lock.Close())
}
