package cni

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend is an Attachments and a PortChecker that remembers what it was asked.
type backend struct {
	mu      sync.Mutex
	added   map[string]attach.Result
	request attach.Request
	want    attach.Attached
	network string
	valid   []attach.Key
	err     error
	ready   error
	differs []apply.Difference
	v4, v6  bool
	// block makes Add wait for its context, and says that it does.
	block chan struct{}
}

func newBackend() *backend { return &backend{added: map[string]attach.Result{}, v4: true, v6: true} }

func (b *backend) Add(ctx context.Context, r attach.Request) (attach.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.request = r
	if b.block != nil {
		close(b.block)
		<-ctx.Done()
		return attach.Result{}, &attach.Error{Message: "add", Err: context.Cause(ctx)}
	}
	if b.err != nil {
		return attach.Result{}, b.err
	}
	a := attach.Result{MTU: 1450, Attachment: world.Attachment{
		ID: r.ContainerID + "/" + r.Interface, ContainerID: r.ContainerID, Interface: r.Interface, HostInterface: "flpabc",
		Netns: r.Netns, Pod: r.Pod, VPC: "default", Subnet: "default", MAC: packet.MAC{0x0a, 0x58, 10, 128, 0, 5},
	}}
	if b.v4 {
		a.Addresses = append(a.Addresses, netip.MustParseAddr("10.128.0.5"))
	}
	if b.v6 {
		a.Addresses = append(a.Addresses, netip.MustParseAddr("fd00:10::5"))
	}
	b.added[a.ID] = a
	return a, nil
}

func (b *backend) Del(_ context.Context, container, ifname string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.added, container+"/"+ifname)
	return b.err
}

func (b *backend) Check(_ context.Context, r attach.Request, want attach.Attached) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.request, b.want = r, want
	return b.err
}

func (b *backend) Collect(_ context.Context, network string, valid []attach.Key) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.network, b.valid = network, valid
	return b.err
}

func (b *backend) Ready() error { return b.ready }

func (b *backend) CheckPort(context.Context, string) ([]apply.Difference, error) {
	return b.differs, nil
}

func handler(b *backend) *Handler {
	return &Handler{Attachments: b, Ports: b, Log: slog.New(slog.DiscardHandler)}
}

const podArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=8c5f0b7e-0f5b-4c1d-9d65-0d1f3a3c8f11"

func call(command cniapi.Command, config string) cniapi.Request {
	return cniapi.Request{Command: command, ContainerID: "abc", Netns: "/run/netns/x", IfName: "eth0", Args: podArgs, Config: []byte(config)}
}

