package attacks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// nobody is an ordinary user.
const nobody = 65534

// TestScenarioS8Sockets: only root talks to the agent, whatever became of the modes
// of files.
func TestScenarioS8Sockets(t *testing.T) {
	a := newArena(t)
	const node = "node-3"
	in := a.InNode(node)
	for _, name := range []string{"cni.sock", "admin.sock"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(a.NodeDirectory(node), "run", "fairlead", name)
			info, err := os.Lstat(file)
			if err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Lstat(file, &st); err != nil {
				t.Fatal(err)
			}
			if got, want := info.Mode(), os.ModeSocket|0o600; got != want || st.Uid != 0 || st.Gid != 0 {
				t.Errorf("mode %s, owner %d:%d; want %s, 0:0", got, st.Uid, st.Gid, want)
			}
			dir, err := os.Stat(filepath.Dir(file))
			if err != nil {
				t.Fatal(err)
			}
			if dir.Mode().Perm()&0o022 != 0 {
				t.Errorf("others may write to the socket's folder: %s", dir.Mode())
			}
			path := "/run/fairlead/" + name
			if answer, err := askAs(in, nobody, path); !errors.Is(err, unix.EACCES) {
				t.Errorf("an ordinary user connects: %q, %v", answer, err)
			}
			// Somebody has widened the mode: the peer's credentials still count.
			if err := os.Chmod(file, 0o666); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := os.Chmod(file, 0o600); err != nil {
					t.Error(err)
				}
			}()
			if answer, err := askAs(in, nobody, path); answer != "" {
				t.Errorf("an ordinary user gets an answer: %q, %v", answer, err)
			}
			if answer, err := askAs(in, 0, path); answer == "" {
				t.Errorf("root gets no answer: %v", err)
			}
		})
	}
	labtest.Eventually(t, labtest.Patience, func() error {
		if n := a.Node(node); !n.State.Ready {
			return fmt.Errorf("node %s: %s", node, n.State.Reason)
		}
		return nil
	})
}

// askAs sends a request to a socket as a user, and returns the head of the answer. An
// empty one means that the connection was closed.
func askAs(in func(func() error) error, uid int, path string) (answer string, err error) {
	err = in(func() error {
		// Of this thread alone, which ends with the call.
		if uid != 0 {
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
				return e
			}
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return err
		}
		// MSG_NOSIGNAL: the other side may have closed already.
		if err := unix.Sendto(fd, []byte("GET /v1/status HTTP/1.0\r\n\r\n"), unix.MSG_NOSIGNAL, nil); err != nil {
			return err
		}
		b := make([]byte, 128)
		n, err := unix.Read(fd, b)
		answer = string(b[:max(n, 0)])
		return err
	})
	return answer, err
}
