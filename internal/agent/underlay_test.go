package agent

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestChoose(t *testing.T) {
	for _, tt := range []struct {
		name      string
		all, want []netip.Prefix
	}{
		{"nothing", nil, []netip.Prefix{}},
		{"both families, IPv4 first", prefixes("fd00:30::11/64", "172.30.0.11/24"), prefixes("172.30.0.11/24", "fd00:30::11/64")},
		{"the first of a family", prefixes("172.30.0.11/24", "172.30.0.12/24", "fd00::1/64", "fd00::2/64"), prefixes("172.30.0.11/24", "fd00::1/64")},
		{"none that stays on the link or the host", prefixes("127.0.0.1/8", "169.254.1.1/16", "::1/128", "fe80::1/64", "ff02::1/128", "0.0.0.0/0"), []netip.Prefix{}},
		{"link-local before global", prefixes("fe80::1/64", "2001:db8::1/64"), prefixes("2001:db8::1/64")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, choose(tt.all), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestUnderlayErrors(t *testing.T) {
	for _, tt := range []struct{ name, want string }{
		{"nosuchdevice0", `find the underlay interface "nosuchdevice0"`},
		{"lo", "interface lo has no address that other nodes could reach: give it one, or name another"},
	} {
		if _, err := findUnderlay(tt.name); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// A node without a default route must be told its interface.
func TestNoDefaultRoute(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread, and its namespace, end with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- errors.Join(errors.ErrUnsupported, err)
			return
		}
		_, err := findUnderlay("")
		result <- err
	}()
	err := <-result
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no network namespace can be made: ", err)
	}
	if err == nil || !strings.Contains(err.Error(), "there is no default route: name the interface in underlay.interface") {
		t.Errorf("got %v", err)
	}
}

// An interface that vanishes keeps its last facts, and the error is reported.
func TestUnderlayWatch(t *testing.T) {
	now := underlay{device: "eth0", addresses: prefixes("172.30.0.11/24"), mtu: 1500}
	var err error
	w, werr := newUnderlayWatch("eth0", func(name string) (underlay, error) {
		if name != "eth0" {
			t.Errorf("asked for %q", name)
		}
		return now, err
	})
	if werr != nil {
		t.Fatal(werr)
	}
	if changed, err := w.look(); changed || err != nil {
		t.Errorf("at rest: %t, %v", changed, err)
	}
	now.mtu = 9000
	if changed, err := w.look(); !changed || err != nil || w.get().mtu != 9000 {
		t.Errorf("another MTU: %t, %v, %+v", changed, err, w.get())
	}
	err, now = errors.New("gone"), underlay{}
	if changed, err := w.look(); changed || err == nil || w.get().mtu != 9000 {
		t.Errorf("gone: %t, %v, %+v", changed, err, w.get())
	}
	if _, err := newUnderlayWatch("eth0", func(string) (underlay, error) { return underlay{}, errors.New("gone") }); err == nil {
		t.Error("an agent starts without an underlay")
	}
}
