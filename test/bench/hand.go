package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// hand is the path that a person would build with ip and nft alone: two nodes on a
// bridge, kernel VXLAN between them, routed veths to the pods, conntrack and one
// masquerade rule. It is laid out as the lab is: the same devices at the same MTUs,
// so that only what Fairlead adds differs.
type hand struct {
	spaces map[string]*os.File
}

// handSetup is what is typed in each namespace; %NAME% is another one's path.
var handSetup = []struct{ space, program, input string }{
	{"fabric", "ip", `link add br0 type bridge mcast_snooping 0
link set br0 up
link add port-a type veth peer name eth0 netns %node-a%
link add port-b type veth peer name eth0 netns %node-b%
link set port-a master br0 up
link set port-b master br0 up`},
	{"node-a", "ip", `link set lo up
addr add 10.212.0.1/24 dev eth0
link set eth0 up
link add vx0 mtu 1450 address 02:77:00:00:00:01 type vxlan id 77 dstport 4789 dev eth0 local 10.212.0.1 nolearning
link set vx0 up
neigh add 10.211.2.0 lladdr 02:77:00:00:00:02 dev vx0 nud permanent
route add 10.211.2.0/24 via 10.211.2.0 dev vx0 onlink
link add pod1 mtu 1450 address 02:77:01:00:00:01 type veth peer name eth0 address 02:77:01:00:01:10 mtu 1450 netns %pod-1%
link add pod2 mtu 1450 address 02:77:01:00:00:01 type veth peer name eth0 address 02:77:01:00:01:11 mtu 1450 netns %pod-2%
link set pod1 up
link set pod2 up
neigh add 10.211.1.10 lladdr 02:77:01:00:01:10 dev pod1 nud permanent
neigh add 10.211.1.11 lladdr 02:77:01:00:01:11 dev pod2 nud permanent
route add 10.211.1.10/32 dev pod1
route add 10.211.1.11/32 dev pod2`},
	{"node-a", "bridge", "fdb append 02:77:00:00:00:02 dev vx0 dst 10.212.0.2"},
	{"node-b", "ip", `link set lo up
addr add 10.212.0.2/24 dev eth0
link set eth0 up
link add vx0 mtu 1450 address 02:77:00:00:00:02 type vxlan id 77 dstport 4789 dev eth0 local 10.212.0.2 nolearning
link set vx0 up
neigh add 10.211.1.0 lladdr 02:77:00:00:00:01 dev vx0 nud permanent
route add 10.211.1.0/24 via 10.211.1.0 dev vx0 onlink
link add pod3 mtu 1450 address 02:77:01:00:00:01 type veth peer name eth0 address 02:77:01:00:02:10 mtu 1450 netns %pod-3%
link set pod3 up
neigh add 10.211.2.10 lladdr 02:77:01:00:02:10 dev pod3 nud permanent
route add 10.211.2.10/32 dev pod3`},
	{"node-b", "bridge", "fdb append 02:77:00:00:00:01 dev vx0 dst 10.212.0.1"},
	{"pod-1", "ip", handPod("10.211.1.10")},
	{"pod-2", "ip", handPod("10.211.1.11")},
	{"pod-3", "ip", handPod("10.211.2.10")},
	{"node-a", "nft", handTable},
	{"node-b", "nft", handTable},
}

func handPod(addr string) string {
	return `link set lo up
addr add ` + addr + `/32 dev eth0
link set eth0 up
neigh add 169.254.1.1 lladdr 02:77:01:00:00:01 dev eth0 nud permanent
route add 169.254.1.1/32 dev eth0 scope link
route add default via 169.254.1.1 dev eth0`
}

const handTable = `table ip hand {
	chain postrouting {
		type nat hook postrouting priority 100;
		ip saddr 10.211.0.0/16 ip daddr != 10.211.0.0/16 masquerade
	}
}`

// buildHand builds the path. Close takes it away.
func buildHand(ctx context.Context) (_ *hand, err error) {
	h := &hand{spaces: map[string]*os.File{}}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	var paths []string
	for _, name := range []string{"fabric", "node-a", "node-b", "pod-1", "pod-2", "pod-3"} {
		ns, err := netspace.New()
		if err != nil {
			return nil, err
		}
		h.spaces[name] = ns
		paths = append(paths, "%"+name+"%", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd()))
	}
	for _, node := range []string{"node-a", "node-b"} {
		err := netspace.Do(h.spaces[node], func() error {
			return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
		})
		if err != nil {
			return nil, fmt.Errorf("forward in %s: %w", node, err)
		}
	}
	fill := strings.NewReplacer(paths...)
	for _, s := range handSetup {
		if err := typed(ctx, h.spaces[s.space], s.program, fill.Replace(s.input)); err != nil {
			return nil, fmt.Errorf("build the path by hand, in %s: %w", s.space, err)
		}
	}
	return h, nil
}

// typed runs a program in a namespace as a person does, with its input.
func typed(ctx context.Context, ns *os.File, program, input string) error {
	_, err := typedOutput(ctx, ns, program, input)
	return err
}

// typedOutput is typed, with what the program prints.
func typedOutput(ctx context.Context, ns *os.File, program, input string) (out []byte, err error) {
	args := map[string][]string{"ip": {"-batch", "-"}, "bridge": {"-batch", "-"}, "nft": {"-f", "-"}}[program]
	path, err := exec.LookPath(program)
	if err != nil {
		path = filepath.Join("/usr/sbin", program)
	}
	err = netspace.Do(ns, func() error {
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Stdin = strings.NewReader(input + "\n")
		if out, err = cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(out))
		}
		return nil
	})
	return out, err
}

func (h *hand) close() error {
	var errs []error
	for _, ns := range h.spaces {
		errs = append(errs, ns.Close())
	}
	return errors.Join(errs...)
}

// near and far are the pods of one node and of two.
func (h *hand) near() endpoints {
	return endpoints{client: h.spaces["pod-1"], server: h.spaces["pod-2"], addr: netip.MustParseAddr("10.211.1.11")}
}

func (h *hand) far() endpoints {
	return endpoints{client: h.spaces["pod-1"], server: h.spaces["pod-3"], addr: netip.MustParseAddr("10.211.2.10")}
}
