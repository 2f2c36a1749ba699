package preflight

import (
	"errors"
	"fmt"
	"net"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// feature is something that the kernel is tried for.
type feature struct {
	name, next string
	// try returns what was found.
	try func() (string, error)
}

func tried() []feature {
	return []feature{
		{"veth", "load the module veth", func() (string, error) {
			return "links of pods can be made", addLink(&netlink.Veth{LinkAttrs: named("probe0"), PeerName: "probe1"})
		}},
		{"vxlan", "load the module vxlan", func() (string, error) {
			return "a tunnel with metadata from outside can be made", addLink(&netlink.Vxlan{LinkAttrs: named("probe2"), FlowBased: true, Port: int(claims.VXLANPort)})
		}},
		{"nftables", "load the modules nf_tables, nft_ct, nft_chain_nat and nft_masq", tryNftables},
		{"conntrack", "load the module nf_conntrack_netlink", func() (string, error) {
			_, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(unix.AF_INET))
			return "its table can be read", err
		}},
		{"bpf", "the kernel needs CONFIG_BPF_SYSCALL, and CONFIG_NET_XGRESS or the module sch_ingress", tryBPF},
	}
}

// features tries all, in a network namespace that nobody else sees.
func features(root bool) []Check {
	var out []Check
	if !root {
		for _, f := range tried() {
			out = append(out, missing(f.name, errors.New("was not tried: that needs root"), "run it as root"))
		}
		return out
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and its namespace with it
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			for _, f := range tried() {
				found, err := f.try()
				if err != nil {
					out = append(out, missing(f.name, err, f.next))
					continue
				}
				out = append(out, ok(f.name, "%s", found))
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		out = append(out, missing("network namespaces", fmt.Errorf("this process may not make one: %w", err), "run it outside of an unprivileged container"))
	}
	return out
}

func named(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func addLink(l netlink.Link) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.LinkAdd(l)
}

// tryNftables makes a table with what ours is made of: a set of prefixes, conntrack marks,
// and masquerade.
func tryNftables() (string, error) {
	c, err := nftables.New()
	if err != nil {
		return "", err
	}
	t := c.AddTable(&nftables.Table{Name: "probe", Family: nftables.TableFamilyINet})
	if err := c.AddSet(&nftables.Set{Table: t, Name: "prefixes", KeyType: nftables.TypeIPAddr, Interval: true}, nil); err != nil {
		return "", err
	}
	nat := c.AddChain(&nftables.Chain{
		Name: "nat", Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	c.AddRule(&nftables.Rule{Table: t, Chain: nat, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, &expr.Counter{}, &expr.Masq{},
	}})
	return "tables with sets, conntrack and masquerade can be made", c.Flush()
}

// tryBPF loads a program that does nothing, and attaches it to the loopback.
func tryBPF() (string, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "probe", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return "", fmt.Errorf("no tc program can be loaded: %w", err)
	}
	defer p.Close()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return "", err
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: lo.Index, Program: p, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		return "programs are attached by tcx", l.Close()
	}
	h, herr := netlink.NewHandle(unix.NETLINK_ROUTE)
	if herr != nil {
		return "", herr
	}
	defer h.Close()
	q := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: lo.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}, QdiscType: "clsact"}
	if qerr := h.QdiscAdd(q); qerr != nil {
		return "", fmt.Errorf("tc programs are attached neither by tcx (%w) nor by clsact (%w)", err, qerr)
	}
	return "programs are attached by clsact: the kernel is older than tcx (6.6)", nil
}
