package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/lab"
)

// patience bounds every wait of these tests.
const patience = 20 * time.Second

func openStore(t *testing.T, l *lab.Lab) datastore.Store {
	t.Helper()
	s, err := etcd.New(etcd.Config{Endpoints: []string{l.Datastore()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func apply(t *testing.T, s datastore.Store, manifest string) {
	t.Helper()
	objects, err := datastore.DecodeManifest(strings.NewReader(manifest))
	if err != nil {
		t.Fatal(err)
	}
	datastore.DefaultNamespace(objects, "default")
	for _, o := range objects {
		if _, err := s.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits until a condition holds; it says what it is while it does not.
func eventually(t *testing.T, condition func() string) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		problem := condition()
		if problem == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("after %s: %s", patience, problem)
		}
	}
}

func ready(t *testing.T, s datastore.Store) []*corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pods, err := lab.WaitForPods(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// execOutput runs a command and returns what it printed and its status.
func execOutput(t *testing.T, l *lab.Lab, r lab.ExecRequest) (string, int) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	r.Stdout, r.Stderr = write, write
	out := make(chan string)
	go func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, read)
		out <- b.String()
	}()
	exit, err := l.Exec(t.Context(), r)
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	return <-out, exit
}

func status(t *testing.T, l *lab.Lab) lab.Status {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fault(t *testing.T, l *lab.Lab, kind, node string) {
	t.Helper()
	for _, f := range lab.Faults() {
		if string(f.Kind) == kind {
			if err := l.Fault(t.Context(), lab.Fault{Kind: f.Kind, Node: node}); err != nil {
				t.Fatalf("%s %s: %v", kind, node, err)
			}
			return
		}
	}
	t.Fatalf("no fault %q", kind)
}

// allReachAll is the judge of the stand-ins; the outside host knows no way back to
// their pods.
func allReachAll(p lab.Probe) (bool, string, bool) { return true, "all reach all", p.To != "outside" }

const manifest = `
apiVersion: v1
kind: Namespace
metadata: {name: demo}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: demo}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: any, ports: [{containerPort: 80}, {containerPort: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Pod
metadata: {name: shell, namespace: demo}
spec:
  nodeName: node-2
  containers:
  - name: shell
    image: any
    command: [sh, -c, 'echo "$GREETING from $POD at $IP on $(hostname)"; exec tail -f /dev/null']
    env:
    - {name: GREETING, value: hello}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: server, image: any, ports: [{containerPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: host, namespace: demo}
spec:
  hostNetwork: true
  nodeName: node-1
  containers: [{name: c, image: any, ports: [{containerPort: 9999}]}]
`

func TestPods(t *testing.T) {
	l := up(t, options(t))
	store := openStore(t, l)
	apply(t, store, manifest)
	began := time.Now()
	pods := ready(t, store)
	t.Logf("%d pods were ready after %s", len(pods), time.Since(began))
	placed := map[string]int{}
	for _, p := range pods {
		placed[p.Spec.NodeName]++
		if len(p.Status.PodIPs) == 0 || p.Status.HostIP == "" {
			t.Errorf("pod %s has no addresses: %+v", p.Name, p.Status)
		}
	}
	if len(pods) != 6 || placed["node-1"] < 2 || placed["node-2"] < 2 {
		t.Errorf("pods per node: %v, want 6 on both", placed)
	}
	t.Run("check", func(t *testing.T) { testPodsCheck(t, l, pods) })
	t.Run("exec", func(t *testing.T) { testPodsExec(t, l, pods) })
	t.Run("delete", func(t *testing.T) { testPodsDelete(t, l, store) })
}

func testPodsCheck(t *testing.T, l *lab.Lab, pods []*corev1.Pod) {
	t.Helper()
	r, err := l.Check(t.Context(), pods, allReachAll, true)
	if err != nil {
		t.Fatal(err)
	}
	// 4 pods with 2 ports and 2 with one, from 5 others each.
	if r.Probes != 50 || r.Agree != 50 || len(r.Results) != 50 || !r.OK() {
		t.Errorf("got %+v", r)
	}
	t.Logf("checked in %.2f s", r.Seconds)
	for _, o := range r.Extra {
		if want := o.To != "outside" || o.From == "demo/host"; o.Got != want || o.From == "demo/host" && o.Seen.Is4() && o.Seen.String() != "172.30.0.11" {
			t.Errorf("beyond pairs: %+v", o)
		}
	}
	inverted := func(p lab.Probe) (bool, string, bool) { return p.To != "demo/host", "nobody reaches the host", true }
	if r, err = l.Check(t.Context(), pods, inverted, false); err != nil {
		t.Fatal(err)
	}
	if len(r.Disagree) != 5 || r.Agree != 45 || len(r.Results) != 0 || !r.Disagree[0].Got || !strings.Contains(r.Disagree[0].Why, "nobody reaches the host") {
		t.Errorf("with a judge who is wrong about 5: %+v", r)
	}
}

func testPodsExec(t *testing.T, l *lab.Lab, pods []*corev1.Pod) {
	t.Helper()
	shell := podIP(t, pods, "demo/shell")
	want := fmt.Sprintf("hello from shell at %s on shell\n", shell)
	var node string
	for _, p := range pods {
		if p.Name == "shell" {
			node = p.Spec.NodeName
			eventually(t, func() string {
				got, err := os.ReadFile(l.ContainerLog(node, p, "shell"))
				return cmp.Diff(want, string(got)) + errText(err)
			})
		}
	}
	for _, tc := range []struct {
		name string
		r    lab.ExecRequest
		want string
		exit int
	}{
		{"in a container", lab.ExecRequest{Pod: "demo/shell", Command: []string{"sh", "-c", "hostname; ls /sys/class/net; exit 3"}}, "shell\neth0\nlo\n", 3},
		{"beside the built-in server", lab.ExecRequest{Pod: "demo/" + webPod(pods), Command: []string{"sh", "-c", "hostname; ls /sys/class/net"}}, webPod(pods) + "\neth0\nlo\n", 0},
		{"on a node", lab.ExecRequest{Node: "node-1", Command: []string{"sh", "-c", "hostname; ls /run/fairlead"}}, "node-1\ncni.sock\n", 0},
		{"outside", lab.ExecRequest{Space: "outside", Command: []string{"sh", "-c", "hostname; ls /sys/class/net"}}, "outside\neth0\nlo\n", 0},
		{"with an environment", lab.ExecRequest{Node: "node-1", Env: []string{"A=b"}, Command: []string{"sh", "-c", "echo $A"}}, "b\n", 0},
		{"of nothing", lab.ExecRequest{Node: "node-1", Command: []string{"/does/not/exist"}}, "fairlead: stat /does/not/exist: no such file or directory\n", 127},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, exit := execOutput(t, l, tc.r)
			if got != tc.want && !strings.HasPrefix(tc.want, "fairlead:") || exit != tc.exit {
				t.Errorf("got %q, exit %d; want %q, exit %d", got, exit, tc.want, tc.exit)
			}
		})
	}
}

