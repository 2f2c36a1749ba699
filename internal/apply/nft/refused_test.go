package nft

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// ownNetNS puts the test's thread into a network namespace of its own, which dies
// with the thread.
func ownNetNS(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces and nftables")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("needs network namespaces: %v", err)
	}
}

// TestRefused damages a transaction behind Validate's back: the kernel refuses it
// whole, and the error names the rule or element.
func TestRefused(t *testing.T) {
	drop := nftables.Verdict{Kind: nftables.Drop}
	good := nftables.Table{
		Name: "refused",
		Sets: []nftables.Set{{Name: "pods", Key: []nftables.Type{nftables.TypeIPv4Addr}}},
		Chains: []nftables.Chain{{Name: "forward", Base: &nftables.Base{Hook: nftables.HookForward}, Rules: []nftables.Rule{
			{Statements: []nftables.Statement{drop}, Comment: "first"}, {Statements: []nftables.Statement{nftables.Counter{}}, Comment: "second"},
		}}},
	}
	for a := netip.MustParseAddr("10.0.0.1"); len(good.Sets[0].Elements) < 9000; a = a.Next() {
		good.Sets[0].Elements = append(good.Sets[0].Elements, nftables.Element{Key: []nftables.Value{nftables.Addr(a)}})
	}
	tests := []struct {
		name   string
		damage func(*state)
		want   string
	}{
		{"rule", func(s *state) {
			e := encoder{}
			e.expr("nonsense", func() {})
			s.chains["forward"].rules[1].exprs = e.b
		}, `add rule 2 of chain forward ("second"): `},
		{"jump to nowhere", func(s *state) {
			e := encoder{}
			e.statement(nftables.Verdict{Kind: nftables.Jump, Chain: "nowhere"})
			s.chains["forward"].rules[1].exprs = e.b
		}, `add rule 2 of chain forward ("second"): no such file or directory`},
		{"element", func(s *state) {
			p := s.sets["pods"]
			p.order[7000] = "\x0a\x00\x1b\x59-"
			p.elements[p.order[7000]] = ""
		}, "add element 0a001b592d of set pods: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ownNetNS(t)
			d, err := Open(t.Context(), Config{Table: "refused"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = d.Close() }()
			want, err := encode(good, encoded{})
			if err != nil {
				t.Fatal(err)
			}
			test.damage(want)
			b := d.batch()
			diff(d.shadow, want, good, b)
			err = d.commit(b, good)
			var refused *ObjectError
			if !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("error %v, want one that begins with %q", err, test.want)
			}
			t.Log(err)
			if err := d.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !d.shadow.exists || len(d.shadow.chains)+len(d.shadow.sets) != 0 {
				t.Errorf("the refused transaction left %d chains and %d sets", len(d.shadow.chains), len(d.shadow.sets))
			}
			c, err := d.Apply(t.Context(), good)
			if err != nil || c.ElementsAdded != 9000 || c.RulesAdded != 2 {
				t.Errorf("apply after the refusal: %+v, %v", c, err)
			}
		})
	}
}

// TestLostShadow applies with a shadow that is wrong: the kernel refuses, the
// shadow is read again and the second try works.
func TestLostShadow(t *testing.T) {
	ownNetNS(t)
	d, err := Open(t.Context(), Config{Table: "lost"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	table := nftables.Table{Name: "lost", Chains: []nftables.Chain{{Name: "one"}, {Name: "two"}}}
	if _, err := d.Apply(t.Context(), table); err != nil {
		t.Fatal(err)
	}
	delete(d.shadow.chains, "two")
	d.shadow.chains["three"] = &chainState{name: "three"}
	if c, err := d.Apply(t.Context(), table); err != nil || !c.Empty() {
		t.Errorf("apply with a wrong shadow: %+v, %v; want nothing, as the kernel is right", c, err)
	}
}

// The runtime polls a socket that does not block, and wakes a thread for each answer.
func TestOnlyEventsAreWaitedFor(t *testing.T) {
	ownNetNS(t)
	for groups, want := range map[uint32]bool{0: false, 1 << (unix.NFNLGRP_NFTABLES - 1): true} {
		s, err := openSocket("", groups)
		if err != nil {
			t.Fatal(err)
		}
		flags := 0
		err = s.control(func(fd int) (err error) {
			flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			return err
		})
		if got := flags&unix.O_NONBLOCK != 0; err != nil || got != want {
			t.Errorf("groups %x: does not block: %t, %v, want %t", groups, got, err, want)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}
