package netspace

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// With a buffer for a few announcements most of those of many namespaces are lost.
func TestWatchLosesAnnouncements(t *testing.T) {
	probe, err := New()
	if err != nil {
		t.Skipf("network namespaces cannot be made here: %v", err)
	}
	probe.Close()
	w, err := NewWatch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := unix.SetsockoptInt(w.events.GetFd(), unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	defer func() {
		for _, ns := range held {
			ns.Close()
		}
	}()
	for range 30 {
		ns, err := New()
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, ns)
		if err := w.Add(ns); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := unix.Recvfrom(w.events.GetFd(), make([]byte, 4096), unix.MSG_PEEK|unix.MSG_DONTWAIT); !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("the buffer did not overflow (%v): the test shows nothing", err)
	}
	kept := held[0]
	for _, ns := range held[1:] {
		ns.Close()
	}
	held = []*os.File{kept}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := w.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || len(w.pending) != 1 {
		t.Fatalf("with one of 30 namespaces alive: %v, %d pending", err, len(w.pending))
	}
	kept.Close()
	held = nil
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := w.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}
