package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

func TestRequestArrivesAsTheRuntimeGaveIt(t *testing.T) {
	config := strings.Repeat("\x00\xff{\"name\":\"n\"}\n", 60_000)
	tests := []struct {
		name  string
		stdin string
		env   []string
		want  cniapi.Request
	}{
		{
			name:  "every variable",
			stdin: `{"cniVersion":"1.1.0","name":"fairlead","type":"fairlead-cni"}`,
			env: []string{
				"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/run/netns/x", "CNI_IFNAME=eth0",
				"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=a", "CNI_PATH=/opt/cni/bin:/b", "CNI_NETNS_OVERRIDE=true", "OTHER=1",
			},
			want: cniapi.Request{
				Command: cniapi.Add, ContainerID: "c1", Netns: "/run/netns/x", IfName: "eth0",
				Args: "IgnoreUnknown=1;K8S_POD_NAME=a", Path: "/opt/cni/bin:/b", NetnsOverride: "true",
				Config: []byte(`{"cniVersion":"1.1.0","name":"fairlead","type":"fairlead-cni"}`),
			},
		},
		{
			name: "nothing but the command",
			env:  []string{"CNI_COMMAND=DEL"},
			want: cniapi.Request{Command: cniapi.Del, Config: []byte{}},
		},
		{
			name:  "characters that JSON must escape",
			stdin: "not JSON",
			env:   []string{"CNI_COMMAND=CHECK", "CNI_ARGS=\"\\\x01\x1f\n\t\x7f</é日😀\u2028", "CNI_NETNS=/a\xff\xc3b\xed\xa0\x80"},
			want: cniapi.Request{
				Command: cniapi.Check, Args: "\"\\\x01\x1f\n\t\x7f</é日😀\u2028",
				Netns: "/a\ufffd\ufffdb\ufffd\ufffd\ufffd", Config: []byte("not JSON"),
			},
		},
		{
			name:  "a configuration of nearly 1 MiB that is no text",
			stdin: config,
			env:   []string{"CNI_COMMAND=GC"},
			want:  cniapi.Request{Command: cniapi.GC, Config: []byte(config)},
		},
		{
			name:  "a configuration of exactly 1 MiB",
			stdin: strings.Repeat("x", cniapi.MaxConfig),
			env:   []string{"CNI_COMMAND=STATUS"},
			want:  cniapi.Request{Command: cniapi.Status, Config: []byte(strings.Repeat("x", cniapi.MaxConfig))},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := make(chan cniapi.Request, 1)
			agent(t, func(_ context.Context, r cniapi.Request) cniapi.Response {
				got <- r
				return cniapi.Response{Stdout: []byte("{}")}
			})
			if diff := cmp.Diff(output{stdout: "{}"}, call(t, tt.stdin, tt.env...), cmp.AllowUnexported(output{})); diff != "" {
				t.Fatalf("output (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, <-got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnswerIsPrintedAsItIs(t *testing.T) {
	refusal := cniapi.Error{Code: cniapi.CodeTryAgain, Msg: "not yet", Details: "a \"quoted\" word"}
	large := strings.Repeat("0123456789abcdef", 60_000)
	tests := []struct {
		name   string
		answer cniapi.Response
		want   output
	}{
		{"a result", cniapi.Response{Stdout: []byte(`{"ips":[]}` + "\n")}, output{stdout: `{"ips":[]}` + "\n"}},
		{"no result", cniapi.Response{}, output{}},
		{"a refusal", cniapi.Refuse(refusal), output{stdout: string(refusal.JSON()), exit: 1}},
		{"a large result", cniapi.Response{Stdout: []byte(large)}, output{stdout: large}},
		{"bytes that are no text", cniapi.Response{Stdout: []byte("\r\n\r\n\x00\xff")}, output{stdout: "\r\n\r\n\x00\xff"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			agent(t, func(context.Context, cniapi.Request) cniapi.Response { return tt.answer })
			got := call(t, "{}", "CNI_COMMAND=ADD")
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(output{})); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// wantError checks that out is a CNI error and returns its message.
func wantError(t *testing.T, out output, version string, code cniapi.Code) string {
	t.Helper()
	var got cniapi.Error
	if err := json.Unmarshal([]byte(out.stdout), &got); err != nil {
		t.Fatalf("stdout %q is no error object: %v", out.stdout, err)
	}
	if out.exit != 1 || got.CNIVersion != version || got.Code != code || got.Msg == "" {
		t.Fatalf("got exit %d and %+v, want exit 1, version %s, code %d and a message", out.exit, got, version, code)
	}
	return got.Msg
}

func TestNoAgent(t *testing.T) {
	absent := func(*testing.T) {}
	stale := func(t *testing.T) {
		l := listen(t).(*net.UnixListener)
		l.SetUnlinkOnClose(false)
		l.Close()
		t.Cleanup(func() { os.Remove(socket()) })
	}
	notASocket := func(t *testing.T) {
		if err := os.WriteFile(socket(), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(socket()) })
	}
	tests := []struct {
		name, command string
		prepare       func(*testing.T)
		code          cniapi.Code
		want          string
	}{
		{"ADD, no socket", "ADD", absent, 11, "no such file or directory"},
		{"DEL, no socket", "DEL", absent, 11, "no such file or directory"},
		{"CHECK, no socket", "CHECK", absent, 11, "no such file or directory"},
		{"GC, no socket", "GC", absent, 11, "no such file or directory"},
		{"STATUS, no socket", "STATUS", absent, 50, "no such file or directory"},
		{"ADD, nobody listens", "ADD", stale, 11, "connection refused"},
		{"STATUS, nobody listens", "STATUS", stale, 50, "connection refused"},
		{"ADD, a file in its place", "ADD", notASocket, 11, "connection refused"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.prepare(t)
			msg := wantError(t, call(t, `{"cniVersion":"0.4.0"}`, "CNI_COMMAND="+tt.command), "0.4.0", tt.code)
			want := "fairlead-agent is not running on this node (dial " + socket() + ": " + tt.want + "); start it, the runtime will try again"
			if msg != want {
				t.Errorf("got  %s\nwant %s", msg, want)
			}
		})
	}
}

func TestAgentDiesInTheMiddle(t *testing.T) {
	readAll := func(c net.Conn) {
		r, err := http.ReadRequest(newReader(c))
		if err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
		}
	}
	tests := []struct {
		name  string
		serve func(net.Conn)
	}{
		{"before it reads", func(net.Conn) {}},
		{"after it read the request", readAll},
		{"within the header", func(c net.Conn) { readAll(c); _, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\nContent-Le") }},
		{"within the body", func(c net.Conn) {
			readAll(c)
			_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\nContent-Length: 10\r\nFairlead-CNI-Exit: 0\r\n\r\n{\"ips\"")
		}},
	}
	for _, tt := range tests {
		for command, code := range map[string]cniapi.Code{"ADD": 11, "STATUS": 50} {
			t.Run(tt.name+", "+command, func(t *testing.T) {
				rawAgent(t, tt.serve)
				msg := wantError(t, call(t, strings.Repeat(" ", 1<<20), "CNI_COMMAND="+command), "1.1.0", code)
				if !strings.HasPrefix(msg, "fairlead-agent ended while it served "+command+" (") {
					t.Errorf("message: %s", msg)
				}
			})
		}
	}
}

func TestServerThatAnswersBeforeItReads(t *testing.T) {
	rawAgent(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\ncontent-length: 2\r\nFAIRLEAD-CNI-EXIT:1\r\n\r\n{}")
	})
	got := call(t, strings.Repeat(" ", 1<<20), "CNI_COMMAND=ADD")
	if want := (output{stdout: "{}", exit: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestAnswerThatIsNoAnswer(t *testing.T) {
	tests := []struct{ name, raw, want string }{
		{"another status", "HTTP/1.0 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n", `answered "HTTP/1.0 404 Not Found" to a CNI request`},
		{"another protocol", "220 mail.example.org ESMTP\r\n\r\n", `answered "220 mail.example.org ESMTP" to a CNI request`},
		{"no length", "HTTP/1.0 200 OK\r\nFairlead-CNI-Exit: 0\r\n\r\n{}", "without a Content-Length"},
		{"a negative length", "HTTP/1.0 200 OK\r\nFairlead-CNI-Exit: 0\r\nContent-Length: -1\r\n\r\n{}", "without a Content-Length"},
		{"an absurd length", "HTTP/1.0 200 OK\r\nFairlead-CNI-Exit: 0\r\nContent-Length: 99999999999999999999\r\n\r\n", "without a Content-Length"},
		{"no exit status", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", "without a Fairlead-CNI-Exit"},
		{"exit status 7", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\nFairlead-CNI-Exit: 7\r\n\r\n{}", "without a Fairlead-CNI-Exit"},
		{"more than its length", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\nFairlead-CNI-Exit: 0\r\n\r\n{}}", "more than its Content-Length"},
		{"an endless header", strings.Repeat("x", 200_000), "a header of more than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rawAgent(t, func(c net.Conn) { _, _ = io.WriteString(c, tt.raw) })
			msg := wantError(t, call(t, "{}", "CNI_COMMAND=ADD"), "1.1.0", 5)
			if !strings.Contains(msg, tt.want) {
				t.Errorf("message %q lacks %q", msg, tt.want)
			}
		})
	}
}

// The timeout is the only thing that needs a clock, so ask is called directly.
func TestAgentThatNeverAnswers(t *testing.T) {
	tests := []struct {
		name, command string
		request       string
		code          int
		want          string
	}{
		{"reads nothing and answers nothing", "ADD", "x", 11, "did not answer ADD within 1 s"},
		{"STATUS", "STATUS", "x", 50, "did not answer STATUS within 1 s"},
		{"a request larger than the socket's buffer", "ADD", strings.Repeat("x", 4<<20), 11, "did not read the request within 1 s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			release := make(chan struct{})
			rawAgent(t, func(net.Conn) { <-release })
			_, problem := ask(socket(), 1, tt.command, []byte(tt.request))
			close(release)
			if problem == nil || problem.code != tt.code || !strings.Contains(problem.msg, tt.want) {
				t.Errorf("got %+v, want code %d and %q", problem, tt.code, tt.want)
			}
		})
	}
}

func TestContextEndsWhenTheRuntimeKillsThePlugin(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	agent(t, func(ctx context.Context, _ cniapi.Request) cniapi.Response {
		close(started)
		<-ctx.Done()
		close(ended)
		return cniapi.Response{}
	})
	cmd := command(t, "CNI_COMMAND=ADD")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-started
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	_ = cmd.Wait()
}
