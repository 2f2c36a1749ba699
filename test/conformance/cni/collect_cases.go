package conformance

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// collectCases are those of the commands that 1.1.0 added.
func collectCases() []testCase {
	const since = "1.1.0"
	return []testCase{
		{"STATUS succeeds on a working node", since, testStatus},
		{"GC removes what the list does not name and keeps what it names", since, testGC},
		{"GC with an empty list removes every container that is gone", since, testGCEmpty},
	}
}

func testStatus(t *testing.T, s *suite) {
	for i, plugin := range s.list.Plugins {
		out, err := s.execute(t.Context(), i, s.mustConfig(t, i, "1.1.0", nil), environment{"CNI_COMMAND": "STATUS"})
		if err != nil {
			t.Fatal(err)
		}
		if out.exit != 0 || len(bytes.TrimSpace(out.stdout)) != 0 {
			t.Errorf("%s: exit status %d, stdout %q, want 0 and nothing", plugin.Network.Type, out.exit, out.stdout)
		}
	}
}

// gc sends GC with a list. It has a cache of its own, an empty one, so that libcni
// does not send a DEL for what the plugin shall find itself.
func (s *suite) gc(t *testing.T, valid ...*attachment) {
	t.Helper()
	list := *s.list
	list.CNIVersion = "1.1.0"
	run := &nodeExec{s: s}
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, a := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: a.rt.ContainerID, IfName: a.rt.IfName})
	}
	cni := libcni.NewCNIConfigWithCacheDir(s.target.PluginDirs, t.TempDir(), run)
	if err := cni.GCNetworkList(t.Context(), &list, args); err != nil {
		t.Fatalf("GC: %v", err)
	}
	if len(bytes.TrimSpace(run.last.stdout)) != 0 {
		t.Errorf("GC printed %q, want nothing", run.last.stdout)
	}
}

func testGC(t *testing.T, s *suite) {
	kept, gone := s.eth0(t), s.eth0(t)
	result, lost := kept.mustAdd(t), gone.mustAdd(t)
	gone.box.destroy(t)
	for range 2 {
		s.gc(t, kept)
		s.wantReleased(t, addresses(lost))
		compareResult(t, kept, result)
		if err := kept.check(t.Context()); err != nil {
			t.Errorf("CHECK of the container that GC should keep: %v", err)
		}
	}
	gone.mustDel(t)
	kept.mustDel(t)
}

func testGCEmpty(t *testing.T, s *suite) {
	var lost []netip.Addr
	for range 3 {
		a := s.eth0(t)
		lost = append(lost, addresses(a.mustAdd(t))...)
		a.box.destroy(t)
	}
	s.gc(t)
	s.wantReleased(t, lost)
	a := s.eth0(t)
	compareResult(t, a, a.mustAdd(t))
}
