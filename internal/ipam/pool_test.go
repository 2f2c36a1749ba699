package ipam_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

var t0 = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func pod(i int) world.Owner {
	return world.Owner{Namespace: "web", Name: fmt.Sprintf("p%d", i), UID: fmt.Sprint(i)}
}

// pool is a node "a" that owns the given blocks of Subnet "s".
func pool(t *testing.T, s ipam.Subnet, blocks ...string) *ipam.Pool {
	t.Helper()
	s.Name = "s"
	p := ipam.NewPool("a")
	p.SetSubnet(s)
	for _, b := range blocks {
		if errs := p.AddBlock(ipam.Block{Subnet: "s", CIDR: netip.MustParsePrefix(b), Node: "a"}, t0); errs != nil {
			t.Fatal(errs)
		}
	}
	return p
}

func allocate(p *ipam.Pool, i int, now time.Time, want ...string) ([]netip.Addr, error) {
	r := ipam.Request{Subnet: "s", Owner: pod(i)}
	for _, w := range want {
		r.Want = append(r.Want, addr(w))
	}
	return p.Allocate(r, now)
}

// must checks an allocation or its error.
func must(t *testing.T, got []netip.Addr, err, wantErr error, want ...string) {
	t.Helper()
	if !errors.Is(err, wantErr) || (err == nil) != (wantErr == nil) {
		t.Fatalf("error is %v, want %v", err, wantErr)
	}
	var texts []string
	for _, a := range got {
		texts = append(texts, a.String())
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Fatalf("addresses (-want +got):\n%s", diff)
	}
}

func TestThirteenOfASlash28(t *testing.T) { // A9
	p := pool(t, ipam.Subnet{CIDRs: prefixes("10.0.0.0/28")}, "10.0.0.0/28")
	if _, err := p.Allocate(ipam.Request{Subnet: "s", Owner: ipam.TunnelOwner("a")}, t0); err != nil {
		t.Fatal(err)
	}
	for i := range 13 {
		if _, err := allocate(p, i, t0); err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
		u := p.Usage("s", ipam.IPv4, t0)
		if u.Used != uint64(i+1) || u.Capacity != 13 || u.Free != uint64(12-i) || u.Warning != (i >= 10) {
			t.Errorf("usage with %d pods: %+v", i+1, u)
		}
	}
	got, err := allocate(p, 13, t0)
	must(t, got, err, ipam.ErrNoRoom)
	full := p.Usage("s", ipam.IPv4, t0).Full()
	if want := "subnet full: 13 of 13 IPv4 addresses of Subnet s are in use: delete pods or add a CIDR to the Subnet"; full.Error() != want {
		t.Errorf("%q, want %q", full, want)
	}
}

func TestQuarantine(t *testing.T) {
	p := pool(t, ipam.Subnet{CIDRs: prefixes("10.0.0.0/30")}, "10.0.0.0/30")
	got, err := allocate(p, 1, t0)
	must(t, got, err, nil, "10.0.0.1")
	got, err = allocate(p, 2, t0)
	must(t, got, err, nil, "10.0.0.2")
	if p.Release("s", addr("10.0.0.2"), pod(1), t0) {
		t.Error("a stranger released an address")
	}
	p.Release("s", addr("10.0.0.2"), pod(2), t0)
	if p.Release("s", addr("10.0.0.2"), pod(2), t0) {
		t.Error("an address was released twice")
	}
	p.Release("s", addr("10.0.0.1"), pod(1), t0.Add(time.Second))

	got, err = allocate(p, 3, t0.Add(time.Hour)) // The plane holds both.
	must(t, got, err, ipam.ErrResting)
	if e := err.(*ipam.Error); !e.Until.IsZero() {
		t.Errorf("until %s, although the plane has not dropped it", e.Until)
	}
	p.Dropped("s", addr("10.0.0.2"))
	p.Dropped("s", addr("10.0.0.1"))
	got, err = allocate(p, 3, t0.Add(ipam.RestTime-1))
	must(t, got, err, ipam.ErrResting)
	if e := err.(*ipam.Error); !e.Until.Equal(t0.Add(ipam.RestTime)) {
		t.Errorf("until %s", e.Until)
	}
	got, err = allocate(p, 3, t0.Add(ipam.RestTime)) // First freed, first given.
	must(t, got, err, nil, "10.0.0.2")
	got, err = allocate(p, 4, t0.Add(ipam.RestTime))
	must(t, got, err, ipam.ErrResting)
	got, err = allocate(p, 4, t0.Add(ipam.RestTime), "10.0.0.1")
	must(t, got, err, ipam.ErrResting)
	got, err = allocate(p, 4, t0.Add(ipam.RestTime+time.Second), "10.0.0.1")
	must(t, got, err, nil, "10.0.0.1")
}