// ADD in every version, against golden files.
func TestAddResult(t *testing.T) {
	for _, version := range cniapi.Versions() {
		t.Run(version, func(t *testing.T) {
			b := newBackend()
			got := handler(b).Serve(t.Context(), call(cniapi.Add, `{"cniVersion":"`+version+`","name":"fairlead","type":"fairlead-cni","dns":{"nameservers":["10.96.0.10"]}}`))
			if got.Failed {
				t.Fatalf("refused: %s", got.Stdout)
			}
			golden(t, "add-"+version+".json", got.Stdout)
			want := attach.Request{
				ContainerID: "abc", Interface: "eth0", Netns: "/run/netns/x", Network: "fairlead",
				Pod: world.Owner{Namespace: "ns", Name: "web-0", UID: "8c5f0b7e-0f5b-4c1d-9d65-0d1f3a3c8f11"},
			}
			if diff := cmp.Diff(want, b.request); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	var value any
	if err := json.Unmarshal(got, &value); err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	pretty, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, append(pretty, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(pretty)); diff != "" {
		t.Error(diff)
	}
}

func TestAddResultOfOneFamily(t *testing.T) {
	for _, version := range cniapi.Versions() {
		for _, v6 := range []bool{false, true} {
			b := newBackend()
			b.v4, b.v6 = !v6, v6
			got := handler(b).Serve(t.Context(), call(cniapi.Add, `{"cniVersion":"`+version+`","name":"fairlead","type":"fairlead-cni"}`))
			if has4, has6 := strings.Contains(string(got.Stdout), "10.128.0.5/32"), strings.Contains(string(got.Stdout), "fd00:10::5/128"); got.Failed || has4 == v6 || has6 != v6 {
				t.Errorf("%s, IPv6 %v: %s", version, v6, got.Stdout)
			}
		}
	}
}

// Chained behind another plugin, ours adds to what that has made.
func TestAddKeepsPreviousResult(t *testing.T) {
	for _, version := range []string{"0.4.0", "1.1.0"} {
		got := handler(newBackend()).Serve(t.Context(), call(cniapi.Add, `{"cniVersion":"`+version+`","name":"fairlead","type":"fairlead-cni","prevResult":{
			"interfaces":[{"name":"first0","sandbox":"/run/netns/x"}],
			"ips":[{"version":"4","address":"192.0.2.1/24","interface":0}],
			"routes":[{"dst":"198.51.100.0/24"}]}}`))
		if got.Failed {
			t.Fatalf("refused: %s", got.Stdout)
		}
		golden(t, "chained-"+version+".json", got.Stdout)
	}
}

func TestOwnKeys(t *testing.T) {
	b := newBackend()
	r := call(cniapi.Add, `{"cniVersion":"1.1.0","name":"n","type":"t","standalone":true,"subnet":"edge","ipam":{},"capabilities":{"ips":true},
		"args":{"cni":{}},"cni.dev/attachments":[],"runtimeConfig":{"ips":["fd00::7/64","10.0.0.7"],"portMappings":[]},"prevResult":null}`)
	r.Args = ""
	if got := handler(b).Serve(t.Context(), r); got.Failed {
		t.Fatalf("refused: %s", got.Stdout)
	}
	want := attach.Request{
		ContainerID: "abc", Interface: "eth0", Netns: "/run/netns/x", Network: "n", Standalone: true, Subnet: "edge",
		Want: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")},
	}
	if diff := cmp.Diff(want, b.request, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestRefusals(t *testing.T) {
	const ok = `{"cniVersion":"1.1.0","name":"n","type":"t"}`
	with := func(key, value string) string {
		return `{"cniVersion":"1.1.0","name":"n","type":"t","` + key + `":` + value + `}`
	}
	edit := func(command cniapi.Command, f func(*cniapi.Request)) cniapi.Request {
		r := call(command, ok)
		f(&r)
		return r
	}
	for name, c := range map[string]struct {
		request cniapi.Request
		err     error
		ready   error
		differs []apply.Difference
		code    cniapi.Code
		version string
		msg     string
	}{
		"unknown command":           {request: edit("ADDD", func(*cniapi.Request) {}), code: 4, msg: `CNI_COMMAND is "ADDD"`},
		"no JSON":                   {request: call(cniapi.Add, "nonsense"), code: 6, msg: "is not a JSON object"},
		"an array":                  {request: call(cniapi.Add, "[]"), code: 6, msg: "is not a JSON object"},
		"nothing":                   {request: call(cniapi.Add, ""), code: 6, msg: "is not a JSON object"},
		"null":                      {request: call(cniapi.Add, "null"), code: 6, msg: "has no cniVersion"},
		"no version":                {request: call(cniapi.Add, `{"name":"n","type":"t"}`), code: 6, msg: "has no cniVersion"},
		"a version of no string":    {request: call(cniapi.Add, `{"cniVersion":1,"name":"n","type":"t"}`), code: 6, msg: "has no cniVersion"},
		"too old a version":         {request: call(cniapi.Add, `{"cniVersion":"0.1.0","name":"n","type":"t"}`), code: 1, msg: `cniVersion "0.1.0" is none that Fairlead speaks`},
		"too new a version":         {request: call(cniapi.Add, `{"cniVersion":"2.0.0","name":"n","type":"t"}`), code: 1, msg: `cniVersion "2.0.0" is none that Fairlead speaks`},
		"no name":                   {request: call(cniapi.Add, `{"cniVersion":"0.4.0","type":"t"}`), code: 7, version: "0.4.0", msg: `name ""`},
		"a name with a slash":       {request: call(cniapi.Add, `{"cniVersion":"0.4.0","name":"../x","type":"t"}`), code: 7, version: "0.4.0", msg: `name "../x"`},
		"no type":                   {request: call(cniapi.Add, `{"cniVersion":"1.0.0","name":"n"}`), code: 7, version: "1.0.0", msg: `type ""`},
		"misspelt key":              {request: call(cniapi.Add, with("standalnoe", "true")), code: 2, msg: `unknown key "standalnoe": true`},
		"wrong type of a key":       {request: call(cniapi.Add, with("standalone", `"yes"`)), code: 7, msg: `key standalone is "yes"`},
		"bad address":               {request: call(cniapi.Add, with("runtimeConfig", `{"ips":["nope"]}`)), code: 7, msg: `holds "nope"`},
		"three addresses":           {request: call(cniapi.Add, with("runtimeConfig", `{"ips":["1.1.1.1","1.1.1.2","1.1.1.3"]}`)), code: 7, msg: `holds "1.1.1.3"`},
		"no container":              {request: edit(cniapi.Add, func(r *cniapi.Request) { r.ContainerID, r.Netns = "", "" }), code: 4, msg: "the environment lacks CNI_CONTAINERID, CNI_NETNS"},
		"no container at DEL":       {request: edit(cniapi.Del, func(r *cniapi.Request) { r.ContainerID = "" }), code: 4, msg: "the environment lacks CNI_CONTAINERID"},
		"args without a value":      {request: edit(cniapi.Add, func(r *cniapi.Request) { r.Args = "K8S_POD_NAME" }), code: 4, msg: `CNI_ARGS: "K8S_POD_NAME" is not KEY=VALUE`},
		"a pod with a slash":        {request: edit(cniapi.Add, func(r *cniapi.Request) { r.Args = "K8S_POD_NAME=../a" }), code: 4, msg: `CNI_ARGS: K8S_POD_NAME is "../a"`},
		"a namespace with a dash":   {request: edit(cniapi.Add, func(r *cniapi.Request) { r.Args = "K8S_POD_NAMESPACE=-a" }), code: 4, msg: "K8S_POD_NAMESPACE"},
		"a UID with a space":        {request: edit(cniapi.Add, func(r *cniapi.Request) { r.Args = "K8S_POD_UID=a b" }), code: 4, msg: "K8S_POD_UID"},
		"try again":                 {request: call(cniapi.Add, ok), err: &attach.Error{Message: "add", Err: errors.New("two\nlines")}, code: 11, msg: "add: two lines"},
		"invalid":                   {request: call(cniapi.Add, ok), err: &attach.Error{Reason: attach.InvalidRequest, Message: "CNI_NETNS"}, code: 4, msg: "CNI_NETNS"},
		"refused":                   {request: call(cniapi.Add, ok), err: &attach.Error{Reason: attach.Refused, Message: "subnet"}, code: 7, msg: "subnet"},
		"unforeseen":                {request: call(cniapi.Del, ok), err: errors.New("boom"), code: 999, msg: "DEL failed: boom"},
		"CHECK too early":           {request: call(cniapi.Check, `{"cniVersion":"0.3.1","name":"n","type":"t"}`), code: 1, version: "0.3.1", msg: "CHECK exists since version 0.4.0"},
		"CHECK without prevResult":  {request: call(cniapi.Check, ok), code: 7, msg: "CHECK needs prevResult"},
		"CHECK of another link":     {request: call(cniapi.Check, with("prevResult", `{"interfaces":[{"name":"eth1","sandbox":"/run/netns/x"}]}`)), code: 7, msg: "prevResult names no interface eth0 in /run/netns/x"},
		"CHECK of nonsense":         {request: call(cniapi.Check, with("prevResult", `{"ips":7}`)), code: 7, msg: "prevResult of the network configuration is no result of CNI 1.1.0"},
		"CHECK of holes":            {request: call(cniapi.Check, `{"cniVersion":"0.4.0","name":"n","type":"t","prevResult":{"interfaces":[null],"ips":[null]}}`), code: 7, version: "0.4.0", msg: "is no result of CNI 0.4.0"},
		"CHECK of a stranger":       {request: call(cniapi.Check, with("prevResult", `{}`)), err: &attach.Error{Reason: attach.UnknownAttachment, Message: "who"}, code: 3, msg: "who"},
		"CHECK finds a difference":  {request: call(cniapi.Check, with("prevResult", `{}`)), differs: []apply.Difference{{Subsystem: "route", Object: "10.128.0.5", Problem: "missing"}}, code: 100, msg: "check abc/eth0: the kernel differs"},
		"GC too early":              {request: call(cniapi.GC, `{"cniVersion":"1.0.0","name":"n","type":"t"}`), code: 1, version: "1.0.0", msg: "GC exists since version 1.1.0"},
		"GC without a list":         {request: call(cniapi.GC, ok), code: 7, msg: "GC needs the key cni.dev/valid-attachments"},
		"GC with a bad list":        {request: call(cniapi.GC, with("cni.dev/valid-attachments", `{"a":1}`)), code: 7, msg: "cni.dev/valid-attachments"},
		"STATUS too early":          {request: call(cniapi.Status, `{"cniVersion":"1.0.0","name":"n","type":"t"}`), code: 1, version: "1.0.0", msg: "STATUS exists since"},
		"STATUS before the sync":    {request: call(cniapi.Status, ok), ready: errors.New("not read yet"), code: 50, msg: "fairlead-agent cannot serve ADD: not read yet"},
		"a megabyte of unknown key": {request: call(cniapi.Add, with(strings.Repeat("k", 1<<20), `"`+strings.Repeat("v", 1<<20)+`"`)), code: 2, msg: "unknown key"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend()
			b.err, b.ready, b.differs = c.err, c.ready, c.differs
			h := handler(b)
			var observed cniapi.Code
			h.Observe = func(_ cniapi.Command, code cniapi.Code, _ time.Duration) { observed = code }
			got := h.Serve(t.Context(), c.request)
			var e cniapi.Error
			if err := json.Unmarshal(got.Stdout, &e); err != nil || !got.Failed {
				t.Fatalf("failed %v: %s", got.Failed, got.Stdout)
			}
			version := c.version
			if version == "" {
				version = cniapi.Version
			}
			if e.Code != c.code || observed != c.code || e.CNIVersion != version || !strings.Contains(e.Msg, c.msg) || strings.Contains(e.Msg, "\n") || len(got.Stdout) > 1000 {
				t.Errorf("observed %d: %s", observed, got.Stdout)
			}
		})
	}
}

// What ADD refuses must not keep a runtime from deleting.
func TestDelIsLenient(t *testing.T) {
	for _, config := range []string{
		`{"cniVersion":"1.1.0","name":"n","type":"t","misspelt":1,"standalone":"yes"}`,
		`{"cniVersion":"0.2.0","name":"n","type":"t","prevResult":{"ips":[null]}}`,
	} {
		r := call(cniapi.Del, config)
		r.Netns, r.Args = "", "broken"
		if got := handler(newBackend()).Serve(t.Context(), r); got.Failed || len(got.Stdout) != 0 {
			t.Errorf("%s: %s", config, got.Stdout)
		}
	}
}

func TestCheckPassesWhatTheRuntimeBelieves(t *testing.T) {
	for _, version := range cniapi.Versions()[3:] {
		b := newBackend()
		h := handler(b)
		config := `{"cniVersion":"` + version + `","name":"n","type":"t"`
		added := h.Serve(t.Context(), call(cniapi.Add, config+"}"))
		got := h.Serve(t.Context(), call(cniapi.Check, config+`,"prevResult":`+string(added.Stdout)+"}"))
		if got.Failed || len(got.Stdout) != 0 {
			t.Fatalf("%s: %s", version, got.Stdout)
		}
		want := attach.Attached{Addresses: []netip.Addr{netip.MustParseAddr("10.128.0.5"), netip.MustParseAddr("fd00:10::5")}, MAC: "0a:58:0a:80:00:05"}
		if diff := cmp.Diff(want, b.want, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", version, diff)
		}
	}
}

func TestCollectPassesTheList(t *testing.T) {
	b := newBackend()
	got := handler(b).Serve(t.Context(), call(cniapi.GC, `{"cniVersion":"1.1.0","name":"n","type":"t","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`))
	if got.Failed || b.network != "n" || len(b.valid) != 1 || b.valid[0] != (attach.Key{ContainerID: "a", Interface: "eth0"}) {
		t.Errorf("%s: %+v", got.Stdout, b.valid)
	}
	got = handler(b).Serve(t.Context(), call(cniapi.GC, `{"cniVersion":"1.1.0","name":"n","type":"t","cni.dev/valid-attachments":null}`))
	if got.Failed || len(b.valid) != 0 {
		t.Errorf("%s: %+v", got.Stdout, b.valid)
	}
}

// S7: whatever is sent, there is a well-formed answer.
func FuzzServe(f *testing.F) {
	f.Add("ADD", "abc", "/run/netns/x", "eth0", podArgs, []byte(`{"cniVersion":"1.1.0","name":"n","type":"t"}`))
	f.Add("CHECK", "abc", "/run/netns/x", "eth0", "", []byte(`{"cniVersion":"0.4.0","name":"n","type":"t","prevResult":{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/x"}],"ips":[{"version":"4","address":"10.0.0.1/24","interface":0}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{}}}`))
	f.Add("ADD", "abc", "/x", "eth0", "", []byte(`{"cniVersion":"0.2.0","name":"n","type":"t","standalone":true,"prevResult":{"ip4":{"ip":"10.0.0.1/24","routes":[{"dst":"0.0.0.0/0"}]},"ip6":null}}`))
	f.Add("GC", "", "", "", "", []byte(`{"cniVersion":"1.1.0","name":"n","type":"t","cni.dev/valid-attachments":[{"containerID":"a","ifname":"b"},null]}`))
	f.Add("DEL", "../../etc", "/proc/../x", "a/b", ";;=", []byte("\xff\x00"))
	f.Fuzz(func(t *testing.T, command, container, netns, ifname, args string, config []byte) {
		got := handler(newBackend()).Serve(t.Context(), cniapi.Request{
			Command: cniapi.Command(command), ContainerID: container, Netns: netns, IfName: ifname, Args: args, Config: config,
		})
		if len(got.Stdout) > 0 && !json.Valid(got.Stdout) {
			t.Errorf("no JSON: %q", got.Stdout)
		}
		if got.Failed {
			var e cniapi.Error
			if err := json.Unmarshal(got.Stdout, &e); err != nil || e.Code == 0 || e.Msg == "" {
				t.Errorf("no CNI error: %q", got.Stdout)
			}
		}
	})
}
