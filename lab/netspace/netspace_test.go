package netspace_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

func needRoot(t *testing.T) {
	t.Helper()
	f, err := netspace.New()
	if err != nil {
		t.Skipf("network namespaces cannot be made here: %v", err)
	}
	f.Close()
}

func TestDoComesBack(t *testing.T) {
	needRoot(t)
	ns, err := netspace.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	want, err := netspace.IDOf(ns)
	if err != nil {
		t.Fatal(err)
	}
	self := func() netspace.ID {
		f, err := os.Open(netspace.Self)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		id, err := netspace.IDOf(f)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	home := self()
	for range 50 {
		var got netspace.ID
		if err := netspace.Do(ns, func() error { got = self(); return nil }); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("inside Do: namespace %v, want %v", got, want)
		}
	}
	if got := self(); got != home {
		t.Errorf("after Do: namespace %v, want %v", got, home)
	}
}

func TestWatch(t *testing.T) {
	needRoot(t)
	w, err := netspace.NewWatch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var held []*os.File
	for range 3 {
		ns, err := netspace.New()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Add(ns); err != nil {
			t.Fatal(err)
		}
		if err := w.Add(ns); err != nil {
			t.Fatalf("watch the same namespace again: %v", err)
		}
		held = append(held, ns)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := w.Wait(ctx); err == nil {
		t.Fatal("Wait returned while three namespaces are open")
	}
	for _, ns := range held {
		ns.Close()
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := w.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}
