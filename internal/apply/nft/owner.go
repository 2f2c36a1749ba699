package nft

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hostIsLittle says whether the machine's lowest byte comes first.
var hostIsLittle = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// OwnedError says that another live process owns the table.
type OwnedError struct {
	Table string
	// Port is the netlink port of the owner's socket.
	Port uint32
	// PID and Process are the owner, zero and empty if it could not be found.
	PID     int
	Process string
}

// Error implements error.
func (e *OwnedError) Error() string {
	who := "a process that could not be found"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d (%s)", e.PID, e.Process)
	}
	return fmt.Sprintf("nftables table inet %s is owned by %s through netlink port %d: stop it first; only one agent may run on a node", e.Table, who, e.Port)
}

// claim finds out what the kernel can do, makes the table ours and reads it.
func (d *Driver) claim(ctx context.Context) error {
	if !d.cfg.Plain {
		var err error
		if d.owned, err = d.probeOwner(); err != nil {
			return err
		}
	}
	if err := d.freshen(ctx); err != nil {
		return err
	}
	d.found = d.shadow.exists && len(d.shadow.chains) > 0
	switch {
	case !d.shadow.exists:
		return d.writeTable(ctx, true)
	case d.owned && d.shadow.flags == tableFlagLasts:
		return d.writeTable(ctx, false)
	case d.owned && d.shadow.owner != d.sock.port:
		d.log.Info("nftables table is not owned; the next change makes it anew", "table", d.cfg.Table)
	}
	return nil
}

// writeTable creates the table or claims an orphan, and reads it again.
func (d *Driver) writeTable(ctx context.Context, create bool) error {
	b := d.batch()
	b.newTable(d.tableFlags(), create)
	err := d.sock.commit(b, nil)
	d.shadow = nil
	// Whoever was faster is found by reading: its name makes a better error.
	if readErr := d.freshen(ctx); readErr != nil {
		return readErr
	}
	if err != nil && (d.shadow == nil || !d.shadow.exists) {
		return err
	}
	if d.owned && d.shadow.owner != d.sock.port {
		return errors.Join(err, fmt.Errorf("nftables table inet %s did not become ours", d.cfg.Table))
	}
	return nil
}

// probeOwner asks the kernel for an owned, persistent table in a transaction that
// deletes it again, so that nobody ever sees it.
func (d *Driver) probeOwner() (bool, error) {
	b := newBatch(d.cfg.Table+"-probe", d.sock.seq.Load()+1, 0)
	b.newTable(tableFlagsOwned, true)
	b.deleteTable()
	err := d.sock.commit(b, nil)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		d.log.Info("the kernel cannot keep others from our nftables table (that needs Linux 6.9); it is watched instead", "table", d.cfg.Table)
		return false, nil
	}
	return false, fmt.Errorf("try an owned nftables table: %w", err)
}

// checkOwner refuses a table that somebody else owns.
func (d *Driver) checkOwner(s *state) error {
	if !s.exists || s.flags&tableFlagOwner == 0 || s.owner == d.sock.port {
		return nil
	}
	e := &OwnedError{Table: d.cfg.Table, Port: s.owner}
	e.PID, e.Process = findPort(d.cfg.NetNS, s.owner)
	d.shadow = nil
	return e
}

// findPort finds the process that holds the netfilter netlink socket of a port.
func findPort(netns string, port uint32) (pid int, name string) {
	inode := ""
	err := inNetNS(netns, func() error {
		file, err := os.Open("/proc/thread-self/net/netlink")
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		inode = portInode(bufio.NewScanner(file), port)
		return nil
	})
	if err != nil || inode == "" {
		return 0, ""
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, ""
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != "socket:["+inode+"]" {
			continue
		}
		dir := filepath.Dir(filepath.Dir(link))
		if pid, err = strconv.Atoi(filepath.Base(dir)); err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue
		}
		return pid, strings.TrimSpace(string(comm))
	}
	return 0, ""
}

// portInode finds a port in the lines of /proc/net/netlink: socket, protocol,
// port, …, inode.
func portInode(lines *bufio.Scanner, port uint32) string {
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) >= 10 && f[1] == strconv.Itoa(unix.NETLINK_NETFILTER) && f[2] == strconv.FormatUint(uint64(port), 10) {
			return f[9]
		}
	}
	return ""
}
