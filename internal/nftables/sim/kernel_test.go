package sim_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	n "github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

var macs = map[string]packet.MAC{
	cli: {2, 0, 0, 0, 1, 2}, srv: {2, 0, 0, 0, 2, 2}, "node " + cli: {2, 0, 0, 0, 1, 1}, "node " + srv: {2, 0, 0, 0, 2, 1},
}

// namespace makes a network namespace that lives as long as the test.
func namespace(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces and nftables")
	}
	path, failed, done := make(chan string, 1), make(chan error, 1), make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread dies with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			failed <- err
			return
		}
		file, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			failed <- err
			return
		}
		defer func() { _ = file.Close() }()
		path <- fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())
		<-done
	})
	t.Cleanup(func() {
		close(done)
		ended.Wait()
	})
	select {
	case err := <-failed:
		t.Skipf("needs network namespaces: %v", err)
		return ""
	case p := <-path:
		return p
	}
}

// inside runs fn on a thread within a network namespace.
func inside(t *testing.T, ns string, fn func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		file, err := os.Open(ns)
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
			_ = file.Close()
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// machine is a real one: a namespace that forwards between two links, whose other
// ends are in a second namespace, where nobody answers.
type machine struct {
	node, ends string
	sockets    map[string]int // by link
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the ip program to build the network")
	}
	m := &machine{node: namespace(t), ends: namespace(t), sockets: map[string]int{}}
	m.sysctl(t)
	for _, link := range ifnames {
		m.run(t, m.node, fmt.Sprintf("link add %s address %s type veth peer name %s address %s netns %s", link, macs["node "+link], link, macs[link], m.ends))
		m.run(t, m.node, "link set "+link+" up")
		m.run(t, m.ends, "link set "+link+" up")
	}
	for i, a := range own {
		bits := "/24"
		if a.Is6() {
			bits = "/64 nodad"
		}
		m.run(t, m.node, fmt.Sprintf("addr add %s%s dev %s", a, bits, ifnames[i%2]))
	}
	for _, link := range ifnames {
		for _, a := range ends[link] {
			m.run(t, m.node, fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", a, macs[link], link))
		}
		m.sockets[link] = m.socket(t, link)
	}
	return m
}

func (m *machine) run(t *testing.T, ns, args string) {
	t.Helper()
	inside(t, ns, func() error {
		cmd := exec.CommandContext(t.Context(), "ip", strings.Fields(args)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
		return nil
	})
}

func (m *machine) sysctl(t *testing.T) {
	t.Helper()
	inside(t, m.ends, func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0o644) })
	inside(t, m.node, func() error {
		for key, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
			"ipv4/conf/all/send_redirects": "0", "ipv4/conf/default/send_redirects": "0",
		} {
			if err := os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

const allProtocols = 0x0300 // ETH_P_ALL in network order

// socket sends and hears whole frames at the far end of a link.
func (m *machine) socket(t *testing.T, link string) int {
	t.Helper()
	fd := -1
	inside(t, m.ends, func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, allProtocols); err != nil {
			return err
		}
		ifreq, err := unix.NewIfreq(link)
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifreq); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allProtocols, Ifindex: int(ifreq.Uint32())})
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func (m *machine) send(t *testing.T, p sim.Packet) {
	t.Helper()
	if _, err := unix.Write(m.sockets[p.In], frame(p)); err != nil {
		t.Fatalf("send %s: %v", p, err)
	}
}

// receive returns the next packet that leaves by a link, if one comes in time.
func (m *machine) receive(t *testing.T, link string, within time.Duration) (sim.Packet, bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	buf := make([]byte, 2000)
	for {
		size, from, err := unix.Recvfrom(m.sockets[link], buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			left := time.Until(deadline)
			if left <= 0 {
				return sim.Packet{}, false
			}
			fds := []unix.PollFd{{Fd: int32(m.sockets[link]), Events: unix.POLLIN}}
			if _, err := unix.Poll(fds, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
				t.Fatal(err)
			}
			continue
		case err != nil:
			t.Fatal(err)
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if p, ok := parse(buf[:size]); ok {
			return p, true
		}
	}
}

// frame is a packet on the wire, checksums and all.
func frame(p sim.Packet) []byte {
	var l4 []byte
	switch p.Protocol {
	case packet.UDP:
		l4 = binary.BigEndian.AppendUint16(nil, p.SrcPort)
		l4 = binary.BigEndian.AppendUint16(l4, p.DstPort)
		l4 = append(l4, 0, 8, 0, 0)
		binary.BigEndian.PutUint16(l4[6:], checksum(pseudo(p, len(l4)), l4))
	case packet.TCP:
		l4 = make([]byte, 20)
		binary.BigEndian.PutUint16(l4, p.SrcPort)
		binary.BigEndian.PutUint16(l4[2:], p.DstPort)
		l4[12], l4[13], l4[14] = 5<<4, byte(p.TCPFlags), 0x10
		binary.BigEndian.PutUint16(l4[16:], checksum(pseudo(p, len(l4)), l4))
	default:
		l4 = make([]byte, 8)
		l4[0] = p.ICMPType
		binary.BigEndian.PutUint16(l4[4:], p.ICMPID)
		binary.BigEndian.PutUint16(l4[2:], checksum(nil, l4))
	}
	out := append(append([]byte{}, p.EtherDst[:]...), p.EtherSrc[:]...)
	if p.Src.Is4() {
		h := []byte{0x45, 0, 0, byte(20 + len(l4)), 0, 0, 0, 0, 64, byte(p.Protocol), 0, 0}
		h = append(append(h, p.Src.AsSlice()...), p.Dst.AsSlice()...)
		binary.BigEndian.PutUint16(h[10:], checksum(nil, h))
		return append(append(append(out, 8, 0), h...), l4...)
	}
	h := []byte{0x60, 0, 0, 0, 0, byte(len(l4)), byte(p.Protocol), 64}
	h = append(append(h, p.Src.AsSlice()...), p.Dst.AsSlice()...)
	return append(append(append(out, 0x86, 0xdd), h...), l4...)
}

func pseudo(p sim.Packet, size int) []byte {
	b := append(append([]byte{}, p.Src.AsSlice()...), p.Dst.AsSlice()...)
	return append(b, 0, byte(p.Protocol), 0, byte(size))
}

func checksum(a, b []byte) uint16 {
	sum := uint32(0)
	for _, part := range [][]byte{a, b} {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// parse reads the tests' own packets and no others.
func parse(b []byte) (p sim.Packet, ok bool) {
	if len(b) < 14+20+8 {
		return p, false
	}
	kind, ip := binary.BigEndian.Uint16(b[12:]), b[14:]
	var l4 []byte
	switch {
	case kind == unix.ETH_P_IP:
		p.Src, p.Dst, p.Protocol = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20])), packet.Protocol(ip[9])
		l4 = ip[20:]
	case kind == unix.ETH_P_IPV6 && len(ip) >= 48:
		p.Src, p.Dst, p.Protocol = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40])), packet.Protocol(ip[6])
		l4 = ip[40:]
	default:
		return p, false
	}
	switch p.Protocol {
	case packet.UDP, packet.TCP:
		p.SrcPort, p.DstPort = binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:])
		if p.Protocol == packet.TCP {
			p.TCPFlags = uint32(l4[13])
		}
	case packet.ICMP:
		p.ICMPType, p.ICMPID = l4[0], binary.BigEndian.Uint16(l4[4:])
	default:
		return p, false
	}
	return p, true
}

