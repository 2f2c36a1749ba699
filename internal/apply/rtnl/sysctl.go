package rtnl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

const procSys = "/proc/sys/"

// readSysctl reads a setting of the namespace that the thread is in.
func readSysctl(key string) (string, error) {
	fd, err := unix.Open(procSys+key, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	defer unix.Close(fd)
	var buf [64]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

func writeSysctl(key, value string) error {
	fd, err := unix.Open(procSys+key, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("write sysctl %s: %w", key, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("write sysctl %s: set %s: %w", key, value, err)
	}
	return nil
}

// sysctlDifferences compares settings, in the namespace that the thread is in.
// Those of IPv6 do not exist on a kernel without it, nor on a link whose MTU is below
// 1280 bytes: nothing to set then, unless a link must have IPv6 (disable_ipv6 is asked
// for only then).
func sysctlDifferences(want []linux.Sysctl) ([]apply.Difference, error) {
	var out []apply.Difference
	for _, s := range want {
		got, err := readSysctl(s.Key)
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(s.Key, "net/ipv6/") && absent(filepath.Dir(s.Key)) {
			if filepath.Base(s.Key) == "disable_ipv6" {
				out = append(out, apply.Difference{Subsystem: "sysctl", Object: s.Key, Problem: missing, Want: s.Value})
			}
			continue
		}
		if errors.Is(err, fs.ErrNotExist) && s.Optional {
			continue
		}
		if err != nil {
			return out, err
		}
		if got != s.Value {
			out = append(out, apply.Difference{Subsystem: "sysctl", Object: s.Key, Problem: differs, Want: s.Value, Got: got})
		}
	}
	return out, nil
}

// absent tells that there are no settings below key.
func absent(key string) bool {
	_, err := os.Stat(procSys + key)
	return errors.Is(err, fs.ErrNotExist)
}

// errNoIPv6 is why a link cannot bear IPv6 addresses.
var errNoIPv6 = errors.New("there is no IPv6 on the link: its MTU is below 1280 bytes, or the kernel runs without IPv6 (ipv6.disable=1); raise the MTU or use Subnets without IPv6")

// setSysctls writes the settings that differ, in the namespace that the thread is
// in, and returns what it changed. The error is errNoIPv6, after all else is set, where
// a link that must have IPv6 has none.
func setSysctls(want []linux.Sysctl) ([]string, error) {
	diffs, err := sysctlDifferences(want)
	var changes []string
	for _, d := range diffs {
		if d.Problem == missing {
			err = errors.Join(err, fmt.Errorf("set sysctl %s: %w", d.Object, errNoIPv6))
			continue
		}
		if e := writeSysctl(d.Object, d.Want); e != nil {
			if slices.ContainsFunc(want, func(s linux.Sysctl) bool { return s.Key == d.Object && s.Optional }) {
				continue
			}
			return changes, errors.Join(err, e)
		}
		changes = append(changes, "set sysctl "+d.Object+" = "+d.Want)
	}
	return changes, err
}

// setFresh makes the settings of a link that has just been made so. They are written
// without a look at what they are, which for most is not what they must be.
func setFresh(want []linux.Sysctl) error {
	for _, s := range want {
		if writeSysctl(s.Key, s.Value) != nil {
			_, err := setSysctls(want)
			return err
		}
	}
	return nil
}

// settings are the sysctls of the node as a whole. What they were before we came
// is kept in a file that lasts as long as the kernel's own memory of them: until
// the next boot.
type settings struct {
	ns *netns.NS
	// file is empty if nothing is to be kept.
	file string
	// known is what the kernel held when we last looked.
	known map[string]string
}

// apply makes the settings so.
func (s *settings) apply(want []linux.Sysctl) ([]string, error) {
	if s.settled(want) {
		return nil, nil
	}
	var changes []string
	refused := map[string]bool{} // those that are optional
	err := s.ns.Do(func() error {
		diffs, err := sysctlDifferences(want)
		if err != nil {
			return err
		}
		if err := s.keep(diffs); err != nil {
			return err
		}
		if changes, err = setSysctls(want); err != nil {
			return err
		}
		left, err := sysctlDifferences(want)
		for _, d := range left {
			refused[d.Object] = true
		}
		return err
	})
	if err != nil {
		return changes, err
	}
	s.known = map[string]string{}
	for _, w := range want {
		if !refused[w.Key] {
			s.known[w.Key] = w.Value
		}
	}
	return changes, nil
}

func (s *settings) settled(want []linux.Sysctl) bool {
	if s.known == nil {
		return false
	}
	for _, w := range want {
		if s.known[w.Key] != w.Value && !w.Optional {
			return false
		}
	}
	return true
}

// changed says what somebody else set, and forgets what we knew if there is
// anything.
func (s *settings) changed() []string {
	var out []string
	_ = s.ns.Do(func() error {
		for key, want := range s.known {
			if got, err := readSysctl(key); err == nil && got != want {
				out = append(out, fmt.Sprintf("sysctl %s set to %s", key, got))
			}
		}
		return nil
	})
	if len(out) > 0 {
		s.known = nil
	}
	return out
}

// keep adds what the settings are now to the file, except those that are there
// already: what we set ourselves is not what we found.
func (s *settings) keep(diffs []apply.Difference) error {
	if s.file == "" || len(diffs) == 0 {
		return nil
	}
	found, err := s.read()
	if err != nil {
		return err
	}
	for _, d := range diffs {
		if _, ok := found[d.Object]; !ok {
			found[d.Object] = d.Got
		}
	}
	text, err := json.MarshalIndent(found, "", "  ")
	if err != nil {
		return fmt.Errorf("write the sysctls found: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(s.file), 0o755); err != nil {
		return fmt.Errorf("write the sysctls found: %w", err)
	}
	if err := renameio.WriteFile(s.file, append(text, '\n'), 0o644, renameio.WithTempDir(filepath.Dir(s.file))); err != nil {
		return fmt.Errorf("write the sysctls found to %s: %w", s.file, err)
	}
	return nil
}

func (s *settings) read() (map[string]string, error) {
	found := map[string]string{}
	text, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the sysctls found before: %w", err)
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, fmt.Errorf("read the sysctls found before, %s: %w (remove the file to take today's settings for those found)", s.file, err)
	}
	return found, nil
}

// restore sets everything back to what was found.
func (s *settings) restore() error {
	if s.file == "" {
		return nil
	}
	found, err := s.read()
	if err != nil {
		return err
	}
	err = s.ns.Do(func() error {
		var errs []error
		for key, value := range found {
			if !strings.HasPrefix(key, "net/") || strings.Contains(key, "..") {
				errs = append(errs, fmt.Errorf("restore sysctl %q: not a network setting", key))
				continue
			}
			if err := writeSysctl(key, value); !errors.Is(err, fs.ErrNotExist) { // its module is gone
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	s.known = nil
	if err := os.Remove(s.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the sysctls found: %w", err)
	}
	return nil
}
