package nft

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Foreign is one transaction of somebody else, in whatever table.
type Foreign struct {
	// Lost says that events were lost: anything may have changed. The other fields
	// are empty then.
	Lost bool
	// Ours says that our table was touched.
	Ours bool
	// Tables is what was touched, as "inet filter", sorted.
	Tables []string
	// PID and Process made the change.
	PID     uint32
	Process string
	// Generation is the ruleset's number after it.
	Generation uint32
	// Events tells what happened to our table, at most MaxLines of them.
	Events []string
}

// ignore makes the kernel drop the events of our own transactions before they are
// queued: all the messages of a transaction bear the port of its author.
func (s *socket) ignore(port uint32) error {
	const portOffset = 12 // nlmsg_pid
	// Classic BPF loads words in network order.
	if hostIsLittle {
		port = bits.ReverseBytes32(port)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: portOffset},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: port, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	return s.control(func(fd int) error {
		err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
		if err != nil {
			return fmt.Errorf("filter nftables events: %w", err)
		}
		return nil
	})
}

// Watch calls fn for every transaction of others, from Open on, until ctx ends; it
// returns ctx's error then. After one with Ours or Lost set, Apply compares anew
// and restores. Only one Watch may run at a time.
func (d *Driver) Watch(ctx context.Context, fn func(Foreign)) error {
	if err := d.events.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = d.events.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	w := watcher{table: d.cfg.Table, pending: map[uint32]*Foreign{}, fn: fn}
	buf := make([]byte, 1<<20)
	for {
		err := d.events.wait(ctx, buf, w.event)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			clear(w.pending)
			d.drop()
			fn(Foreign{Lost: true})
		case err != nil:
			return fmt.Errorf("watch nftables: %w", err)
		}
	}
}

// drop forgets the shadow.
func (d *Driver) drop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shadow = nil
}

// watcher puts the events of a transaction together; the last one of each is that
// of the new generation.
type watcher struct {
	table   string
	pending map[uint32]*Foreign // by the author's port
	fn      func(Foreign)
}

func (w *watcher) event(m message) error {
	typ := m.nftType()
	if typ < 0 {
		return nil
	}
	f := w.pending[m.port]
	if f == nil {
		f = &Foreign{}
		w.pending[m.port] = f
	}
	if typ == unix.NFT_MSG_NEWGEN {
		delete(w.pending, m.port)
		var err error
		if f.Generation, f.PID, f.Process, err = parseGen(m.attributes()); err != nil {
			return fmt.Errorf("read event: %w", err)
		}
		slices.Sort(f.Tables)
		w.fn(*f)
		return nil
	}
	p, err := parse(m.attributes())
	if err != nil {
		return fmt.Errorf("read event: %w", err)
	}
	f.note(w.table, typ, m.family(), &p)
	return nil
}

// note adds an event. The table's name is the first attribute of every object, the
// table itself included.
func (f *Foreign) note(ours string, typ int, family uint8, p *parsed) {
	name := p.str(unix.NFTA_TABLE_NAME)
	table := familyName(family) + " " + name
	if !slices.Contains(f.Tables, table) {
		f.Tables = append(f.Tables, table)
	}
	if family != unix.NFPROTO_INET || name != ours {
		return
	}
	f.Ours = true
	if text := eventText(typ, p); text != "" && len(f.Events) < MaxLines && !slices.Contains(f.Events, text) {
		f.Events = append(f.Events, text)
	}
}

func familyName(family uint8) string {
	switch family {
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_ARP:
		return "arp"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	}
	return fmt.Sprint(family)
}

// eventText tells an event in our table.
func eventText(typ int, p *parsed) string {
	switch typ {
	case unix.NFT_MSG_NEWTABLE:
		return "changed the table"
	case unix.NFT_MSG_DELTABLE:
		return "deleted the table"
	case unix.NFT_MSG_NEWCHAIN:
		return "added or changed chain " + p.str(unix.NFTA_CHAIN_NAME)
	case unix.NFT_MSG_DELCHAIN:
		return "deleted chain " + p.str(unix.NFTA_CHAIN_NAME)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		verb := "added"
		if typ == unix.NFT_MSG_DELRULE {
			verb = "deleted"
		}
		comment, _ := parseUserdata(p[unix.NFTA_RULE_USERDATA])
		chain := p.str(unix.NFTA_RULE_CHAIN)
		if comment == "" {
			return verb + " a rule of chain " + chain
		}
		return fmt.Sprintf("%s rule %q of chain %s", verb, comment, chain)
	case unix.NFT_MSG_NEWSET:
		return "added set " + p.str(unix.NFTA_SET_NAME)
	case unix.NFT_MSG_DELSET:
		return "deleted set " + p.str(unix.NFTA_SET_NAME)
	case unix.NFT_MSG_NEWSETELEM:
		return "added elements to set " + p.str(unix.NFTA_SET_ELEM_LIST_SET)
	case unix.NFT_MSG_DELSETELEM:
		return "deleted elements of set " + p.str(unix.NFTA_SET_ELEM_LIST_SET)
	}
	return "changed another object"
}