// routing of the machine.
type routing struct{}

func (routing) Route(p sim.Packet) sim.Route {
	if slices.Contains(own, p.Dst) {
		return sim.Route{Local: true}
	}
	for _, link := range ifnames {
		if slices.Contains(ends[link], p.Dst) {
			return sim.Route{Out: link}
		}
	}
	return sim.Route{Why: "no route"}
}

func (routing) Source(out string, is4 bool) (netip.Addr, bool) {
	i := slices.Index(ifnames, out)
	if !is4 {
		i += 2
	}
	return own[i], true
}

// TestAgreesWithKernel puts random tables into a real kernel and sends packets through
// it: each must arrive as, and meet the counters that, the simulator says.
func TestAgreesWithKernel(t *testing.T) {
	m := newMachine(t)
	d, err := nft.Open(t.Context(), nft.Config{Table: "fairlead", NetNS: m.node})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skipf("needs nf_tables: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	tables := 600
	if testing.Short() {
		tables = 50
	}
	k := &kernel{machine: m, driver: d, node: &sim.Node{Routing: routing{}, Trace: true}}
	for id := range tables {
		r := rand.New(rand.NewPCG(uint64(id), 1))
		ports := uint16(2000 + id%600*100)
		tab := table(r, id, ports)
		k.compare(t, tab, packets(r, ports))
		if t.Failed() {
			t.Fatalf("table %d", id)
		}
	}
	t.Logf("%d tables, %d packets, %d delivered, %d rules counted", tables, k.sent, k.delivered, k.counted)
	if k.delivered == 0 || k.delivered == k.sent || k.counted == 0 {
		t.Error("nothing was told apart")
	}
}

type kernel struct {
	machine *machine
	driver  *nft.Driver
	node    *sim.Node
	// unknown: the kernel has chosen a port of which the simulator cannot know.
	unknown                  bool
	sent, delivered, counted int
}

func (k *kernel) compare(t *testing.T, tab n.Table, script []sent) {
	t.Helper()
	if _, err := k.driver.Apply(t.Context(), tab); err != nil {
		t.Fatalf("apply: %v\n%s", err, tab)
	}
	k.node.Rules, k.unknown = sim.New(tab), false
	want := map[string]uint64{}
	var log strings.Builder
	var last sim.Packet
	for _, s := range script {
		p := s.p
		if s.answers {
			if !last.Src.IsValid() {
				continue
			}
			p = answer(last)
		}
		last = k.one(t, p, want, &log)
		if t.Failed() || k.unknown {
			break
		}
	}
	for _, link := range ifnames {
		if p, ok := k.machine.receive(t, link, 0); ok {
			t.Errorf("the kernel has sent another packet: %s by %s", p, link)
		}
	}
	k.counters(t, want)
	if t.Failed() {
		t.Logf("table:\n%s\npackets:\n%s", tab, log.String())
	}
}

// answer is the packet that the receiver of p sends back.
func answer(p sim.Packet) sim.Packet {
	a := sim.Packet{
		Src: p.Dst, Dst: p.Src, SrcPort: p.DstPort, DstPort: p.SrcPort, Protocol: p.Protocol, ICMPID: p.ICMPID,
		In: p.Out, EtherSrc: macs[p.Out], EtherDst: macs["node "+p.Out],
	}
	if p.Protocol == packet.TCP {
		a.TCPFlags = n.TCPSyn | n.TCPAck
	}
	return icmpHeader(a)
}

// icmpHeader sets what "th sport" and "th dport" read of an ICMP packet.
func icmpHeader(p sim.Packet) sim.Packet {
	if p.Protocol == packet.ICMP {
		h := []byte{p.ICMPType, 0, 0, 0, byte(p.ICMPID >> 8), byte(p.ICMPID), 0, 0}
		p.SrcPort, p.DstPort = uint16(p.ICMPType)<<8, checksum(nil, h)
	}
	return p
}

// one sends a packet through both, and returns it as it was delivered.
func (k *kernel) one(t *testing.T, p sim.Packet, want map[string]uint64, log *strings.Builder) sim.Packet {
	t.Helper()
	j, err := k.node.Receive(p)
	if err != nil {
		t.Errorf("simulate: %v", err)
		return sim.Packet{}
	}
	for _, s := range j.Trace {
		if s.Effect == sim.Counted {
			want[s.Comment]++
		}
	}
	fmt.Fprintf(log, "%s\n  dropped %v %s, local %v: %s\n%s\n", p, j.Dropped, j.Why, j.Local, j.Packet, j.Trace)
	k.machine.send(t, p)
	k.sent++
	if j.Dropped || j.Local {
		return sim.Packet{}
	}
	got, ok := k.machine.receive(t, j.Packet.Out, 2*time.Second)
	if !ok {
		t.Errorf("the kernel has dropped %s, the simulator sends %s", p, j.Packet)
		return sim.Packet{}
	}
	k.delivered++
	if !j.Packet.CT.Reply && (j.Packet.SrcPort != p.SrcPort || j.Packet.ICMPID != p.ICMPID) {
		k.unknown = true
		got.SrcPort, got.DstPort, got.ICMPID = j.Packet.SrcPort, j.Packet.DstPort, j.Packet.ICMPID
	}
	if got.Tuple() != j.Packet.Tuple() {
		t.Errorf("the kernel makes %s of %s, the simulator %s", got, p, j.Packet)
	}
	// A TCP flow that was answered has states: only what opens one is answered.
	if p.Protocol == packet.TCP && p.TCPFlags != n.TCPSyn || j.Packet.Tuple() != got.Tuple() || slices.Contains(own, got.Dst) {
		return sim.Packet{}
	}
	if p.Protocol == packet.ICMP && p.ICMPType != 8 {
		return sim.Packet{}
	}
	return j.Packet
}

// counters compares those of the kernel, which may lag behind for a moment.
func (k *kernel) counters(t *testing.T, want map[string]uint64) {
	t.Helper()
	var got map[string]uint64
	for end := time.Now().Add(2 * time.Second); ; {
		all, err := k.driver.Counters(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got = map[string]uint64{}
		for _, c := range all {
			if c.Packets > 0 {
				got[c.Comment] = c.Packets
			}
		}
		if cmp.Equal(want, got) || time.Now().After(end) {
			break
		}
	}
	k.counted += len(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counters (-simulator +kernel):\n%s", diff)
	}
}
