package main

import (
	"bufio"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }

func command(t testing.TB, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), plugin(t))
	cmd.Env = env
	return cmd
}

func TestVersionNeedsNoAgent(t *testing.T) {
	info, err := invoke.GetVersionInfo(t.Context(), plugin(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cniapi.Versions(), info.SupportedVersions()); diff != "" {
		t.Errorf("supported versions (-want +got):\n%s", diff)
	}
	tests := []struct{ name, stdin, want string }{
		{"asked in 0.4.0", `{"cniVersion":"0.4.0"}`, "0.4.0"},
		{"asked in an unknown version", `{"cniVersion":"9.0.0"}`, "1.1.0"},
		{"asked without a version", ``, "1.1.0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := call(t, tt.stdin, "CNI_COMMAND=VERSION")
			want := output{stdout: `{"cniVersion":"` + tt.want + `","supportedVersions":["0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}` + "\n"}
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestRefusesWithoutAnAgent(t *testing.T) {
	tests := []struct {
		name, stdin, env string
		code             cniapi.Code
		want             string
	}{
		{"no command", "{}", "A=b", 4, "CNI_COMMAND is not set"},
		{"an empty command", "{}", "CNI_COMMAND=", 4, "CNI_COMMAND is not set"},
		{"an unknown command", "{}", "CNI_COMMAND=add", 4, `CNI_COMMAND is "add"`},
		{"a long unknown command", "{}", "CNI_COMMAND=" + strings.Repeat("é", 10_000), 4, "…"},
		{"one byte too many on stdin", strings.Repeat(" ", 1<<20+1), "CNI_COMMAND=ADD", 7, "more than 1048576 bytes"},
		{"several megabytes on stdin", strings.Repeat(" ", 5<<20), "CNI_COMMAND=DEL", 7, "more than 1048576 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			msg := wantError(t, call(t, tt.stdin, tt.env), "1.1.0", tt.code)
			if !strings.Contains(msg, tt.want) {
				t.Errorf("message %q lacks %q", msg, tt.want)
			}
		})
	}
}

func TestUnreadableStdin(t *testing.T) {
	dir, err := os.Open(t.TempDir()) // read(2) on a directory is EISDIR
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := command(t, "CNI_COMMAND=ADD")
	cmd.Stdin = dir
	if msg := wantError(t, finish(t, cmd), "1.1.0", 5); !strings.Contains(msg, "is a directory") {
		t.Errorf("message: %s", msg)
	}
}

func TestOnATerminal(t *testing.T) {
	tests := []struct {
		name string
		env  string
		want output
	}{
		{"no command tells who it is", "A=b", output{stderr: "CNI plugin fairlead 1.2.3\nCNI protocol versions supported: 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"}},
		{"VERSION does not wait for input", "CNI_COMMAND=VERSION", output{stdout: string(versionResult(nil))}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := command(t, tt.env)
			cmd.Stdin = terminal(t)
			if got := finish(t, cmd); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// terminal opens a new pseudo terminal and returns its user's end.
func terminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { user.Close() })
	return user
}

// A runtime may hand over pipes that it has made non-blocking.
func TestNonBlockingStreams(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 60_000)
	got := make(chan []byte, 1)
	agent(t, func(_ context.Context, r cniapi.Request) cniapi.Response {
		got <- r.Config
		return cniapi.Response{Stdout: []byte(large)}
	})
	in, out := pipe(t), pipe(t)
	cmd := command(t, "CNI_COMMAND=ADD")
	cmd.Stdin, cmd.Stdout = in.read, out.write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.read.Close()
	out.write.Close()
	// More than a pipe's buffer each way, so that both ends meet EAGAIN.
	if _, err := io.WriteString(in.write, large); err != nil {
		t.Fatal(err)
	}
	in.write.Close()
	if config := string(<-got); config != large {
		t.Errorf("the agent got %d bytes, want %d", len(config), len(large))
	}
	printed, err := io.ReadAll(out.read)
	if err != nil || string(printed) != large {
		t.Errorf("stdout has %d bytes (%v), want %d", len(printed), err, len(large))
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

type pipeEnds struct{ read, write *os.File }

func pipe(t *testing.T) pipeEnds {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	return pipeEnds{os.NewFile(uintptr(fds[0]), "read"), os.NewFile(uintptr(fds[1]), "write")}
}

func TestStdoutThatNobodyReads(t *testing.T) {
	agent(t, func(context.Context, cniapi.Request) cniapi.Response {
		return cniapi.Response{Stdout: []byte("{}")}
	})
	p := pipe(t)
	p.read.Close()
	defer p.write.Close()
	cmd := command(t, "CNI_COMMAND=ADD")
	cmd.Stdout = p.write
	if got := finish(t, cmd); got.exit != 1 {
		t.Errorf("exit status %d, want 1: the runtime must not take a lost result for a success", got.exit)
	}
}

func TestConstantsAreTheContracts(t *testing.T) {
	if socketPath != cniapi.Socket || maxConfig != cniapi.MaxConfig || maxResponse != cniapi.MaxResponse || !slices.Equal(supported(), cniapi.Versions()) {
		t.Error("the plugin's constants differ from those of package cniapi")
	}
}

// The runtime would read all mounts of the node with each call, several for each pod.
func TestStartsWithoutALookAtCgroups(t *testing.T) {
	info, err := buildinfo.ReadFile(plugin(t))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "DefaultGODEBUG" && strings.Contains(s.Value, "containermaxprocs=0")
	}) {
		t.Errorf("built with %v, want DefaultGODEBUG with containermaxprocs=0", info.Settings)
	}
}

// The plugin's cost is what it links: see the package comment.
func TestLinksNothingThatCosts(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "syscall") {
		t.Fatalf("go list printed %q", deps)
	}
	for _, pkg := range []string{"net", "os", "fmt", "encoding/json", "reflect", "time", "unicode/utf8"} {
		if slices.Contains(deps, pkg) {
			t.Errorf("the plugin links %s", pkg)
		}
	}
	info, err := os.Stat(plugin(t))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() >= 4<<20 {
		t.Errorf("the plugin has %d bytes, want less than 4 MiB", info.Size())
	}
}
