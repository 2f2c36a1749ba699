package attacks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// canaryFile is what traversals try to make.
const canaryFile = "fairlead-attack-canary"

// hostile are strings that have broken programs that trust their input.
func hostile() []string {
	return []string{
		"", ".", "..", "/", "../" + canaryFile, "../../../../../../../../tmp/" + canaryFile, "/tmp/" + canaryFile, "a/../../" + canaryFile,
		"a/b", `a\b`, "a\x00b", "a\nb", "a b", "-rf", "--help", "$(touch /tmp/" + canaryFile + ")", "`touch /tmp/" + canaryFile + "`",
		"; touch /tmp/" + canaryFile, "| touch /tmp/" + canaryFile, "%s%s%n", "\xff\xfe", "é", "eth0\n", "all", "default", "lo",
		"flp" + canaryFile, "fl.vxlan", strings.Repeat("a", 16), strings.Repeat("a", 300), strings.Repeat("../", 100) + "tmp/" + canaryFile,
		strings.Repeat("A", 70000), "{}", "null", `"`, "'", "{{.}}", "*", "~root", "nul\x00../" + canaryFile,
	}
}

// hostileNetns are paths that are no pod's network namespace.
func hostileNetns() []string {
	return append(hostile(), "/proc/1/ns/net", "/proc/self/ns/net", "/proc/thread-self/ns/net", "/run/netns", "/dev/null", "/dev/zero",
		"/etc/passwd", "/run/fairlead/cni.sock", "/run/netns/../../proc/1/ns/net", "/proc/1/ns/mnt", "/proc/1/root/../ns/net", "/sys/fs/bpf")
}

// agentCaller posts to an agent's CNI socket as the plugin does, without its limits.
type agentCaller struct{ client *http.Client }

func newCaller(t testing.TB, l *labtest.Lab, node string) agentCaller {
	socket := filepath.Join(l.NodeDirectory(node), "run", "fairlead", "cni.sock")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return agentCaller{&http.Client{Transport: transport, Timeout: 30 * time.Second}}
}

// post returns whether the answer says failure, and the body.
func (c agentCaller) post(body []byte) (failed bool, answer []byte, err error) {
	resp, err := c.client.Post("http://agent"+cniapi.URLPath, "application/json", bytes.NewReader(body))
	if err != nil {
		return false, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 2*cniapi.MaxResponse))
	return resp.StatusCode != http.StatusOK || resp.Header.Get(cniapi.HeaderExit) != "0", answer, err
}