func TestFreshBeforeFreed(t *testing.T) {
	p := pool(t, ipam.Subnet{CIDRs: prefixes("10.0.0.0/29")}, "10.0.0.0/29")
	for i, want := range []string{"10.0.0.1", "10.0.0.2"} {
		got, err := allocate(p, i, t0)
		must(t, got, err, nil, want)
	}
	p.Cancel("s", addr("10.0.0.1"), pod(0), t0) // It may be given at once, but at the back of the queue.
	for i, want := range []string{"10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.1"} {
		got, err := allocate(p, 10+i, t0)
		must(t, got, err, nil, want)
	}
}

func TestFixed(t *testing.T) {
	s := ipam.Subnet{CIDRs: prefixes("10.0.0.0/24", "fd00::/64"), Exclude: prefixes("10.0.0.9/32")}
	p := pool(t, s, "10.0.0.0/26", "10.0.0.64/26", "fd00::/122")
	got, err := allocate(p, 1, t0, "10.0.0.7")
	must(t, got, err, nil, "10.0.0.7", "fd00::1")
	for want, wantErr := range map[string]error{
		"10.0.0.7": ipam.ErrTaken, "10.0.0.9": ipam.ErrExcluded, "10.0.0.0": ipam.ErrExcluded, "10.0.0.255": ipam.ErrExcluded,
		"10.0.0.200": ipam.ErrNotOwned, "10.0.1.1": ipam.ErrOutside, "fd00::": ipam.ErrExcluded, "fd00:1::1": ipam.ErrOutside, "::ffff:10.0.0.8": ipam.ErrOutside,
	} {
		got, err := allocate(p, 2, t0, want)
		must(t, got, err, wantErr)
	}
	got, err = allocate(p, 2, t0, "10.0.0.8", "10.0.0.10")
	must(t, got, err, ipam.ErrInvalid)
	p.SetState("s", netip.MustParsePrefix("10.0.0.64/26"), ipam.Lost)
	got, err = allocate(p, 2, t0, "10.0.0.70")
	must(t, got, err, ipam.ErrLost)
	got, err = p.Allocate(ipam.Request{Subnet: "s", V6: true, Want: []netip.Addr{addr("fd00::3f")}, Owner: pod(3)}, t0)
	must(t, got, err, nil, "fd00::3f")
	got, err = p.Allocate(ipam.Request{Subnet: "none", Owner: pod(3)}, t0)
	must(t, got, err, ipam.ErrUnknownSubnet)
}

func TestAllOrNothing(t *testing.T) {
	p := pool(t, ipam.Subnet{CIDRs: prefixes("10.0.0.0/24", "fd00::/64")}, "10.0.0.0/26")
	got, err := allocate(p, 1, t0)
	must(t, got, err, ipam.ErrNoRoom)
	if u := p.Usage("s", ipam.IPv4, t0); u.Used != 0 {
		t.Errorf("an IPv4 address stayed allocated: %+v", u)
	}
}

func TestRestore(t *testing.T) {
	p := pool(t, ipam.Subnet{CIDRs: prefixes("10.0.0.0/24")}, "10.0.0.0/28")
	conflicts := p.Restore([]ipam.Record{
		{Subnet: "s", Addr: addr("10.0.0.1"), Owner: pod(1)},
		{Subnet: "s", Addr: addr("10.0.0.1"), Owner: pod(2)},
		{Subnet: "s", Addr: addr("10.0.0.20"), Owner: pod(3)},
	})
	if len(conflicts) != 1 || conflicts[0].Addr != addr("10.0.0.1") || conflicts[0].Owner != pod(1) {
		t.Fatalf("conflicts %v", conflicts)
	}
	if o, _ := p.HolderOf("s", addr("10.0.0.1")); o != pod(1) {
		t.Errorf("holder is %v", o)
	}
	got, err := allocate(p, 4, t0)
	must(t, got, err, nil, "10.0.0.2")
	// What a record holds outside our blocks is ours once the block is.
	if b := p.Borrowed(); len(b) != 1 || !b[0].Stray {
		t.Errorf("borrowed %+v", b)
	}
	p.AddBlock(ipam.Block{Subnet: "s", CIDR: netip.MustParsePrefix("10.0.0.16/28"), Node: "a", Lent: []world.Loan{{Addr: addr("10.0.0.17"), Node: "b"}}}, t0)
	got, err = allocate(p, 5, t0, "10.0.0.20")
	must(t, got, err, ipam.ErrTaken)
	got, err = allocate(p, 5, t0, "10.0.0.17")
	must(t, got, err, ipam.ErrTaken)
	if e := err.(*ipam.Error); e.Node != "b" {
		t.Errorf("lent to %q", e.Node)
	}
}

