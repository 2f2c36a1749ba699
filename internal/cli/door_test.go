package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// kubelet is an API server and the kubelets behind it, as far as commands in agents' pods
// need them. A command asks the admin socket of its node, as the agent's program does.
type kubelet struct {
	t     *testing.T
	c     *cluster
	pods  []corev1.Pod
	nodes []string
	// webSockets says whether they are spoken; forbid what is refused ("pods", "nodes",
	// "get exec", "create exec").
	webSockets bool
	forbid     []string

	mu sync.Mutex
	// methods of the connections that were made for commands.
	methods []string
	running sync.WaitGroup
}

// serveCluster starts it, and makes a kubeconfig whose context has the namespace "shop".
func serveCluster(t *testing.T, c *cluster) (k *kubelet, kubeconfig string) {
	t.Helper()
	k = &kubelet{t: t, c: c, webSockets: true}
	for node := range c.sockets {
		k.nodes = append(k.nodes, node)
		k.pods = append(k.pods, agentPod(node, corev1.PodRunning))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		list := metav1.PartialObjectMetadataList{}
		for _, n := range k.nodes {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: n}})
		}
		k.answer(w, "nodes", list)
	})
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", func(w http.ResponseWriter, r *http.Request) {
		list := corev1.PodList{}
		if r.PathValue("namespace") == "kube-system" && r.URL.Query().Get("labelSelector") == agentSelector {
			list.Items = k.pods
		}
		k.answer(w, "pods", list)
	})
	mux.HandleFunc("/api/v1/namespaces/kube-system/pods/{pod}/exec", k.exec)
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		k.running.Wait()
	})
	return k, c.write("kubeconfig", `apiVersion: v1
kind: Config
clusters: [{name: k, cluster: {server: "`+s.URL+`"}}]
users: [{name: u, user: {token: canary}}]
contexts: [{name: c, context: {cluster: k, user: u, namespace: shop}}]
current-context: c
`)
}

func agentPod(node string, phase corev1.PodPhase) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "fairlead-agent-" + node},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
	}
}

func (k *kubelet) refuses(w http.ResponseWriter, verb, what string) bool {
	if !slices.Contains(k.forbid, strings.TrimSpace(verb+" "+what)) && !slices.Contains(k.forbid, what) {
		return false
	}
	s := apierrors.NewForbidden(schema.GroupResource{Resource: what}, "", fmt.Errorf("User %q cannot %s it", "eve", verb)).Status()
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(w).Encode(s)
	return true
}

func (k *kubelet) answer(w http.ResponseWriter, what string, v any) {
	if k.refuses(w, "", what) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// exec runs one command.
func (k *kubelet) exec(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	k.methods = append(k.methods, r.Method)
	k.mu.Unlock()
	if k.refuses(w, map[string]string{"GET": "get", "POST": "create"}[r.Method], "exec") {
		return
	}
	k.running.Add(1)
	defer k.running.Done()
	node := strings.TrimPrefix(r.PathValue("pod"), "fairlead-agent-")
	if wsstream.IsWebSocketRequest(r) {
		if !k.webSockets {
			http.Error(w, "no WebSockets here", http.StatusBadRequest)
			return
		}
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {
			Binary: true, Channels: []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.ReadChannel},
		}})
		_, streams, err := conn.Open(w, r)
		if err != nil {
			k.t.Error(err)
			return
		}
		defer conn.Close()
		k.command(node, r.URL.Query(), streams[0], streams[1], streams[2], streams[3])
		return
	}
	k.execOlder(w, r, node)
}

// execOlder is exec over SPDY: every stream comes by itself.
func (k *kubelet) execOlder(w http.ResponseWriter, r *http.Request, node string) {
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		k.t.Error(err)
		return
	}
	arrived := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		arrived <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	by := map[string]httpstream.Stream{}
	for len(by) < 4 {
		select {
		case s := <-arrived:
			by[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return
		}
	}
	k.command(node, r.URL.Query(), by["stdin"], by["stdout"], by["stderr"], by["error"])
	for _, s := range by {
		_ = s.Close()
	}
}