// tree is every path below a node's directory, but its logs and its state folder, and
// every canary elsewhere.
func tree(t testing.TB, l *labtest.Lab, node string) []string {
	t.Helper()
	root := l.NodeDirectory(node)
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if rel == "log" {
			return filepath.SkipDir
		}
		if !strings.HasPrefix(rel, "var") {
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return append(out, canaries(t)...)
}

func canaries(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"/tmp/*" + canaryFile + "*", "/" + canaryFile, "/var/lib/*" + canaryFile + "*", "/var/*" + canaryFile + "*", "/run/*" + canaryFile + "*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

// plainID matches what the CNI specification allows as a container id: such strings
// are hostile elsewhere only.
var plainID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// kernelName says whether Linux takes a string as the name of an interface: odd ones,
// such as "-rf", may be had.
func kernelName(s string) bool {
	return s != "" && len(s) <= 15 && !slices.Contains([]string{".", "..", "all", "default", "lo"}, s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("/:%", r) })
}

func TestScenarioS7CNIInput(t *testing.T) {
	a := newArena(t)
	const node = "node-3"
	sandbox := a.Runtime(node).Sandbox(t, "attack-s7")
	before, pid := tree(t, a.Lab, node), a.Node(node).State.Agent.Pid
	call := newCaller(t, a.Lab, node)
	config := []byte(`{"cniVersion":"1.1.0","name":"labtest","type":"fairlead-cni","standalone":true}`)
	good := cniapi.Request{Command: cniapi.Add, ContainerID: "attack-s7", Netns: sandbox.Path, IfName: "eth0", Config: config}

	refused := 0
	try := func(name string, r cniapi.Request) {
		t.Helper()
		body, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		failed, answer, err := call.post(body)
		if err != nil {
			t.Fatalf("%s: no answer: %v", name, err)
		}
		if !failed {
			if r.Command == cniapi.Del || r.Command == cniapi.GC {
				return // nothing was there: the specification wants success
			}
			t.Errorf("%s: accepted: %.200s", name, answer)
			return
		}
		var e cniapi.Error
		if err := json.Unmarshal(answer, &e); err != nil || e.Code == 0 || e.Code == cniapi.CodeInternal || e.Msg == "" {
			t.Errorf("%s: want a CNI error with a code of the specification, got %.300s", name, answer)
		}
		refused++
	}
	for _, command := range []cniapi.Command{cniapi.Add, cniapi.Check, cniapi.Del} {
		for i, s := range hostile() {
			r := good
			r.Command = command
			if r.ContainerID = s; !plainID.MatchString(s) {
				try(fmt.Sprintf("%s container id %d %.40q", command, i, s), r)
			}
			r = good
			r.Command = command
			if r.IfName = s; !kernelName(s) {
				try(fmt.Sprintf("%s ifname %d %.40q", command, i, s), r)
			}
		}
	}
	for i, s := range hostileNetns() {
		r := good
		r.Netns = s
		try(fmt.Sprintf("netns %d %.40q", i, s), r)
	}
	for i, s := range hostile() {
		r := good
		// A pod of a good name is waited for.
		if r.Args = "K8S_POD_NAMESPACE=" + s + ";K8S_POD_NAME=" + s + ";K8S_POD_UID=" + s; s != "" && !plainID.MatchString(s) {
			try(fmt.Sprintf("args %d %.40q", i, s), r)
		}
		r = good
		r.Command = cniapi.Command(s)
		try(fmt.Sprintf("command %d %.40q", i, s), r)
	}
	for i, c := range hostileConfigs() {
		r := good
		r.Config = c
		try(fmt.Sprintf("config %d %.60q", i, c), r)
	}
	// What is no request at all: whatever the answer, there is one, and never success.
	random := rand.New(rand.NewPCG(7, 7))
	valid, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		body := slices.Clone(valid)
		for range 1 + random.IntN(8) {
			switch at := random.IntN(len(body)); random.IntN(3) {
			case 0:
				body[at] = byte(random.Uint32())
			case 1:
				body = append(body[:at], body[min(len(body), at+1+random.IntN(9)):]...)
			default:
				body = slices.Insert(body, at, byte(random.Uint32()), '"', '{')
			}
			if len(body) == 0 {
				body = []byte{'{'}
			}
		}
		if i == 0 {
			body = bytes.Repeat([]byte("x"), cniapi.MaxRequest+1)
		}
		if failed, answer, err := call.post(body); err == nil && !failed {
			// The change was within a string that is free: undo it.
			var r cniapi.Request
			if json.Unmarshal(body, &r) != nil {
				t.Errorf("mutation %d was accepted: %.200q: %.200s", i, body, answer)
				continue
			}
			r.Command = cniapi.Del
			try("undo", r)
		}
	}
	// The plugin itself, with its own limits.
	runtime := a.Runtime(node)
	for i, env := range []map[string]string{
		{"CNI_CONTAINERID": "../../" + canaryFile, "CNI_NETNS": sandbox.Path, "CNI_IFNAME": "eth0"},
		{"CNI_CONTAINERID": "x", "CNI_NETNS": "/proc/1/ns/net", "CNI_IFNAME": "eth0"},
		{"CNI_CONTAINERID": "x", "CNI_NETNS": sandbox.Path, "CNI_IFNAME": "../../../tmp/" + canaryFile},
		{},
	} {
		out, err := runtime.Call(t.Context(), "ADD", json.RawMessage(config), env)
		if labtest.CodeOf(err) == 0 {
			t.Errorf("plugin %d: want a CNI error, got %v %s", i, err, out)
		}
	}
	huge := map[string]string{"cniVersion": "1.1.0", "name": "labtest", "type": "fairlead-cni", "x": strings.Repeat("x", 8<<20)}
	if out, err := runtime.Call(t.Context(), "ADD", huge, map[string]string{"CNI_CONTAINERID": "x", "CNI_NETNS": sandbox.Path, "CNI_IFNAME": "eth0"}); labtest.CodeOf(err) == 0 {
		t.Errorf("8 MiB on standard input: want a CNI error, got %v %s", err, out)
	}

	if diff := cmp.Diff(before, tree(t, a.Lab, node)); diff != "" {
		t.Errorf("files appeared or vanished (-before +after):\n%s", diff)
	}
	if now := a.Node(node).State.Agent.Pid; now != pid {
		t.Errorf("the agent is another process: %d, was %d", now, pid)
	}
	// And it still works.
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	if _, err := sandbox.Add(ctx); err != nil {
		t.Errorf("a good ADD behind it: %v", err)
	}
	if err := sandbox.Del(ctx); err != nil {
		t.Errorf("DEL: %v", err)
	}
	t.Logf("%d requests refused with a code", refused)
}

// hostileConfigs are standard inputs of the plugin that are no configuration.
func hostileConfigs() [][]byte {
	out := [][]byte{
		nil, []byte("null"), []byte("[]"), []byte("{}"), []byte(`{"cniVersion":1}`), []byte(`{"cniVersion":"9.9.9","name":"x","type":"y"}`),
		[]byte(strings.Repeat("[", 100000)), []byte(strings.Repeat(`{"a":`, 50000)), bytes.Repeat([]byte("x"), cniapi.MaxConfig),
		[]byte(`{"cniVersion":"1.1.0","name":"../../` + canaryFile + `","type":"fairlead-cni","standalone":true}`),
		[]byte(`{"cniVersion":"1.1.0","name":"a b;touch /tmp/` + canaryFile + `","type":"fairlead-cni","standalone":true}`),
		[]byte(`{"cniVersion":"1.1.0","name":"labtest","type":"fairlead-cni","standalone":"yes"}`),
		[]byte(`{"cniVersion":"1.1.0","name":"labtest","type":"fairlead-cni","standalone":true`),
		[]byte("\xff\xfe{\x00"),
	}
	return out
}