func TestResumeKeepsTheOrder(t *testing.T) {
	s := ipam.Subnet{CIDRs: prefixes("10.0.0.0/29")}
	p := pool(t, s, "10.0.0.0/29")
	for i := range 6 {
		if _, err := allocate(p, i, t0); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []int{3, 1} { // 10.0.0.4, then 10.0.0.2
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		p.Release("s", a, pod(i), t0.Add(time.Duration(i)))
		p.Dropped("s", a)
	}
	saved := p.Blocks()[0]
	records := []ipam.Record{}
	for _, a := range saved.Allocations {
		records = append(records, ipam.Record{Subnet: "s", Addr: a.Addr, Owner: a.Owner})
	}
	saved.Allocations = nil
	again := ipam.NewPool("a")
	again.Restore(records)
	again.AddBlock(saved, t0.Add(time.Second))
	s.Name = "s"
	again.SetSubnet(s)
	got, err := allocate(again, 9, t0.Add(time.Second))
	must(t, got, err, ipam.ErrResting)
	got, err = allocate(again, 9, t0.Add(time.Minute))
	must(t, got, err, nil, "10.0.0.2") // Freed at an earlier time than 10.0.0.4.
}

func TestExcludeChanges(t *testing.T) {
	s := ipam.Subnet{Name: "s", CIDRs: prefixes("10.0.0.0/29"), Exclude: prefixes("10.0.0.1/32", "10.0.0.2/32")}
	p := pool(t, s, "10.0.0.0/29")
	got, err := allocate(p, 1, t0)
	must(t, got, err, nil, "10.0.0.3")
	s.Exclude = prefixes("10.0.0.3/32", "10.0.0.4/30")
	p.SetSubnet(s)
	for i, want := range []string{"10.0.0.1", "10.0.0.2"} {
		got, err := allocate(p, 2+i, t0)
		must(t, got, err, nil, want)
	}
	got, err = allocate(p, 4, t0)
	must(t, got, err, ipam.ErrNoRoom)
	if o, _ := p.HolderOf("s", addr("10.0.0.3")); o != pod(1) {
		t.Error("an address lost its holder because it was excluded")
	}
	if u := p.Usage("s", ipam.IPv4, t0); u.Capacity != 2 || u.Used != 2 || u.Free != 0 {
		t.Errorf("usage %+v", u)
	}
}

func TestBigIPv6Block(t *testing.T) {
	p := pool(t, ipam.Subnet{CIDRs: prefixes("fd00::/64"), BlockBits6: 64}, "fd00::/64")
	for i := range ipam.MaxPerBlock {
		if _, err := allocate(p, i, t0); err != nil {
			t.Fatalf("address %d: %v", i, err)
		}
	}
	_, err := allocate(p, -1, t0)
	if !errors.Is(err, ipam.ErrNoRoom) {
		t.Errorf("error is %v: an IPBlock holds no more than %d addresses", err, ipam.MaxPerBlock)
	}
	if u := p.Usage("s", ipam.IPv6, t0); u.Used != ipam.MaxPerBlock || u.Free != 0 || u.Percent != 100 {
		t.Errorf("usage %+v", u)
	}
}

func TestBarred(t *testing.T) {
	p := pool(t, ipam.Subnet{CIDRs: prefixes("10.0.0.0/30")}, "10.0.0.0/30")
	p.Bar(addr("10.0.0.1"))
	got, err := allocate(p, 1, t0)
	must(t, got, err, nil, "10.0.0.2")
	got, err = allocate(p, 2, t0, "10.0.0.1")
	must(t, got, err, ipam.ErrTaken)
	p.Unbar(addr("10.0.0.1"), t0)
	p.Dropped("s", addr("10.0.0.1"))
	got, err = allocate(p, 2, t0)
	must(t, got, err, ipam.ErrResting)
	got, err = allocate(p, 2, t0.Add(ipam.RestTime))
	must(t, got, err, nil, "10.0.0.1")
}

func BenchmarkAllocate(b *testing.B) {
	s := ipam.Subnet{Name: "s", CIDRs: prefixes("10.0.0.0/16"), BlockBits4: 20}
	p := ipam.NewPool("a")
	p.SetSubnet(s)
	p.AddBlock(ipam.Block{Subnet: "s", CIDR: netip.MustParsePrefix("10.0.0.0/20"), Node: "a"}, t0)
	now, o := t0, pod(1)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		addrs, err := p.Allocate(ipam.Request{Subnet: "s", Owner: o}, now)
		if err != nil {
			b.Fatal(err)
		}
		p.Release("s", addrs[0], o, now)
		p.Dropped("s", addrs[0])
	}
}

func BenchmarkNextBlock(b *testing.B) {
	s := ipam.Subnet{Name: "s", CIDRs: prefixes("10.0.0.0/12")}
	var taken []netip.Prefix
	for i := range 1000 {
		p, _ := ipam.NextBlock(s, taken, fmt.Sprint(i), ipam.IPv4)
		taken = append(taken, p)
	}
	for b.Loop() {
		if _, ok := ipam.NextBlock(s, taken, "node", ipam.IPv4); !ok {
			b.Fatal("no block")
		}
	}
}
