package attachments

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// A9: a Subnet that is full says so, and is made larger while everything runs.
func TestScenarioA9(t *testing.T) {
	const (
		subnet = "apiVersion: fairlead.dev/v1alpha1\nkind: Subnet\nmetadata: {name: small}\n" +
			"spec: {vpc: default, transport: Overlay, encapsulation: VXLAN, blockSize: {v4: 28}, cidrs: [%s]}\n"
		usable = 13 // 16 without network, broadcast and the tunnel's address
	)
	l := labtest.Up(t, lab.Options{Nodes: 1})
	l.Apply(fmt.Sprintf(subnet, "10.77.0.0/28"))
	r := l.Runtime("node-1")
	r.Subnet = "small"
	var boxes []*labtest.Sandbox
	attach := func() error {
		s := r.Sandbox(t, fmt.Sprintf("a9-%d", len(boxes)))
		boxes = append(boxes, s)
		_, err := s.Add(t.Context())
		return err
	}
	const quiet, warned = 10, 11 // 76 % and 84 %
	for range quiet {
		if err := attach(); err != nil {
			t.Fatal(err)
		}
	}
	labtest.Eventually(t, labtest.Patience, func() error { return published(l, quiet) })
	if got := warning(l); got != "" {
		t.Errorf("a warning at 76 %%: %s", got)
	}
	for range warned - quiet {
		if err := attach(); err != nil {
			t.Fatal(err)
		}
	}
	took := labtest.Eventually(t, labtest.Patience, func() error {
		if got := warning(l); !strings.Contains(got, "11 of 13") {
			return fmt.Errorf("the warning at 84 %% is %q, want that it counts 11 of 13", got)
		}
		return nil
	})
	t.Logf("warned after %s: %s", took, warning(l))
	for range usable - warned {
		if err := attach(); err != nil {
			t.Fatal(err)
		}
	}
	err := attach()
	tryAgain(t, "one ADD too many", err, "subnet full: 13 of 13")
	t.Log(err)
	if err := r.Status(t.Context()); err != nil {
		t.Errorf("STATUS with a full Subnet: %v", err)
	}
	began := labtest.AdminGet[admin.Status](l, "node-1", "/v1/status").Started
	l.Apply(fmt.Sprintf(subnet, "10.77.0.0/28, 10.78.0.0/28"))
	took = labtest.Eventually(t, labtest.Patience, func() error {
		_, err := boxes[usable].Add(t.Context())
		return err
	})
	t.Logf("room again %s after the Subnet was made larger", took)
	if got := labtest.AdminGet[admin.Status](l, "node-1", "/v1/status").Started; !got.Equal(began) {
		t.Error("the agent was restarted")
	}
	labtest.Eventually(t, labtest.Patience, func() error {
		if got := warning(l); got != "" {
			return fmt.Errorf("still a warning: %s", got)
		}
		return nil
	})
}

