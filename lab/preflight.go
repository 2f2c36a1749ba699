package lab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/ovshost"
)

// preflight finds out whether a lab can run here. It changes nothing: kernel
// features are tried in a namespace that is thrown away.
func preflight(o Options) error {
	if err := check(o); err != nil {
		return fmt.Errorf("%w: %w", ErrPreflight, err)
	}
	return nil
}

func check(o Options) error {
	if err := validate(o); err != nil {
		return err
	}
	if unix.Geteuid() != 0 {
		return errors.New("it needs root, to make network namespaces: run it with sudo")
	}
	const build = "build it beside this program (make build)"
	for _, p := range []struct{ what, path, next string }{
		{"the agent", o.Agent, build},
		{"the controller", o.Controller, build},
		{"the CNI plugin", o.CNI, build},
		{"etcd", o.Etcd, "install it, or leave the option out for the one that is built in"},
	} {
		if p.path == "" {
			continue
		}
		if err := checkProgram(p.path); err != nil {
			return fmt.Errorf("%s: %w; %s", p.what, err, p.next)
		}
	}
	if o.Conflist != "" {
		if _, err := os.Stat(o.Conflist); err != nil {
			return fmt.Errorf("the network configuration: %w", err)
		}
	}
	if o.HasOVS() {
		if err := ovshost.Installed(); err != nil {
			return err
		}
	}
	ns, err := netspace.New()
	if err != nil {
		return fmt.Errorf("this process may not make network namespaces (%w): run it as root outside of an unprivileged container", err)
	}
	defer ns.Close()
	return netspace.Do(ns, checkKernel)
}

// checkProgram refuses what a node could not execute: its /run is its own.
func checkProgram(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	for _, p := range []string{path, real} {
		if strings.HasPrefix(p, "/run/") || strings.HasPrefix(p, "/var/run/") {
			return fmt.Errorf("%s is below /run, which nodes of a lab do not see", p)
		}
	}
	return nil
}

// checkKernel tries the kernel features that agents need, in the calling thread's
// network namespace.
func checkKernel() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("the kernel refuses rtnetlink: %w", err)
	}
	defer h.Close()
	named := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return a
	}
	for _, l := range []netlink.Link{
		&netlink.Veth{LinkAttrs: named("probe0"), PeerName: "probe1"},
		&netlink.Bridge{LinkAttrs: named("probe2")},
		&netlink.Vxlan{LinkAttrs: named("probe3"), FlowBased: true, Port: 4789},
	} {
		if err := h.LinkAdd(l); err != nil {
			return fmt.Errorf("the kernel cannot make %s links (%w): load the module %s", l.Type(), err, l.Type())
		}
	}
	c, err := nftables.New()
	if err == nil {
		_, err = c.ListTables()
	}
	if err != nil {
		return fmt.Errorf("the kernel has no nftables (%w): load the module nf_tables", err)
	}
	return checkBPF()
}

// checkBPF loads a program that does nothing and attaches it to the loopback.
func checkBPF() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "probe", Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("the kernel loads no tc programs in eBPF: %w", err)
	}
	defer p.Close()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback: %w", err)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: lo.Index, Program: p, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		return l.Close()
	}
	// Older kernels: clsact.
	h, herr := netlink.NewHandle(unix.NETLINK_ROUTE)
	if herr != nil {
		return herr
	}
	defer h.Close()
	q := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: lo.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}, QdiscType: "clsact"}
	if qerr := h.QdiscAdd(q); qerr != nil {
		return fmt.Errorf("the kernel attaches tc programs neither by tcx (%w) nor by clsact (%w): load the module sch_ingress", err, qerr)
	}
	return nil
}
