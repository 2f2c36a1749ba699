package attachments

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/process"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// crashingAgent builds an agent that dies where FAIRLEAD_CRASH_AT says.
func crashingAgent(t *testing.T) string {
	t.Helper()
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("an agent with failpoints has to be built: %v", err)
	}
	root, err := labtest.Repository()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "fairlead-agent")
	cmd := exec.CommandContext(t.Context(), tool, "build", "-tags", "failpoints", "-trimpath", "-o", path, "./cmd/fairlead-agent")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the agent with failpoints: %v\n%s", err, out)
	}
	return path
}

// A4: kill -9 at every step of ADD and DEL; then the runtime retries, deletes, or
// does nothing because the container has died as well.
func TestScenarioA4(t *testing.T) {
	labtest.Need(t)
	l := labtest.Up(t, lab.Options{Nodes: 1, Agent: crashingAgent(t)})
	r := l.Runtime("node-1")
	neighbour := r.Sandbox(t, "neighbour") // it lives through it all
	kept := add(t, neighbour)
	wantPublished(t, l, true, kept.Addresses...)
	before := traces(l, "node-1")
	free := len(allocated(t, l))

	afterwards := []struct {
		name string
		do   func(t *testing.T, s *labtest.Sandbox)
	}{
		{"retry", func(t *testing.T, s *labtest.Sandbox) {
			first := add(t, s)
			if err := s.Check(t.Context(), first); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			if again := add(t, s); again.Addresses[0] != first.Addresses[0] {
				t.Errorf("two answers: %v and %v", first.Addresses, again.Addresses)
			}
			del(t, s)
		}},
		{"delete", func(t *testing.T, s *labtest.Sandbox) { del(t, s) }},
		{"collect", func(t *testing.T, s *labtest.Sandbox) {
			if err := errors.Join(s.Remove(), r.GC(t.Context(), neighbour)); err != nil {
				t.Error(err)
			}
		}},
	}
	for i, step := range attach.Steps() {
		for _, after := range afterwards {
			t.Run(step+", then "+after.name, func(t *testing.T) {
				l := l.With(t)
				s := r.Sandbox(t, fmt.Sprintf("a4-%d-%s", i, after.name))
				crash(t, l, step, s)
				after.do(t, s)
				wantTraces(t, l, "node-1", before)
				labtest.Eventually(t, labtest.Patience, func() error {
					if got := allocated(t, l); len(got) != free {
						return fmt.Errorf("%d addresses are allocated, want %d: %v", len(got), free, got)
					}
					return nil
				})
				if err := neighbour.Check(t.Context(), kept); err != nil {
					t.Errorf("CHECK of the neighbour: %v", err)
				}
			})
		}
	}
}

// crash has the agent die after a step of ADD or DEL, and starts it again.
func crash(t *testing.T, l *labtest.Lab, step string, s *labtest.Sandbox) {
	t.Helper()
	add1 := strings.HasPrefix(step, "add:")
	if !add1 {
		add(t, s)
	}
	l.Fault(spec.AgentRestart, "node-1", "FAIRLEAD_CRASH_AT="+step)
	l.WaitReady("node-1")
	var err error
	if add1 {
		_, err = s.Add(t.Context())
	} else {
		err = s.Del(t.Context())
	}
	tryAgain(t, "a call of an agent that dies after "+step, err)
	labtest.Eventually(t, labtest.Patience, func() error {
		if got := l.Node("node-1").State.Agent; got.State != process.Exited {
			return fmt.Errorf("the agent is %s, want that it has died", got.State)
		}
		return nil
	})
	l.Fault(spec.AgentStart, "node-1")
	l.WaitReady("node-1")
}

// A4: kill -9 at any moment of many ADDs and DELs at once.
func TestLongScenarioA4Anywhere(t *testing.T) {
	labtest.Long(t)
	const rounds, containers = 40, 12
	l := labtest.Up(t, lab.Options{Nodes: 1})
	r := l.Runtime("node-1")
	before := traces(l, "node-1")
	free := len(allocated(t, l))
	for round := range rounds {
		boxes := make([]*labtest.Sandbox, containers)
		for i := range boxes {
			boxes[i] = r.Sandbox(t, fmt.Sprintf("a4-%d-%d", round, i))
		}
		killed := make(chan error, 1)
		time.AfterFunc(rand.N(60*time.Millisecond), func() {
			killed <- l.Lab.Fault(t.Context(), lab.Fault{Kind: spec.AgentKill, Node: "node-1"})
		})
		// Whatever becomes of these.
		_ = inParallel(t.Context(), containers, func(ctx context.Context, i int) error {
			_, err := boxes[i].Add(ctx)
			if i%3 == 0 {
				_ = boxes[i].Del(ctx)
			}
			return err
		})
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
		l.Fault(spec.AgentStart, "node-1")
		l.WaitReady("node-1")
		answers := make([]labtest.Answer, containers)
		err := inParallel(t.Context(), containers, func(ctx context.Context, i int) (err error) {
			switch i % 3 {
			case 0:
				return boxes[i].Del(ctx)
			case 1:
				return boxes[i].Remove() // nobody calls DEL
			}
			answers[i], err = boxes[i].Add(ctx)
			return err
		})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		distinct(t, answers)
		if err := r.GC(t.Context()); err != nil {
			t.Errorf("round %d: GC: %v", round, err)
		}
		for i := 2; i < containers; i += 3 {
			if err := boxes[i].Check(t.Context(), answers[i]); err != nil {
				t.Errorf("round %d: CHECK: %v", round, err)
			}
			del(t, boxes[i])
		}
	}
	wantTraces(t, l, "node-1", before)
	labtest.Eventually(t, labtest.Patience, func() error {
		if got := len(allocated(t, l)); got != free {
			return fmt.Errorf("%d addresses are allocated, want %d", got, free)
		}
		return nil
	})
}