// warning is the condition that says that the Subnet "small" is nearly full; empty if
// it is not.
func warning(l *labtest.Lab) string {
	for _, c := range labtest.Get[*v1alpha1.Subnet](l, datastore.KindSubnet, "small").Status.Conditions {
		if c.Type == v1alpha1.ConditionNearlyFull && c.Status == metav1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// published says whether the blocks of the Subnet "small" hold n pods.
func published(l *labtest.Lab, n int) error {
	got := 0
	for _, b := range labtest.List[*v1alpha1.IPBlock](l, datastore.KindIPBlock) {
		for _, owner := range b.Spec.Allocations {
			if b.Spec.Subnet == "small" && !strings.HasPrefix(owner.Name, "node/") {
				got++
			}
		}
	}
	if got != n {
		return fmt.Errorf("the blocks hold %d pods, want %d", got, n)
	}
	return nil
}

// records is the folder of the attachment records as a node sees it.
const records = "/var/lib/fairlead/attachments"

// A11: a disk that is full or read-only.
func TestScenarioA11(t *testing.T) {
	l := labtest.Up(t, lab.Options{Nodes: 1})
	in := l.InNode("node-1")
	mount := func(flags uintptr, options string) {
		t.Helper()
		if err := in(func() error { return unix.Mount("tmpfs", records, "tmpfs", flags, options) }); err != nil {
			t.Fatalf("mount a small disk: %v", err)
		}
	}
	l.Fault(spec.AgentStop, "node-1")
	mount(0, "size=32k,mode=0700") // eight pages: a record each
	l.Fault(spec.AgentStart, "node-1")
	l.WaitReady("node-1")
	r := l.Runtime("node-1")
	before := traces(l, "node-1")

	var boxes []*labtest.Sandbox
	var full error
	for full == nil && len(boxes) < 20 {
		s := r.Sandbox(t, fmt.Sprintf("a11-%d", len(boxes)))
		boxes = append(boxes, s)
		_, full = s.Add(t.Context())
	}
	tryAgain(t, "ADD on a full disk", full, "no space left")
	if len(boxes) < 2 {
		t.Fatal("not one ADD succeeded")
	}
	del(t, boxes[0]) // a full disk does not keep a container from being deleted
	mount(unix.MS_REMOUNT, "size=1m")
	last := boxes[len(boxes)-1]
	labtest.Eventually(t, labtest.Patience, func() error {
		_, err := last.Add(t.Context())
		return err
	})

	mount(unix.MS_REMOUNT|unix.MS_RDONLY, "size=1m")
	_, err := boxes[0].Add(t.Context())
	tryAgain(t, "ADD on a read-only disk", err, "read-only")
	del(t, boxes[1])
	del(t, boxes[1])
	_, err = boxes[1].Add(t.Context())
	tryAgain(t, "ADD on a read-only disk after DEL", err)
	mount(unix.MS_REMOUNT, "size=1m")
	labtest.Eventually(t, labtest.Patience, func() error {
		_, err := boxes[1].Add(t.Context())
		return err
	})

	for _, s := range boxes {
		del(t, s)
	}
	wantTraces(t, l, "node-1", before)
}

// A11: a record of which the end is lacking keeps its address.
func TestScenarioA11Torn(t *testing.T) {
	l := labtest.Up(t, lab.Options{Nodes: 1})
	before := traces(l, "node-1")
	r := l.Runtime("node-1")
	boxes := []*labtest.Sandbox{r.Sandbox(t, "a11-torn")}
	torn := add(t, boxes[0])
	record := tornRecord(t, l, torn)
	if got := problems(l, "node-1", record); !slices.Contains(got, "RecordUnreadable") {
		t.Errorf("the record of which half is lacking is reported as %v", got)
	}
	for i := range 40 {
		s := r.Sandbox(t, fmt.Sprintf("a11-more-%d", i))
		boxes = append(boxes, s)
		if got := add(t, s); got.Addresses[0] == torn.Addresses[0] {
			t.Fatalf("%s, whose record is unreadable, was given again", torn.Addresses[0])
		}
	}
	if err := r.Status(t.Context()); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	for _, s := range boxes {
		del(t, s)
	}
	if got := problems(l, "node-1", record); len(got) > 0 {
		t.Errorf("after DEL the record is still reported as %v", got)
	}
	wantPublished(t, l, false, torn.Addresses...)
	wantTraces(t, l, "node-1", before)
}

// tornRecord cuts a record in half while the agent is down, and returns the name
// under which the next one sets it aside.
func tornRecord(t *testing.T, l *labtest.Lab, a labtest.Answer) string {
	t.Helper()
	l.Fault(spec.AgentStop, "node-1")
	var name string
	err := l.InNode("node-1")(func() error {
		found, err := filepath.Glob(filepath.Join(records, "*_"+a.Addresses[0].String()+"*.json"))
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("the records of %s are %v, want one", a.Addresses[0], found)
		}
		if err != nil {
			return err
		}
		name = filepath.Base(found[0])
		return unix.Truncate(found[0], 100)
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Fault(spec.AgentStart, "node-1")
	l.WaitReady("node-1")
	return strings.TrimSuffix(name, ".json") + ".torn"
}
