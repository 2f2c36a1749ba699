package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
)

// Target is a plugin, with a network to attach containers to.
type Target struct {
	// PluginDirs are searched for the plugins that Conflist names, in order, and
	// become CNI_PATH. They must exist in the node's view of the files too.
	PluginDirs []string
	// Conflist is a network configuration list. Its network must have room for 30
	// containers, and no other containers on this node: the suite sends GC with lists
	// that name its own alone. Every case sets cniVersion itself.
	Conflist []byte
	// RunIn calls fn on a locked OS thread in the namespaces where the plugins shall
	// run, and returns its error. It is called concurrently. Nil: a fresh node.
	RunIn func(fn func() error) error
	// NetnsDir is where the containers' namespaces are mounted, as the node sees it.
	// Empty: /run/netns.
	NetnsDir string
	// Args become CNI_ARGS.
	Args [][2]string
	// Held returns the addresses that the plugin has given out and not taken back.
	// An address that rests before it is given again is not held. Nil: unobserved.
	Held func() ([]netip.Addr, error)
	// NotClaimed maps names of cases to the reason why the plugin need not pass.
	NotClaimed map[string]string
}

// testCase is one thing that a plugin must do.
type testCase struct {
	name string
	// since is the version of the specification that demands it; empty: all.
	since string
	run   func(*testing.T, *suite)
}

// suite is a target, opened.
type suite struct {
	target Target
	list   *libcni.NetworkConfigList
	// versions are those that every plugin of the list supports and libcni knows,
	// oldest first.
	versions []string
	ids      chan string
}

// cases lists the suite in the order in which it runs.
func cases() []testCase {
	return slices.Concat(versionCases(), addCases(), delCases(), checkCases(), invalidCases(), collectCases())
}

// Cases returns the names of all cases in the order in which they run.
func Cases() []string {
	var names []string
	for _, c := range cases() {
		names = append(names, c.name)
	}
	return names
}

// Run runs every case as a subtest. It needs root and skips without.
func Run(t *testing.T, target Target) {
	t.Helper()
	if target.RunIn == nil {
		target.RunIn = NewNode(t)
	}
	if target.NetnsDir == "" {
		target.NetnsDir = "/run/netns"
	}
	for _, name := range slices.Sorted(maps.Keys(target.NotClaimed)) {
		if !slices.Contains(Cases(), name) {
			t.Errorf("NotClaimed names %q, which is no case; the cases are %q", name, Cases())
		}
	}
	s := &suite{target: target, ids: make(chan string)}
	var err error
	if s.list, err = libcni.NetworkConfFromBytes(target.Conflist); err != nil {
		t.Fatalf("the network configuration list cannot be read: %v", err)
	}
	if s.versions, err = s.commonVersions(t.Context()); err != nil {
		t.Fatalf("ask the plugins for their versions: %v", err)
	}
	if len(s.versions) == 0 {
		t.Fatal("the plugins of the list have no version of the specification in common")
	}
	t.Logf("network %s, plugins %s, versions %v", s.list.Name, s.pluginTypes(), s.versions)
	go s.number(t.Context())

	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			if reason, ok := target.NotClaimed[c.name]; ok {
				t.Skipf("not claimed by the plugin: %s", reason)
			}
			if c.since != "" && !atLeast(s.newest(), c.since) {
				t.Skipf("not claimed by the plugin: VERSION lists %v, the case needs %s", s.versions, c.since)
			}
			c.run(t, s)
		})
	}
}

// number hands out container ids that no other run uses, until ctx ends.
func (s *suite) number(ctx context.Context) {
	run := time.Now().UnixNano()
	for i := 0; ; i++ {
		select {
		case s.ids <- fmt.Sprintf("conformance-%x-%d", run, i):
		case <-ctx.Done():
			return
		}
	}
}

func (s *suite) pluginTypes() string {
	var types []string
	for _, p := range s.list.Plugins {
		types = append(types, p.Network.Type)
	}
	return strings.Join(types, ", ")
}

// commonVersions asks every plugin of the list. 0.1.0 is left out: it has no
// VERSION command and no runtime that is alive.
func (s *suite) commonVersions(ctx context.Context) ([]string, error) {
	known := slices.DeleteFunc(version.All.SupportedVersions(), func(v string) bool { return v == "0.1.0" })
	for i := range s.list.Plugins {
		out, err := s.execute(ctx, i, []byte(`{"cniVersion":"1.0.0"}`), environment{"CNI_COMMAND": "VERSION"})
		if err != nil {
			return nil, err
		}
		var answer struct {
			SupportedVersions []string `json:"supportedVersions"`
		}
		if err := json.Unmarshal(out.stdout, &answer); err != nil {
			return nil, fmt.Errorf("%s answers VERSION with %q: %w", s.list.Plugins[i].Network.Type, out.stdout, err)
		}
		known = slices.DeleteFunc(known, func(v string) bool { return !slices.Contains(answer.SupportedVersions, v) })
	}
	return known, nil
}

// newest is the version in which the cases run that name none.
func (s *suite) newest() string { return s.versions[len(s.versions)-1] }

// atLeast compares two versions of the specification.
func atLeast(v, least string) bool {
	ok, err := version.GreaterThanOrEqualTo(v, least)
	return err == nil && ok
}

// held returns the addresses that the plugin says it holds, and false if it cannot
// be asked.
func (s *suite) held(t *testing.T) ([]netip.Addr, bool) {
	t.Helper()
	if s.target.Held == nil {
		t.Log("unobserved: which addresses the plugin holds (Target.Held is nil)")
		return nil, false
	}
	held, err := s.target.Held()
	if err != nil {
		t.Fatalf("ask which addresses are held: %v", err)
	}
	slices.SortFunc(held, netip.Addr.Compare)
	return held, true
}

// wantReleased checks that none of the addresses is held any more.
func (s *suite) wantReleased(t *testing.T, addrs []netip.Addr) {
	t.Helper()
	held, ok := s.held(t)
	for _, a := range addrs {
		if ok && slices.Contains(held, a) {
			t.Errorf("address %s is still held", a)
		}
	}
}

// wantHeld checks that all addresses are held.
func (s *suite) wantHeld(t *testing.T, addrs []netip.Addr) {
	t.Helper()
	held, ok := s.held(t)
	for _, a := range addrs {
		if ok && !slices.Contains(held, a) {
			t.Errorf("address %s is in use and not held any more", a)
		}
	}
}
