package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// Config says which table to drive, and where.
type Config struct {
	// Table is the name of the table (family inet).
	Table string
	// NetNS is the path of the network namespace, such as /var/run/netns/n1 or
	// /proc/self/fd/7; empty is that of the calling thread.
	NetNS string
	// Plain makes a table without owner, as on kernels before 6.9.
	Plain bool
	// Logger gets what a person should know; nil discards it.
	Logger *slog.Logger
}

// Driver holds one table. Make it with Open.
type Driver struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex
	sock   *socket // the owner of the table; every write goes through it
	events *socket // subscribed from Open on, read by Watch
	owned  bool    // the table bears owner and persist
	found  bool    // Open found a table with chains in it
	// shadow is what the kernel holds; nil if that is not known.
	shadow *state
	// last is what was applied last, whatever became of it since.
	last encoded
	// generation of the ruleset that the shadow was valid in; plain tables only.
	generation uint32
}

// Open connects to nf_tables, claims or creates the table and reads it. A table
// that another live process owns gives *OwnedError. Close the driver in the end:
// the table stays, and the next Open adopts it.
func Open(ctx context.Context, cfg Config) (*Driver, error) {
	d := &Driver{cfg: cfg, log: cfg.Logger}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if d.sock, err = openSocket(cfg.NetNS, 0); err != nil {
		return nil, err
	}
	if d.events, err = openSocket(cfg.NetNS, 1<<(unix.NFNLGRP_NFTABLES-1)); err == nil {
		if err = d.events.ignore(d.sock.port); err == nil {
			err = d.claim(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close lets go of the table. It stays in the kernel with all its content.
func (d *Driver) Close() error {
	err := d.sock.close()
	if d.events != nil {
		err = errors.Join(err, d.events.close())
	}
	return err
}

// Owned says whether the kernel keeps all others from changing the table.
func (d *Driver) Owned() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.owned
}

// Adopted says whether Open found the table filled, as after a restart.
func (d *Driver) Adopted() bool { return d.found }

// applyTries bounds how often Apply starts over because somebody else changed the
// ruleset meanwhile.
const applyTries = 64

// Apply makes the table in the kernel equal to the desired one, in one
// transaction that the kernel takes whole or refuses whole; a refusal names the
// object (*ObjectError). When nothing differs nothing is sent.
//
// A transaction under way is not interrupted by ctx. The elements of sets are kept
// to compare the next ones with: the caller must not write into those slices
// afterwards.
func (d *Driver) Apply(ctx context.Context, desired nftables.Table) (Changes, error) {
	return d.apply(ctx, desired, false)
}

// Extend adds what of the desired table is missing, and neither changes nor removes
// what is there: chains keep their rules, elements their data. Else it is as Apply.
func (d *Driver) Extend(ctx context.Context, desired nftables.Table) (Changes, error) {
	return d.apply(ctx, desired, true)
}

func (d *Driver) apply(ctx context.Context, desired nftables.Table, extend bool) (Changes, error) {
	if desired.Name != d.cfg.Table {
		return Changes{}, fmt.Errorf("apply nftables table %q: this driver holds table %q", desired.Name, d.cfg.Table)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := desired.ValidateAfter(d.last.table)
	if err != nil {
		return Changes{}, fmt.Errorf("apply nftables table %s: nothing was changed: %w", desired.Name, err)
	}
	for range applyTries {
		if err := ctx.Err(); err != nil {
			return Changes{}, err
		}
		stale := d.shadow != nil
		var changes Changes
		changes, err = d.applyOnce(ctx, desired, extend)
		if err == nil {
			return changes, nil
		}
		d.shadow = nil
		// The kernel may have refused because the shadow was not what it holds; what
		// it refuses of a fresh reading is wrong in itself.
		if !stale && !again(err) {
			break
		}
	}
	return Changes{}, fmt.Errorf("apply nftables table %s: nothing was changed: %w", desired.Name, err)
}

// again says whether the same transaction may succeed when it is made anew.
func again(err error) bool {
	for _, code := range []unix.Errno{unix.EAGAIN, unix.ERESTART, unix.EBUSY, unix.EINTR} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// applyOnce diffs against the shadow, which it reads if it is unknown or old.
func (d *Driver) applyOnce(ctx context.Context, desired nftables.Table, extend bool) (Changes, error) {
	if err := d.freshen(ctx); err != nil {
		return Changes{}, err
	}
	want, err := encode(desired, d.last)
	if err != nil {
		return Changes{}, err
	}
	b := d.batch()
	have := d.shadow
	want.flags, want.owner = d.tableFlags(), have.owner
	created := d.prepareTable(b, &have)
	last := remember(desired, want)
	if extend {
		want.keep(have)
		last = encoded{} // want is no longer the encoding of desired
	}
	changes := diff(have, want, desired, b)
	if b.empty() {
		d.shadow, d.last = want, last
		return Changes{}, nil
	}
	changes.TableCreated = created
	if err := d.commit(b, desired); err != nil {
		return Changes{}, err
	}
	if d.owned {
		want.owner = d.sock.port
	}
	d.shadow, d.last = want, last
	// The transaction has happened: what fails from here on only means that the
	// shadow must be read again.
	if err := d.readHandles(ctx, changes); err != nil {
		d.log.Warn("nftables changed behind our back; reading it again", "table", d.cfg.Table, "err", err)
		d.shadow = nil
	}
	return changes, nil
}

// prepareTable writes what the table itself needs before its content. A plain
// table cannot become a persistent one, nor back: it is made anew within the
// transaction.
func (d *Driver) prepareTable(b *batch, have **state) (created bool) {
	h := *have
	switch {
	case !h.exists:
		b.newTable(d.tableFlags(), true)
		*have = newState()
		return true
	case (h.flags^d.tableFlags())&tableFlagLasts != 0:
		b.deleteTable()
		b.newTable(d.tableFlags(), true)
		*have = newState()
		return true
	case h.flags != d.tableFlags():
		// Somebody made a plain table dormant, so that it does nothing.
		b.newTable(d.tableFlags(), false)
	}
	return false
}

func (d *Driver) tableFlags() uint32 {
	if d.owned {
		return tableFlagsOwned
	}
	return 0
}

// batch begins a transaction. For a plain table it holds only for the generation
// that the shadow was read in.
func (d *Driver) batch() *batch {
	generation := d.generation
	if d.owned {
		generation = 0
	}
	return newBatch(d.cfg.Table, d.sock.seq.Load()+1, generation)
}

// commit sends a transaction; desired is used to name elements in errors.
func (d *Driver) commit(b *batch, desired nftables.Table) error {
	err := d.sock.commit(b, func(set, key string) string {
		for _, s := range desired.Sets {
			if s.Name == set {
				return keyText(s, key)
			}
		}
		return ""
	})
	if err == nil && d.generation != 0 {
		d.generation++ // every transaction counts one
		if d.generation == 0 {
			d.generation++
		}
	}
	return err
}

// Delete removes the table and all its content from the kernel. The driver can
// still Apply afterwards.
func (d *Driver) Delete(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	for range applyTries {
		if err = d.freshen(ctx); err != nil {
			break
		}
		if !d.shadow.exists {
			return nil
		}
		b := d.batch()
		b.deleteTable()
		if err = d.commit(b, nftables.Table{}); err == nil {
			d.shadow = newState()
			return nil
		}
		d.shadow = nil
		if !again(err) {
			break
		}
	}
	return fmt.Errorf("delete nftables table %s: %w", d.cfg.Table, err)
}
