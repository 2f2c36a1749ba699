package forwarding

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// etcds are the datastores that F7 is about: the one that is built into the lab and a
// real one.
var etcds = map[string]string{"built in": "", "external": "/usr/bin/etcd"}

// F7: a datastore that is down, frozen or has forgotten changes nothing for packets,
// costs little, and is caught up with at once.
func TestScenarioF7DatastoreAway(t *testing.T) { away(t, 4*time.Second) }

// The same for minutes.
func TestLongScenarioF7DatastoreAway(t *testing.T) {
	labtest.Long(t)
	away(t, 2*time.Minute)
}

func away(t *testing.T, down time.Duration) {
	for name, program := range etcds {
		t.Run(name, func(t *testing.T) {
			if program != "" {
				if _, err := os.Stat(program); err != nil {
					t.Skipf("no etcd program here: %v: install etcd-server", err)
				}
			}
			l := up(t, lab.Options{Etcd: program})
			addPods(l, 2, nodes(l)...)
			tr := start(t, l, 200, time.Second, pairings(nodes(l)))
			for _, tc := range []struct{ name, away, back string }{
				{"down", "datastore-kill", "datastore-start"},
				{"frozen", "datastore-freeze", "datastore-continue"},
				{"compacted", "compact", ""},
			} {
				t.Run(tc.name, func(t *testing.T) {
					o := &outage{t: t, l: l.With(t), lists: map[string]uint64{}}
					o.begin()
					if tc.away == "compact" {
						o.forget()
						o.converges()
						o.listsAtMost(1)
						return
					}
					o.l.Fault(spec.FaultKind(tc.away), "")
					o.lasts(down)
					o.l.Fault(spec.FaultKind(tc.back), "")
					o.converges()
					o.listsAtMost(0)
				})
			}
			tr.intact()
		})
	}
}

// outage watches the agents while the datastore is away.
type outage struct {
	t     *testing.T
	l     *labtest.Lab
	lists map[string]uint64
	pod   *corev1.Pod // one that the agents know
}

func (o *outage) begin() {
	o.pod = o.l.Pod("default/a1")
	for _, n := range nodes(o.l) {
		synced(o.t, o.l, n, labtest.Patience)
		o.lists[n] = lists(status(o.l, n))
	}
}

// lists is how often everything was listed, over all kinds.
func lists(s admin.Status) uint64 {
	n := uint64(0)
	for _, f := range s.Feed {
		n += f.Lists
	}
	return n
}

// lasts lets time pass, attaches a pod that is known, and measures the agents.
func (o *outage) lasts(d time.Duration) {
	o.t.Helper()
	pids, before := map[string]int{}, map[string]time.Duration{}
	for _, n := range nodes(o.l) {
		pids[n] = agentPid(o.t, o.l, n)
	}
	// The agents notice first, which takes until a keepalive is missed at most.
	<-time.After(d / 4)
	for n, pid := range pids {
		before[n] = cpuTime(o.t, pid)
	}
	began := time.Now()
	<-time.After(d)
	for n, pid := range pids {
		if share := float64(cpuTime(o.t, pid)-before[n]) / float64(time.Since(began)); share > 0.05 {
			o.t.Errorf("the agent of %s uses %.1f %% of a core", n, share*100)
		} else {
			o.t.Logf("the agent of %s uses %.1f %% of a core", n, share*100)
		}
	}
	// A container of a known pod is made anew, as a kubelet does.
	r := o.l.Runtime("node-1")
	s := r.Sandbox(o.t, fmt.Sprintf("again-%d", time.Now().UnixNano()))
	s.Pod, s.UID = "default/a1", string(o.pod.UID)
	began = time.Now()
	answer, err := s.Add(o.t.Context())
	if err != nil {
		o.t.Errorf("ADD without the datastore: %v", err)
		return
	}
	o.t.Logf("ADD without the datastore took %s and gave %v", time.Since(began).Round(time.Millisecond), answer.Addresses)
	if err := s.Del(o.t.Context()); err != nil {
		o.t.Errorf("DEL without the datastore: %v", err)
	}
}

// forget makes the history that the agents need unavailable: they are frozen while
// it is compacted, and lose their connections.
func (o *outage) forget() {
	for _, n := range nodes(o.l) {
		o.l.Fault("agent-freeze", n)
	}
	for i := range 20 {
		o.mark(fmt.Sprintf("forgotten-%d", i))
	}
	o.l.Fault("datastore-compact", "")
	o.l.Fault("datastore-kill", "")
	o.l.Fault("datastore-start", "")
	for _, n := range nodes(o.l) {
		o.l.Fault("agent-continue", n)
	}
}

// mark changes something, and returns its resourceVersion.
func (o *outage) mark(name string) uint64 {
	o.t.Helper()
	var made datastore.Object
	labtest.Eventually(o.t, convergence, func() (err error) { // this program must reconnect too
		made, err = o.l.Store.Create(o.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		return err
	})
	rv, err := strconv.ParseUint(made.GetResourceVersion(), 10, 64)
	if err != nil {
		o.t.Fatal(err)
	}
	return rv
}

// convergence is how soon after its return the datastore is caught up with.
const convergence = 2 * time.Second

// converges wants all agents to know a change by then, or, should this program have
// been slow to write one, half a second after it.
func (o *outage) converges() {
	o.t.Helper()
	back := time.Now()
	rv := o.mark(fmt.Sprintf("back-%d", back.UnixNano()))
	for _, n := range nodes(o.l) {
		labtest.Eventually(o.t, max(convergence-time.Since(back), 500*time.Millisecond), func() error {
			s, err := labtest.TryAdminGet[admin.Status](o.l, n, "/v1/status")
			if err != nil {
				return err
			}
			if got, _ := strconv.ParseUint(s.Position[world.KindNamespace], 10, 64); got < rv {
				return fmt.Errorf("%s is at %d, want %d: %+v", n, got, rv, s.Feed)
			}
			return nil
		})
	}
	o.t.Logf("all agents knew %s after the return", time.Since(back).Round(time.Millisecond))
}

// listsAtMost wants each node to have listed each kind no more often since the begin.
func (o *outage) listsAtMost(perKind uint64) {
	o.t.Helper()
	for _, n := range nodes(o.l) {
		synced(o.t, o.l, n, labtest.Patience)
		s := status(o.l, n)
		if got := lists(s) - o.lists[n]; got > perKind*uint64(len(s.Feed)) {
			o.t.Errorf("%s has listed %d times", n, got)
		}
	}
}

// agentPid is the agent's process id in the numbers of the host.
func agentPid(t testing.TB, l *labtest.Lab, node string) int {
	t.Helper()
	pid := l.Node(node).State.Agent.Pid
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil || !strings.HasPrefix(string(raw), "fairlead-agent") {
		t.Fatalf("process %d is not the agent of %s: %q, %v", pid, node, raw, err)
	}
	return pid
}

// cpuTime is what a process has used.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	ticks := 0
	for _, i := range []int{11, 12} { // utime and stime, proc(5)
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 everywhere
}
