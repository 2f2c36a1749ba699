package offload

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
)

func TestFinishFrames(t *testing.T) {
	ns := netnstest.New(t)
	err := ns.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}); err != nil {
			return err
		}
		for _, want := range []bool{true, false} {
			if changed, err := FinishFrames("a"); err != nil || changed != want {
				t.Errorf("changed %v, %v, want %v", changed, err, want)
			}
		}
		for _, name := range []string{"missing", "a name that is too long for a link"} {
			if _, err := FinishFrames(name); err == nil {
				t.Errorf("link %q has been changed", name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