// command is "fairlead-agent admin --until-eof PATH".
func (k *kubelet) command(node string, q url.Values, stdin io.Reader, stdout, stderr, status io.Writer) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	k.running.Go(func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	})
	words := q["command"]
	if q.Get("container") != "agent" || len(words) != 4 || !slices.Equal(words[:3], []string{"/usr/bin/fairlead-agent", "admin", "--until-eof"}) {
		k.t.Errorf("the command is %q in %q", words, q.Get("container"))
		return
	}
	client := admin.NewClient(k.c.sockets[node])
	defer client.Close()
	note, err := client.Stream(ctx, words[3], stdout)
	if note != "" {
		fmt.Fprintln(stderr, "fairlead-agent:", note)
	}
	ended := metav1.Status{Status: metav1.StatusSuccess}
	if err != nil && !errors.Is(err, admin.ErrStopped) {
		fmt.Fprintln(stderr, "fairlead-agent:", err)
		ended = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: "1"}}}}
	}
	raw, _ := json.Marshal(ended)
	_, _ = status.Write(raw)
}

// runOn runs a command line about a cluster.
func runOn(t *testing.T, kubeconfig string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{version: "v1.2.3", in: strings.NewReader(""), out: &out, err: clean{&errs}, now: func() time.Time { return now }}
	a.openStore, a.agents = a.targetStore, a.targetAgents
	code := a.run(t.Context(), append(args, "--kubeconfig", kubeconfig))
	return result{code, out.String(), errs.String()}
}

// Commands that ask agents say the same through pods as through sockets.
func TestAgentsOfACluster(t *testing.T) {
	c := wellAndSick(t)
	k, kubeconfig := serveCluster(t, c)
	for _, webSockets := range []bool{true, false} {
		k.webSockets, k.methods = webSockets, nil
		for _, args := range [][]string{{"node", "status"}, {"audit"}, {"audit", "node-1"}, {"journal", "node-1"}, {"journal", "node-2"}, {"get", "peers", "-o", "json"}} {
			want, got := c.run(args...), runOn(t, kubeconfig, args...)
			if want != got {
				t.Errorf("WebSockets %v: %v: through sockets %+v, through pods %+v", webSockets, args, want, got)
			}
		}
		if fell := slices.Contains(k.methods, "POST"); fell == webSockets {
			t.Errorf("WebSockets are spoken (%v), and the older way was used (%v)", webSockets, fell)
		}
	}
}

func TestAgentsOfAClusterThatCannotBeAsked(t *testing.T) {
	c := wellAndSick(t)
	for _, tt := range []struct {
		name string
		bend func(*kubelet)
		args []string
		code int
		want []string
	}{
		{"no such node", func(*kubelet) {}, []string{"audit", "node-9"}, exitFailed, []string{`there is no node "node-9"`}},
		{"no agent on a node", func(k *kubelet) { k.nodes = append(k.nodes, "node-3") }, []string{"node", "status"}, exitFailed, []string{"node node-3: there is no agent's pod on this node", "--agent-namespace"}},
		{"a pod that waits", func(k *kubelet) { k.nodes, k.pods = []string{"n"}, []corev1.Pod{agentPod("n", corev1.PodPending)} }, []string{"audit"}, exitFailed, []string{"kube-system/fairlead-agent-n is Pending", "kubectl -n kube-system describe pod"}},
		{"elsewhere", func(*kubelet) {}, []string{"audit", "--agent-namespace", "other"}, exitFailed, []string{"no agent's pod on this node", "namespace other"}},
		{"pods are forbidden", func(k *kubelet) { k.forbid = []string{"pods"} }, []string{"audit"}, exitFailed, []string{"the verb list of pods in namespace kube-system", "eve"}},
		{"nodes are forbidden", func(k *kubelet) { k.forbid = []string{"nodes"} }, []string{"audit", "node-1"}, 0, []string{"warning: only nodes that have an agent's pod are known", "the verb list of nodes"}},
		{"commands are forbidden", func(k *kubelet) { k.forbid = []string{"exec"} }, []string{"audit", "node-1"}, exitFailed, []string{"node node-1: you may not ask the agent", "verb create", "pods/exec in namespace kube-system", "eve"}},
		{"only WebSockets are forbidden", func(k *kubelet) { k.forbid = []string{"get exec"} }, []string{"audit", "node-1"}, 0, nil},
		{"the agent refuses", func(*kubelet) {}, []string{"journal", "node-2"}, exitFailed, []string{"fairlead: node node-2: GET /v1/journal: this agent does not know the request"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, kubeconfig := serveCluster(t, c)
			tt.bend(k)
			r := runOn(t, kubeconfig, tt.args...)
			if r.code != tt.code {
				t.Errorf("exit %d, want %d: %+v", r.code, tt.code, r)
			}
			for _, want := range tt.want {
				if !strings.Contains(r.err, want) {
					t.Errorf("%q is not said: %s", want, r.err)
				}
			}
			if strings.Contains(r.err+r.out, "canary") {
				t.Error("the token is shown")
			}
		})
	}
}

