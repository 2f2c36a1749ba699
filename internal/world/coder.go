package world

import (
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// coder writes or reads values in one direction each: one description of a type's
// fields serves both, so that the two cannot drift apart.
//
// Writing changes nothing: the values are shared. The first error of reading stays,
// and everything read after it is zero.
type coder struct {
	reading bool
	buf     []byte // written so far, or left to read
	err     error
	// seen holds strings that were read: names and labels come by the thousand.
	seen map[string]string
}

var errTruncated = errors.New("it ends within a value")

func (c *coder) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.buf = nil
}

func (c *coder) uint(v *uint64) {
	if !c.reading {
		c.buf = binary.AppendUvarint(c.buf, *v)
		return
	}
	x, n := binary.Uvarint(c.buf)
	if n <= 0 {
		c.fail(errTruncated)
		*v = 0
		return
	}
	*v, c.buf = x, c.buf[n:]
}

func (c *coder) int(v *int64) {
	u := uint64(*v)<<1 ^ uint64(*v>>63)
	c.uint(&u)
	if c.reading {
		*v = int64(u>>1) ^ -int64(u&1)
	}
}

func number[T ~uint8 | ~uint16 | ~uint32 | ~int | ~int32](c *coder, v *T) {
	i := int64(*v)
	c.int(&i)
	if c.reading {
		*v = T(i)
	}
}

func (c *coder) bool(v *bool) {
	var u uint64
	if *v {
		u = 1
	}
	c.uint(&u)
	if c.reading {
		*v = u == 1
	}
}

// write appends bytes with their length.
func (c *coder) write(b []byte) {
	c.buf = binary.AppendUvarint(c.buf, uint64(len(b)))
	c.buf = append(c.buf, b...)
}

// read takes bytes with their length; they share the buffer.
func (c *coder) read() []byte {
	var n uint64
	c.uint(&n)
	if n > uint64(len(c.buf)) {
		c.fail(errTruncated)
		return nil
	}
	b := c.buf[:n]
	c.buf = c.buf[n:]
	return b
}

func (c *coder) string(s *string) {
	if !c.reading {
		c.buf = binary.AppendUvarint(c.buf, uint64(len(*s)))
		c.buf = append(c.buf, *s...)
		return
	}
	b := c.read()
	known, ok := c.seen[string(b)]
	if !ok {
		known = string(b)
		c.seen[known] = known
	}
	*s = known
}

func (c *coder) addr(a *netip.Addr) {
	switch {
	case c.reading:
		if err := a.UnmarshalBinary(c.read()); err != nil {
			c.fail(err)
		}
	case a.Is4():
		b := a.As4()
		c.write(b[:])
	default:
		b, _ := a.MarshalBinary() // Never fails.
		c.write(b)
	}
}

// prefix keeps even a prefix whose length is invalid (-1).
func (c *coder) prefix(p *netip.Prefix) {
	a, bits := p.Addr(), p.Bits()
	c.addr(&a)
	number(c, &bits)
	if c.reading {
		*p = netip.PrefixFrom(a, bits)
	}
}

func (c *coder) time(t *time.Time) {
	seconds, nanos := t.Unix(), uint64(t.Nanosecond())
	c.int(&seconds)
	c.uint(&nanos)
	if c.reading {
		*t = time.Unix(seconds, int64(nanos%1e9)).UTC()
	}
}

func (c *coder) mac(m *packet.MAC) {
	if !c.reading {
		c.write(m[:])
		return
	}
	b := c.read()
	if len(b) != len(m) {
		c.fail(errors.New("a hardware address has not six bytes"))
		return
	}
	*m = packet.MAC(b)
}

// length is that of a list or map, plus one; zero is nil.
func (c *coder) length(isNil bool, n int) (int, bool) {
	u := uint64(n) + 1
	if isNil {
		u = 0
	}
	c.uint(&u)
	if c.reading && u > uint64(len(c.buf))+1 {
		c.fail(errTruncated) // Every element takes a byte at least.
		return 0, true
	}
	return int(u) - 1, u == 0
}

func list[T any](c *coder, s *[]T, element func(*coder, *T)) {
	n, isNil := c.length(*s == nil, len(*s))
	if isNil {
		return
	}
	if c.reading {
		*s = make([]T, 0, min(n, 64)) // A lie about the length costs no memory.
	}
	for i := 0; i < n && c.err == nil; i++ {
		if c.reading {
			var zero T
			*s = append(*s, zero)
		}
		element(c, &(*s)[i])
	}
}

func (c *coder) strings(s *[]string)        { list(c, s, (*coder).string) }
func (c *coder) addrs(a *[]netip.Addr)      { list(c, a, (*coder).addr) }
func (c *coder) prefixes(p *[]netip.Prefix) { list(c, p, (*coder).prefix) }

// stringMap goes in the order of its keys.
func stringMap[K ~string](c *coder, m *map[K]string) {
	n, isNil := c.length(*m == nil, len(*m))
	if isNil {
		return
	}
	if !c.reading {
		for _, k := range slices.Sorted(maps.Keys(*m)) {
			key, value := string(k), (*m)[k]
			c.string(&key)
			c.string(&value)
		}
		return
	}
	*m = make(map[K]string, min(n, 64))
	for i := 0; i < n && c.err == nil; i++ {
		var key, value string
		c.string(&key)
		c.string(&value)
		(*m)[K(key)] = value
	}
}

// table writes or reads a whole table.
func table[V any](c *coder, t *Table[*V], fields func(*coder, *V)) {
	n, _ := c.length(false, t.Len())
	if !c.reading {
		for k, v := range t.All() {
			c.key(&k)
			fields(c, v)
		}
		return
	}
	var b builder[*V]
	for i := 0; i < n && c.err == nil; i++ {
		var k Key
		c.key(&k)
		v := new(V)
		fields(c, v)
		if c.err == nil && !b.add(k, v) {
			c.fail(errors.New("the keys of a table are not sorted"))
		}
	}
	*t = b.table()
}

func (c *coder) key(k *Key) {
	c.string(&k.Namespace)
	c.string(&k.Name)
}
