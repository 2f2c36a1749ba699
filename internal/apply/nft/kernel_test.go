package nft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// testNS makes a network namespace of the test's own and returns its path. It
// lives as long as the test.
func testNS(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces and nftables")
	}
	type made struct {
		path string
		err  error
	}
	ready, done := make(chan made), make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread dies with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ready <- made{err: err}
			return
		}
		file, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			ready <- made{err: err}
			return
		}
		defer func() { _ = file.Close() }()
		ready <- made{path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())}
		<-done
	})
	m := <-ready
	if m.err != nil {
		ended.Wait()
		t.Skipf("needs network namespaces: %v", m.err)
	}
	t.Cleanup(func() {
		close(done)
		ended.Wait()
	})
	return m.path
}

// run runs a program inside a network namespace and returns what it printed.
func run(t testing.TB, ns string, args ...string) string {
	t.Helper()
	out, err := try(t, ns, args...)
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

func try(t testing.TB, ns string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + ns}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// needNFT skips the test where the nft program, the reference, is missing.
func needNFT(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs the nft program to compare with")
	}
}

// open opens a driver that the test closes.
func open(t testing.TB, cfg nft.Config) *nft.Driver {
	t.Helper()
	if cfg.Table == "" {
		cfg.Table = "fairlead"
	}
	d, err := nft.Open(t.Context(), cfg)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skipf("needs nf_tables: %v", err)
	}
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func apply(t testing.TB, d *nft.Driver, table nftables.Table) nft.Changes {
	t.Helper()
	changes, err := d.Apply(context.WithoutCancel(t.Context()), table)
	if err != nil {
		t.Fatalf("apply: %v", err)
	}
	return changes
}

// listed is what nft prints of the table, without what only says who owns it.
func listed(t testing.TB, ns string) string {
	t.Helper()
	out := run(t, ns, "nft", "--stateless", "list", "table", "inet", "fairlead")
	return withoutOwner(out)
}

func withoutOwner(text string) string {
	lines := bytes.Split([]byte(text), []byte("\n"))
	if len(lines) < 2 {
		return text
	}
	if i := bytes.Index(lines[0], []byte("{ #")); i >= 0 {
		lines[0] = lines[0][:i+1]
	}
	if bytes.HasPrefix(lines[1], []byte("\tflags ")) {
		lines = append(lines[:1], lines[2:]...)
		if len(lines[1]) == 0 {
			lines = append(lines[:1], lines[2:]...)
		}
	}
	return string(bytes.Join(lines, []byte("\n")))
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rng(from, to string) netipx.IPRange {
	return netipx.IPRangeFrom(netip.MustParseAddr(from), netip.MustParseAddr(to))
}

// markRange is a range of marks, which only literals can write.
func markRange(from, to uint32) nftables.Value {
	v := nftables.Mark(from)
	v.To = nftables.Mark(to).From
	return v
}
