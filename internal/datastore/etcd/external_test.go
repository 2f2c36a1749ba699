package etcd_test

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/datastoretest"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
)

// external is an etcd of the distribution, in a process of its own.
type external struct {
	program, dir     string
	clientURL, peers string
	cmd              *exec.Cmd
	exited           chan struct{}
}

func startExternal(t *testing.T) *external {
	t.Helper()
	program, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("no program etcd in the path: install the package etcd-server")
	}
	e := &external{
		program: program, dir: socketDir(t),
		clientURL: fmt.Sprintf("http://127.0.0.1:%d", freePort(t)), peers: fmt.Sprintf("http://127.0.0.1:%d", freePort(t)),
	}
	e.start(t)
	t.Cleanup(e.kill)
	return e
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // only the number was wanted
	return l.Addr().(*net.TCPAddr).Port
}

func (e *external) start(t *testing.T) {
	t.Helper()
	e.cmd = exec.Command(e.program, "--data-dir", e.dir, "--log-level", "fatal", "--logger", "zap",
		"--listen-client-urls", e.clientURL, "--advertise-client-urls", e.clientURL,
		"--listen-peer-urls", e.peers, "--initial-advertise-peer-urls", e.peers, "--initial-cluster", "default="+e.peers)
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	e.exited = exited
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait()
		close(exited)
	}(e.cmd)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s := open(t, etcd.Config{Endpoints: []string{e.clientURL}})
	for {
		err := s.Ping(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("etcd did not come up: %v", err)
		}
	}
	_ = s.Close()
}

func (e *external) kill() {
	_ = e.cmd.Process.Kill()
	<-e.exited
}

func (e *external) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := e.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func TestContractExternal(t *testing.T) {
	e := startExternal(t)
	// Debian's etcd 3.4 answers progress requests wrongly, so there are no bookmarks.
	contract(t, e.clientURL, false, true)
}

// A frozen server looks alive to TCP. Calls end, and so do watches, within ten
// seconds; when it thaws everything goes on without a gap.
func TestFrozenServer(t *testing.T) {
	e := startExternal(t)
	s := open(t, etcd.Config{Endpoints: []string{e.clientURL}})
	rv := mustCreate(t, s, "a")
	w := mustWatch(t, s, rv)
	mustCreate(t, s, "b")
	last, _ := nextEvent(t, w)

	datastoretest.Freeze(t, e.cmd.Process)
	defer e.cmd.Process.Signal(syscall.SIGCONT) // a stopped process could not be killed gently
	frozen := time.Now()
	_, err := s.Get(t.Context(), datastore.KindNetNamespace, datastore.Key{Name: "a"})
	if !apierrors.IsTimeout(err) && !apierrors.IsServiceUnavailable(err) {
		t.Errorf("Get: %v, want Timeout or ServiceUnavailable", err)
	}
	if d := time.Since(frozen); d > etcd.DefaultRequestTimeout+time.Second {
		t.Errorf("Get took %s", d)
	}
	if event, ok := nextEvent(t, w); ok {
		t.Fatalf("event %+v of a frozen server", event)
	}
	if d := time.Since(frozen); d > 10*time.Second {
		t.Errorf("the watch ended after %s, want ten seconds at most", d)
	} else {
		t.Logf("the watch ended %s after the freeze: %v", d.Round(time.Millisecond), w.Err())
	}
	if !apierrors.IsServiceUnavailable(w.Err()) {
		t.Errorf("the watch ended with %v, want ServiceUnavailable", w.Err())
	}
	if _, err := s.Watch(t.Context(), datastore.KindNetNamespace, last.ResourceVersion); err == nil {
		t.Error("a watch of a frozen server began")
	}
	e.signal(t, syscall.SIGCONT)
	thawed := time.Now()
	resumeAfter(t, s, last.ResourceVersion)
	t.Logf("resumed %s after the thaw", time.Since(thawed).Round(time.Millisecond))
}

// resumeAfter waits until the server answers, resumes the watch, and sees the next
// object as its first event.
func resumeAfter(t *testing.T, s datastore.Store, rv string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var w datastore.Watcher
	for {
		var err error
		if w, err = s.Watch(ctx, datastore.KindNetNamespace, rv); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("no watch after 30 s: %v", err)
		}
	}
	defer w.Stop()
	mustCreate(t, s, "resumed")
	if event, ok := nextEvent(t, w); !ok || event.Object.GetName() != "resumed" {
		t.Errorf("event %+v, %v; want the next object", event, w.Err())
	}
}

// A server that is killed and comes back at once: the watch goes on by itself.
func TestKilledServer(t *testing.T) {
	e := startExternal(t)
	s := open(t, etcd.Config{Endpoints: []string{e.clientURL}})
	w := mustWatch(t, s, mustCreate(t, s, "a"))
	other := open(t, etcd.Config{Endpoints: []string{e.clientURL}})
	mustCreate(t, other, "b")
	last, _ := nextEvent(t, w)
	e.kill()
	_, err := s.List(t.Context(), datastore.KindNetNamespace)
	if !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) {
		t.Errorf("List without a server: %v", err)
	}
	e.start(t)
	mustCreate(t, open(t, etcd.Config{Endpoints: []string{e.clientURL}}), "c")
	event, ok := nextEvent(t, w)
	if !ok { // it took too long for the watch to wait: then it resumes
		if !apierrors.IsServiceUnavailable(w.Err()) {
			t.Fatalf("the watch ended with %v", w.Err())
		}
		event, _ = nextEvent(t, mustWatch(t, s, last.ResourceVersion))
	}
	if event.Object == nil || event.Object.GetName() != "c" {
		t.Errorf("event %+v, want c", event)
	}
}

// History that is compacted while the connection is away ends the watch.
func TestCompactedWhileAway(t *testing.T) {
	e := startExternal(t)
	s := open(t, etcd.Config{Endpoints: []string{e.clientURL}})
	rv := mustCreate(t, s, "a")
	for i := range 10 {
		mustCreate(t, s, fmt.Sprintf("n%d", i))
	}
	compact(t, e.clientURL)
	w, err := s.Watch(t.Context(), datastore.KindNetNamespace, rv)
	if err == nil {
		for ok := true; ok; _, ok = nextEvent(t, w) {
		}
		err = w.Err()
		w.Stop()
	}
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("watch from a compacted version: %v, want ResourceExpired", err)
	}
}