// During an upgrade a node has two pods.
func TestBetterPod(t *testing.T) {
	at := func(p corev1.Pod, minute int, leaving bool) *corev1.Pod {
		p.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(minute) * time.Minute))
		if leaving {
			p.DeletionTimestamp = &p.CreationTimestamp
		}
		return &p
	}
	order := []*corev1.Pod{
		at(agentPod("n", corev1.PodFailed), 9, true),
		at(agentPod("n", corev1.PodPending), 3, false),
		at(agentPod("n", corev1.PodRunning), 2, true),
		at(agentPod("n", corev1.PodRunning), 0, false),
		at(agentPod("n", corev1.PodRunning), 1, false),
	}
	for i, p := range order {
		for j, q := range order {
			if better(p, q) != (i > j) {
				t.Errorf("pod %d is better than pod %d: %v", i, j, better(p, q))
			}
		}
	}
}

// What comes is passed on at once; the command in the pod ends when the reader leaves.
func TestStreamThroughAPod(t *testing.T) {
	c := newCluster(t)
	left := make(chan struct{}, 2)
	c.serveStreams("node-1", nil, map[string]admin.Stream{
		"GET /v1/endless": func(ctx context.Context, _ url.Values, w io.Writer) (string, error) {
			if _, err := io.WriteString(w, "first"); err != nil {
				return "", err
			}
			<-ctx.Done()
			left <- struct{}{}
			return "", ctx.Err()
		},
		"GET /v1/short": func(_ context.Context, _ url.Values, w io.Writer) (string, error) {
			_, err := w.Write(bytes.Repeat([]byte{0, 255}, 100_000))
			return "all of it", err
		},
	})
	k, kubeconfig := serveCluster(t, c)
	for _, webSockets := range []bool{true, false} {
		k.webSockets = webSockets
		a := &app{err: io.Discard, flags: targetFlags{kubeconfig: kubeconfig}}
		agents, err := a.targetAgents(t.Context(), nil)
		if err != nil || len(agents) != 1 {
			t.Fatalf("%v, %v", agents, err)
		}
		var b bytes.Buffer
		note, err := agents[0].client.Stream(t.Context(), "/v1/short", &b)
		if err != nil || note != "all of it" || b.Len() != 200_000 {
			t.Errorf("WebSockets %v: %q, %v, %d bytes", webSockets, note, err, b.Len())
		}
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := agents[0].client.Stream(ctx, "/v1/endless", w)
			done <- err
		}()
		first := make([]byte, 5)
		if _, err := io.ReadFull(r, first); err != nil || string(first) != "first" {
			t.Errorf("%q, %v", first, err)
		}
		cancel()
		if err := <-done; !errors.Is(err, admin.ErrStopped) {
			t.Errorf("WebSockets %v: %v", webSockets, err)
		}
		select {
		case <-left:
		case <-time.After(10 * time.Second):
			t.Fatalf("WebSockets %v: the command goes on without a reader", webSockets)
		}
		// A disk that is full.
		r, w = io.Pipe()
		_ = r.Close()
		if _, err := agents[0].client.Stream(t.Context(), "/v1/endless", w); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("WebSockets %v: a writer that fails: %v", webSockets, err)
		}
		select {
		case <-left:
		case <-time.After(10 * time.Second):
			t.Fatalf("WebSockets %v: the command goes on without a writer", webSockets)
		}
	}
}

// The context's namespace is that of objects that name none.
func TestNamespaceOfTheContext(t *testing.T) {
	_, kubeconfig := serveCluster(t, newCluster(t))
	for _, tt := range []struct {
		flags       targetFlags
		given, want string
	}{
		{targetFlags{kubeconfig: kubeconfig}, "", "shop"},
		{targetFlags{kubeconfig: kubeconfig}, "other", "other"},
		{targetFlags{}, "", ""},
		{targetFlags{lab: "x", plugin: true}, "", ""},
	} {
		got, err := (&app{flags: tt.flags}).namespace(tt.given)
		if err != nil || got != tt.want {
			t.Errorf("%+v, -n %q: %q, %v; want %q", tt.flags, tt.given, got, err, tt.want)
		}
	}
}