func testPodsDelete(t *testing.T, l *lab.Lab, store datastore.Store) {
	t.Helper()
	if err := store.Delete(t.Context(), datastore.KindDeployment, datastore.Key{Namespace: "demo", Name: "web"}, datastore.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		n := 0
		for _, node := range status(t, l).Nodes {
			n += len(node.State.Pods)
		}
		return map[bool]string{false: fmt.Sprintf("%d pods run, want 2", n)}[n == 2]
	})
	for _, node := range []string{"node-1", "node-2"} {
		got, _ := execOutput(t, l, lab.ExecRequest{Node: node, Command: []string{"sh", "-c", "ls /run/netns; ls /sys/class/net | grep ^v"}})
		if want := map[string]int{"node-1": 0, "node-2": 2}[node]; strings.Count(got, "\n") != want {
			t.Errorf("namespaces and links left on %s: %q, want %d", node, got, want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func podIP(t *testing.T, pods []*corev1.Pod, name string) string {
	t.Helper()
	for _, p := range pods {
		if p.Namespace+"/"+p.Name == name {
			return p.Status.PodIP
		}
	}
	t.Fatalf("no pod %s", name)
	return ""
}

func webPod(pods []*corev1.Pod) string {
	for _, p := range pods {
		if strings.HasPrefix(p.Name, "web-") {
			return p.Name
		}
	}
	return ""
}

func TestManyPods(t *testing.T) {
	o := options(t)
	o.Nodes = 3
	l := up(t, o)
	store := openStore(t, l)
	many := strings.Replace(manifest, "replicas: 4", "replicas: 81", 1)
	many = many[:strings.Index(many, "---\napiVersion: v1\nkind: Pod")]
	began := time.Now()
	apply(t, store, many)
	pods := ready(t, store)
	t.Logf("%d pods were ready after %s", len(pods), time.Since(began))
	r, err := l.Check(t.Context(), pods, allReachAll, false)
	if err != nil {
		t.Fatal(err)
	}
	if r.Probes != 81*80*2 || !r.OK() {
		t.Errorf("%d probes, %d agree, the first that do not: %+v", r.Probes, r.Agree, r.Disagree[:min(3, len(r.Disagree))])
	}
	t.Logf("%d probes in %.2f s", r.Probes, r.Seconds)
	began = time.Now()
	if err := store.Delete(t.Context(), datastore.KindNamespace, datastore.Key{Name: "demo"}, datastore.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		n := 0
		for _, node := range status(t, l).Nodes {
			n += len(node.State.Pods)
		}
		if n > 0 {
			return fmt.Sprintf("%d pods are left", n)
		}
		return ""
	})
	t.Logf("they were gone after %s", time.Since(began))
}

func TestManyNodes(t *testing.T) {
	o := options(t)
	o.Nodes, o.Segments = 20, 4
	began := time.Now()
	l := up(t, o)
	t.Logf("20 nodes after %s", time.Since(began))
	if s := status(t, l); len(s.Nodes) != 20 || s.Nodes[19].Segment != "segment-4" {
		t.Errorf("status %+v", s)
	}
}

func TestRestartPolicies(t *testing.T) {
	l := up(t, options(t))
	store := openStore(t, l)
	for name, policy := range map[string]corev1.RestartPolicy{"never": "Never", "onfailure": "OnFailure", "always": "Always"} {
		for _, exit := range []string{"0", "1"} {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + exit},
				Spec: corev1.PodSpec{RestartPolicy: policy, Containers: []corev1.Container{
					{Name: "c", Image: "any", Command: []string{"sh", "-c", "exit " + exit}},
				}},
			}
			if _, err := store.Create(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := map[string]string{
		"never0": "Succeeded", "never1": "Failed", "onfailure0": "Succeeded",
		"onfailure1": "Running and restarted", "always0": "Running and restarted", "always1": "Running and restarted",
	}
	eventually(t, func() string {
		list, err := store.List(t.Context(), datastore.KindPod)
		if err != nil {
			return err.Error()
		}
		got := map[string]string{}
		for _, o := range list.Items {
			p := o.(*corev1.Pod)
			got[p.Name] = string(p.Status.Phase)
			if len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 1 {
				got[p.Name] += " and restarted"
			}
		}
		return cmp.Diff(want, got)
	})
}

func TestCheckWithUnreadyPods(t *testing.T) {
	l := up(t, options(t))
	store := openStore(t, l)
	pod := func(name string, change func(*corev1.PodSpec)) {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "c", Image: "any", Ports: []corev1.ContainerPort{{ContainerPort: 80, Protocol: corev1.ProtocolTCP}},
			}}},
		}
		change(&p.Spec)
		if _, err := store.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	pod("good", func(*corev1.PodSpec) {})
	pod("missing", func(s *corev1.PodSpec) { s.Containers[0].Command = []string{"/does/not/exist"} })
	pod("failing", func(s *corev1.PodSpec) { s.Containers[0].Command = []string{"sh", "-c", "echo broken >&2; exit 3"} })
	pod("homeless", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"no": "such"} })
	pod("nowhere", func(s *corev1.PodSpec) { s.NodeName = "node-77" })
	want := map[string]string{
		"default/missing":  "CrashLoopBackOff: container c: the command ended with exit code 127: fairlead: ",
		"default/failing":  "CrashLoopBackOff: container c: the command ended with exit code 3: broken",
		"default/homeless": "waits for a node: ",
		"default/nowhere":  "on node-77: the node has not taken it up",
	}
	var pods []*corev1.Pod
	eventually(t, func() string {
		ready, unready, err := lab.ReadyPods(t.Context(), store, 100*time.Millisecond)
		if err != nil {
			return err.Error()
		}
		pods = ready
		seen := 0
		for _, u := range unready {
			if !strings.Contains(u.Reason, want[u.Name]) || want[u.Name] == "" {
				return u.String()
			}
			seen++
		}
		if len(ready) != 1 || seen != len(want) {
			return fmt.Sprintf("%d pods are ready, %d are not", len(ready), seen)
		}
		return ""
	})
	o, err := store.Get(t.Context(), datastore.KindPod, datastore.Key{Namespace: "default", Name: "failing"})
	if err != nil {
		t.Fatal(err)
	}
	s := o.(*corev1.Pod).Status
	c := s.ContainerStatuses[0]
	if s.Reason != "CrashLoopBackOff" || c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff" || c.Ready ||
		c.LastTerminationState.Terminated == nil || c.LastTerminationState.Terminated.ExitCode != 3 {
		t.Errorf("status of a pod that fails: %+v", s)
	}
	r, err := l.Check(t.Context(), pods, allReachAll, false)
	if err != nil || !r.OK() {
		t.Fatalf("check of what is ready: %+v, %v", r, err)
	}
	r.Unready = append(r.Unready, lab.Unready{})
	if r.OK() {
		t.Error("a check with unready pods is OK")
	}
}

func TestExecInSpaces(t *testing.T) {
	l := up(t, options(t))
	for _, space := range []string{"fabric", "router", "outside", "control"} {
		out, exit := execOutput(t, l, lab.ExecRequest{Space: space, Command: []string{"ls", "/sys/class/net"}})
		if exit != 0 || !strings.Contains(out, "lo") {
			t.Errorf("%s: exit %d, %s", space, exit, out)
		}
	}
}
