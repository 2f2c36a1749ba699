package lab_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/fabric"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// TestMain makes the test program the processes of a lab, and, by the name that it
// is called by, stand-ins for Fairlead's own programs: an agent that makes a bridge
// and routes to the other nodes, a controller that does nothing, and a CNI plugin
// that puts a pod on the bridge. They test the lab, not Fairlead.
func TestMain(m *testing.M) {
	if handled, exit := lab.Main(os.Args[1:]); handled {
		os.Exit(exit)
	}
	var err error
	switch filepath.Base(os.Args[0]) {
	case "fairlead-agent":
		err = standInAgent()
	case "fairlead-controller":
		waitForTerm()
	case "fairlead-cni":
		err = standInPlugin()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func waitForTerm() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGTERM)
	<-c
}

const standInSocket = "/run/fairlead/cni.sock"

func nodeNumber() (int, error) {
	name, err := os.Hostname()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimPrefix(name, "node-"))
}

func standInAgent() error {
	if os.Getenv("STAND_IN_FAILS") != "" {
		return errors.New("the stand-in was told to fail")
	}
	number, err := nodeNumber()
	if err != nil {
		return err
	}
	for key, value := range map[string]string{"ip_forward": "1", "conf/all/send_redirects": "0", "conf/default/send_redirects": "0"} {
		if err := fabric.Sysctl("ipv4/"+key, value); err != nil {
			return err
		}
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "cni0"
	if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	routes := map[netip.Prefix]netip.Addr{}
	for i := 1; i <= 20; i++ {
		if i != number {
			routes[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 24)] = netip.AddrFrom4([4]byte{172, 30, 0, byte(10 + i)})
		}
	}
	gateway := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(number), 0, 1}), 24)
	if err := fabric.Configure(nil, fabric.Interface{Name: "cni0", Addresses: []netip.Prefix{gateway}}); err != nil {
		return err
	}
	for dst, via := range routes {
		// A node in another segment is no neighbour.
		one := fabric.Interface{Name: "eth0", Routes: map[netip.Prefix]netip.Addr{dst: via}}
		if err := fabric.Configure(nil, one); err != nil && !errors.Is(err, unix.ENETUNREACH) {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(standInSocket), 0o700); err != nil {
		return err
	}
	if err := os.Remove(standInSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", standInSocket)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintln(os.Stderr, "stand-in agent serves")
	waitForTerm()
	return nil
}

func standInPlugin() error {
	raw, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	_ = raw
	refuse := func(code int, err error) error {
		fmt.Printf(`{"cniVersion":"1.1.0","code":%d,"msg":%q}`, code, err.Error())
		return err
	}
	switch os.Getenv("CNI_COMMAND") {
	case "STATUS":
		c, err := net.Dial("unix", standInSocket)
		if err != nil {
			return refuse(50, err)
		}
		return c.Close()
	case "ADD":
		c, err := net.Dial("unix", standInSocket)
		if err != nil {
			return refuse(11, err)
		}
		c.Close()
		return standInAdd()
	case "DEL":
		return standInDel()
	}
	return nil
}

func standInHost() string { return "v" + os.Getenv("CNI_CONTAINERID")[:12] }

func standInAdd() error {
	ns, err := netspace.Open(os.Getenv("CNI_NETNS"))
	if err != nil {
		return err
	}
	f, err := fabric.New(1500)
	if err != nil {
		return err
	}
	if err := f.Attach("cni0", standInHost(), os.Getenv("CNI_IFNAME"), packet.MAC{}, fabric.Target{NS: ns}); err != nil {
		return err
	}
	number, err := nodeNumber()
	if err != nil {
		return err
	}
	host, err := nextAddress("/var/lib/fairlead/addresses")
	if err != nil {
		return err
	}
	address := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(number), 0, byte(host)}), 32)
	if err := fabric.Configure(ns, fabric.Interface{Name: os.Getenv("CNI_IFNAME"), Addresses: []netip.Prefix{address}}); err != nil {
		return err
	}
	// Every pod talks to its gateway alone: the kernel's neighbour table has room for
	// a thousand entries in all namespaces together.
	err = netspace.Do(ns, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		link, err := h.LinkByName(os.Getenv("CNI_IFNAME"))
		if err != nil {
			return err
		}
		return h.RouteReplace(&netlink.Route{
			LinkIndex: link.Attrs().Index, Gw: net.IPv4(10, byte(number), 0, 1), Flags: int(netlink.FLAG_ONLINK),
			Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)},
		})
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"cniVersion": "1.1.0",
		"ips":        []map[string]any{{"address": address.String()}},
	})
}

// nextAddress counts in a file, which several plugins share.
func nextAddress(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return 0, err
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return 0, err
	}
	next := 2
	if len(raw) > 0 {
		if next, err = strconv.Atoi(string(raw)); err != nil {
			return 0, err
		}
	}
	_, err = f.WriteAt([]byte(strconv.Itoa(next+1)), 0)
	return next, err
}

func standInDel() error {
	f, err := fabric.New(1500)
	if err != nil {
		return err
	}
	return f.Detach(standInHost())
}
