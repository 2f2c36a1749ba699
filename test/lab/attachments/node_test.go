package attachments

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

var byAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// attachments are those that a node's agent has, by ID.
func attachments(l *labtest.Lab, node string) map[string]admin.Attachment {
	out := map[string]admin.Attachment{}
	for _, a := range labtest.AdminGet[[]admin.Attachment](l, node, "/v1/attachments") {
		out[a.ID] = a
	}
	return out
}

// problems are those of one object that an agent reports.
func problems(l *labtest.Lab, node, object string) []string {
	var out []string
	for _, p := range labtest.AdminGet[admin.Status](l, node, "/v1/status").Problems {
		if p.Object == object {
			out = append(out, p.Reason)
		}
	}
	return out
}

// allocated is what the blocks in the datastore say: who has an address. It fails the
// test if an address is in two blocks.
func allocated(t *testing.T, l *labtest.Lab) map[netip.Addr]v1alpha1.AddressOwner {
	t.Helper()
	out := map[netip.Addr]v1alpha1.AddressOwner{}
	for _, b := range labtest.List[*v1alpha1.IPBlock](l, datastore.KindIPBlock) {
		for text, owner := range b.Spec.Allocations {
			a, err := netip.ParseAddr(text)
			if err != nil {
				t.Fatalf("IPBlock %s: %v", b.Name, err)
			}
			if other, ok := out[a]; ok {
				t.Errorf("%s belongs to %+v and, in IPBlock %s, to %+v", a, other, b.Name, owner)
			}
			out[a] = owner
		}
	}
	return out
}

// wantPublished waits until the blocks say who has these addresses, or that nobody
// has them.
func wantPublished(t *testing.T, l *labtest.Lab, held bool, addrs ...netip.Addr) {
	t.Helper()
	labtest.Eventually(t, labtest.Patience, func() error {
		all := allocated(t, l)
		for _, a := range addrs {
			if owner, ok := all[a]; ok != held {
				return fmt.Errorf("the blocks say that %s is held: %v (%+v), want %v", a, ok, owner, held)
			}
		}
		return nil
	})
}

// traces are what attachments leave on a node: links, and the routes, neighbours,
// rules and set elements that name them, and records.
func traces(l *labtest.Lab, node string) []string {
	script := `ip -o link; ip -4 route show table all; ip -6 route show table all; ip neigh show nud all
		echo rules; ip -4 rule; ip -6 rule; nft list ruleset
		echo records; ls /var/lib/fairlead/attachments; ls /run/netns`
	var out []string
	for _, line := range strings.Split(l.MustExec(node, "sh", "-c", script), "\n") {
		line = strings.TrimSpace(line)
		ours := strings.Contains(line, claims.PortPrefix) && !strings.Contains(line, `"`+claims.PortPrefix+`*"`) || strings.Contains(line, claims.TemporaryLinks) ||
			strings.Contains(line, "from all") || strings.HasSuffix(line, ".json") || strings.HasSuffix(line, ".torn")
		// Graves rest for their half a minute.
		if ours && !strings.HasSuffix(line, ".gone") {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out
}

// wantTraces waits until a node has the traces that it had before.
func wantTraces(t *testing.T, l *labtest.Lab, node string, before []string) {
	t.Helper()
	labtest.Eventually(t, labtest.Patience, func() error {
		if diff := cmp.Diff(before, traces(l, node)); diff != "" {
			return fmt.Errorf("node %s is not as before (-before +after):\n%s", node, diff)
		}
		return nil
	})
}

// add is ADD, which must succeed.
func add(t *testing.T, s *labtest.Sandbox) labtest.Answer {
	t.Helper()
	a, err := s.Add(t.Context())
	if err != nil {
		t.Fatalf("ADD for %s: %v", s.ID, err)
	}
	return a
}

// del is DEL, which must succeed.
func del(t *testing.T, s *labtest.Sandbox) {
	t.Helper()
	if err := s.Del(t.Context()); err != nil {
		t.Fatalf("DEL for %s: %v", s.ID, err)
	}
}

// tryAgain checks that a call was refused with code 11 and a cause on one line.
func tryAgain(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	refused(t, what, err, 11, words...)
}

func refused(t *testing.T, what string, err error, code uint, words ...string) {
	t.Helper()
	if got := labtest.CodeOf(err); got != code {
		t.Errorf("%s: %v, want a CNI error with code %d", what, err, code)
		return
	}
	text := err.Error()
	if strings.Contains(text, "\n") || len(text) < 20 {
		t.Errorf("%s: the message is no cause on one line: %q", what, text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: %q, want it to say %q", what, text, w)
		}
	}
}

// inParallel calls fn for 0 to n-1 at once and joins the errors.
func inParallel(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	errs := make([]error, n)
	done := make(chan struct{})
	for i := range n {
		go func() {
			defer func() { done <- struct{}{} }()
			if err := fn(ctx, i); err != nil {
				errs[i] = fmt.Errorf("%d: %w", i, err)
			}
		}()
	}
	for range n {
		<-done
	}
	return errors.Join(errs...)
}
