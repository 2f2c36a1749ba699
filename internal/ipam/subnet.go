package ipam

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Family is an address family.
type Family uint8

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf is the family of an address; an IPv4 address mapped to IPv6 is IPv6,
// and belongs to no Subnet.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String is "IPv4" or "IPv6".
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// MarshalText implements encoding.TextMarshaler.
func (f Family) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *Family) UnmarshalText(text []byte) error {
	for _, known := range Families() {
		if string(text) == known.String() {
			*f = known
			return nil
		}
	}
	return fmt.Errorf("unknown address family %q: want IPv4 or IPv6", text)
}

// Families are both, in the order in which a pod's addresses are listed.
func Families() [2]Family { return [2]Family{IPv4, IPv6} }

// MaxCount caps every count of addresses: larger ones are reported as this, the
// largest number that Subnet.status can hold.
const MaxCount uint64 = math.MaxInt64

// Subnet is what the allocator needs to know of a Subnet object. Prefixes that are
// not valid have no effect.
type Subnet struct {
	Name string
	VPC  string
	// CIDRs may be of both families and must not overlap.
	CIDRs []netip.Prefix
	// BlockBits4 and BlockBits6 are the prefix lengths of blocks; zero means 26 and
	// 122. A CIDR that is smaller than a block is one block.
	BlockBits4 int
	BlockBits6 int
	// Exclude is never given to anybody.
	Exclude []netip.Prefix
}

// Has reports whether the Subnet has addresses of a family.
func (s Subnet) Has(f Family) bool {
	return slices.ContainsFunc(s.CIDRs, func(c netip.Prefix) bool { return usablePrefix(c) && FamilyOf(c.Addr()) == f })
}

// CIDROf is the CIDR that an address lies in.
func (s Subnet) CIDROf(a netip.Addr) (netip.Prefix, bool) {
	for _, c := range s.CIDRs {
		if usablePrefix(c) && c.Contains(a) {
			return c.Masked(), true
		}
	}
	return netip.Prefix{}, false
}

// BlockOf is the block that an address lies in, whether anybody owns it or not.
func (s Subnet) BlockOf(a netip.Addr) (netip.Prefix, bool) {
	c, ok := s.CIDROf(a)
	if !ok {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a.WithZone(""), s.blockBits(c)).Masked(), true
}

// Capacity is the number of addresses that can be given, tunnel addresses
// included, at most MaxCount.
func (s Subnet) Capacity(f Family) uint64 {
	return countFamily(s.usable().Ranges(), f)
}

// Excluded says why an address inside the Subnet is never given: "" if it may be.
func (s Subnet) Excluded(a netip.Addr) string {
	c, ok := s.CIDROf(a)
	if !ok {
		return ""
	}
	for _, r := range reserved(c) {
		if r.addr == a {
			return r.why
		}
	}
	for _, e := range s.Exclude {
		if usablePrefix(e) && e.Contains(a) {
			return "the Subnet excludes " + e.String()
		}
	}
	return ""
}

func (s Subnet) blockBits(cidr netip.Prefix) int {
	bits := cmp.Or(s.BlockBits4, 26)
	if cidr.Addr().Is6() {
		bits = cmp.Or(s.BlockBits6, 122)
	}
	return max(cidr.Bits(), min(bits, cidr.Addr().BitLen()))
}

// usable is the set of addresses that may be given.
func (s Subnet) usable() *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, c := range s.CIDRs {
		if usablePrefix(c) {
			b.AddPrefix(c.Masked())
		}
	}
	for _, c := range s.CIDRs {
		for _, r := range reserved(c) {
			b.Remove(r.addr)
		}
	}
	for _, e := range s.Exclude {
		if usablePrefix(e) {
			b.RemovePrefix(e.Masked())
		}
	}
	set, err := b.IPSet()
	if err != nil { // Only for invalid prefixes, which were left out.
		return &netipx.IPSet{}
	}
	return set
}

func usablePrefix(p netip.Prefix) bool { return p.IsValid() && !p.Addr().Is4In6() }

type reservedAddr struct {
	addr netip.Addr
	why  string
}

// reserved lists the addresses of a CIDR that hosts never bear. Point-to-point
// prefixes (RFC 3021, RFC 6164) and single addresses have none.
func reserved(c netip.Prefix) []reservedAddr {
	if !usablePrefix(c) || c.Bits() >= c.Addr().BitLen()-1 {
		return nil
	}
	c = c.Masked()
	if c.Addr().Is4() {
		return []reservedAddr{
			{c.Addr(), "it is the network address of " + c.String()},
			{netipx.PrefixLastIP(c), "it is the broadcast address of " + c.String()},
		}
	}
	return []reservedAddr{{c.Addr(), "it is the subnet-router anycast address of " + c.String() + " (RFC 4291)"}}
}

// count is the number of addresses of a range, at most MaxCount.
func count(r netipx.IPRange) uint64 {
	n := number(r.To()).sub(number(r.From()))
	if n.hi > 0 || n.lo >= MaxCount {
		return MaxCount
	}
	return n.lo + 1
}

func countFamily(ranges []netipx.IPRange, f Family) uint64 {
	total := uint64(0)
	for _, r := range ranges {
		if FamilyOf(r.From()) == f {
			total = plus(total, count(r))
		}
	}
	return total
}

// countIn is the number of addresses of sorted ranges that lie in a prefix.
func countIn(ranges []netipx.IPRange, p netip.Prefix) uint64 {
	in := netipx.RangeOfPrefix(p)
	total := uint64(0)
	for i := firstReaching(ranges, in.From()); i < len(ranges) && !in.To().Less(ranges[i].From()); i++ {
		total = plus(total, count(intersect(ranges[i], in)))
	}
	return total
}

// firstReaching is the index of the first range that ends at or after an address.
func firstReaching(ranges []netipx.IPRange, a netip.Addr) int {
	i, _ := slices.BinarySearchFunc(ranges, a, func(r netipx.IPRange, a netip.Addr) int { return r.To().Compare(a) })
	return i
}

func intersect(a, b netipx.IPRange) netipx.IPRange {
	from, to := a.From(), a.To()
	if from.Less(b.From()) {
		from = b.From()
	}
	if b.To().Less(to) {
		to = b.To()
	}
	return netipx.IPRangeFrom(from, to)
}

// plus adds counts without passing MaxCount.
func plus(a, b uint64) uint64 {
	if a >= MaxCount || b >= MaxCount-a {
		return MaxCount
	}
	return a + b
}
