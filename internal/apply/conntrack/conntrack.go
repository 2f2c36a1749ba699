package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Flow is an entry.
type Flow struct {
	// Src, Dst and the ports are those of the flow's first packet, as it came.
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Protocol         packet.Protocol
	// ReplySrc and ReplySrcPort are where answers come from: Dst and DstPort, unless
	// the destination is translated. Ports are zero for protocols without.
	ReplySrc     netip.Addr
	ReplySrcPort uint16
	// ReplyDst is where answers go: Src, unless the source is translated.
	ReplyDst netip.Addr
	Mark     uint32
	Zone     uint16
	// Ended: a TCP connection that one end has reset, or closed without a packet of the
	// other since that conntrack has seen (the flow cache keeps the other's FIN from it).
	// The kernel keeps it for a while.
	Ended bool
}

// Query says which entries a Walk asks about. The kernel leaves the others out where it
// can; older kernels hand over more, so that the caller must look at each all the same.
type Query struct {
	// End is an address of the flow: the source of its first packet, or of its answers.
	// The zero Addr: every address.
	End netip.Addr
	// Mark and Mask: the bits of Mask in the entry's mark are those of Mark. No bit in
	// Mask: every mark.
	Mark, Mask uint32
}

// Decision says what becomes of an entry. The zero value leaves it as it is.
type Decision struct {
	// Delete makes the kernel forget it: the next packet of the flow is a first one.
	Delete bool
	// Mask are the bits of its mark that change, Mark their new values.
	Mark, Mask uint32
}

// Result counts the entries of a Walk.
type Result struct {
	// Seen entries; one that the kernel lists twice counts twice.
	Seen int
	// Changed entries, the deleted ones too.
	Changed int
	// Gone entries had ended by themselves before they were changed.
	Gone int
}

// Table is a connection to the entries of a network namespace. Its methods must not be
// called at once.
type Table struct {
	read, write *socket
	// noFilter: the kernel does not know filters by address.
	noFilter bool
}

// Open connects to the entries of a network namespace.
func Open(ns *netns.NS) (*Table, error) {
	t := &Table{}
	err := ns.Do(func() (err error) {
		if t.read, err = openSocket(); err != nil {
			return err
		}
		if t.write, err = openSocket(); err != nil {
			err = errors.Join(err, t.read.close())
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to conntrack: %w", err)
	}
	return t, nil
}

// Close ends the connection.
func (t *Table) Close() error { return errors.Join(t.read.close(), t.write.close()) }

// walkTries bounds the repeats of a dump that the kernel says was disturbed.
const walkTries = 8

// Walk asks decide about the entries that any of the queries asks for, and does what it
// says; without queries, about none. decide may be asked about an entry again, with the
// mark that it has by then. Entries that end meanwhile are no error; others that cannot
// be changed do not stop the rest.
func (t *Table) Walk(ctx context.Context, queries []Query, decide func(Flow) Decision) (Result, error) {
	var r Result
	var errs []error
	for _, f := range t.plan(queries) {
		errs = append(errs, t.walk(ctx, f, decide, &r))
	}
	return r, errors.Join(errs...)
}

// entriesPerPass is how many entries the kernel hands over in the time that it takes to
// go through its table once. (Measured with 262,144 buckets; it has four for each 16 KiB
// of memory, up to that number.)
const entriesPerPass = 10_000

// plan returns the dumps to make: those that leave out what nobody asks for, or a single
// one of everything if that costs less.
func (t *Table) plan(queries []Query) (filters []filter) {
	for _, q := range queries {
		f := filter{addr: q.End, mark: q.Mark, mask: q.Mask}
		filters = append(filters, f)
		if q.End.IsValid() { // the kernel matches one tuple at a time
			f.reply = true
			filters = append(filters, f)
		}
	}
	if len(filters) < 2 {
		return filters
	}
	if n, err := t.read.count(); err != nil || t.noFilter || n < (len(filters)-1)*entriesPerPass {
		return []filter{{}}
	}
	return filters
}

// walk is one dump, repeated while the kernel says that it was disturbed: what was
// changed already bears its new mark by then.
func (t *Table) walk(ctx context.Context, f filter, decide func(Flow) Decision, r *Result) error {
	for range walkTries {
		w := writer{socket: t.write, result: r}
		err := t.read.dump(ctx, f, func(body []byte) {
			e, ok := parse(body)
			if !ok {
				return
			}
			r.Seen++
			w.add(e, decide(e.Flow))
		})
		w.flush()
		switch {
		case errors.Is(err, errInterrupted):
			continue
		case f.addr.IsValid() && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)):
			t.noFilter = true
			f.addr = netip.Addr{}
			continue
		case err != nil:
			err = fmt.Errorf("read conntrack entries (the kernel needs nf_conntrack_netlink for it): %w", err)
		}
		return errors.Join(err, w.err())
	}
	return fmt.Errorf("read conntrack entries: %w %d times", errInterrupted, walkTries)
}
