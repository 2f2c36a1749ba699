package addresses

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// State is what must survive a restart while the datastore is away.
type State struct {
	// Node that the state belongs to: that of another node is worth nothing.
	Node     string       `json:"node"`
	Blocks   []BlockState `json:"blocks,omitempty"`
	Borrowed []SubnetAddr `json:"borrowed,omitempty"`
	Tunnels  []SubnetAddr `json:"tunnels,omitempty"`
}

// BlockState is one own block.
type BlockState struct {
	Subnet  string       `json:"subnet"`
	CIDR    netip.Prefix `json:"cidr"`
	Closing bool         `json:"closing,omitempty"`
	// Cursor is where the search for free addresses goes on.
	Cursor netip.Addr            `json:"cursor"`
	Lent   map[netip.Addr]string `json:"lent,omitempty"`
	Freed  []FreedState          `json:"freed,omitempty"`
}

// FreedState is an address that rests.
type FreedState struct {
	Addr netip.Addr `json:"addr"`
	At   time.Time  `json:"at"`
}

// SubnetAddr is an address of a Subnet.
type SubnetAddr struct {
	Subnet string     `json:"subnet"`
	Addr   netip.Addr `json:"addr"`
}

// Records keep the State.
type Records interface {
	// Load returns the last saved State, the zero State if there is none.
	Load() (State, error)
	// Save returns once the State would survive a power loss.
	Save(State) error
}

// File keeps the State in one JSON file, written atomically and with fsync.
type File struct{ Path string }

// Load implements Records.
func (f File) Load() (State, error) {
	data, err := os.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("read the address state: %w", err)
	}
	var s State
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return State{}, fmt.Errorf("read the address state %s: %w", f.Path, err)
	}
	return s, nil
}

// Save implements Records.
func (f File) Save(s State) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the address state: %w", err)
	}
	if err := renameio.WriteFile(f.Path, append(data, '\n'), 0o600, renameio.WithTempDir(filepath.Dir(f.Path))); err != nil {
		return fmt.Errorf("write the address state: %w", err)
	}
	if err := syncDir(filepath.Dir(f.Path)); err != nil {
		return fmt.Errorf("write the address state: %w", err)
	}
	return nil
}

// syncDir makes a rename durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// snapshotState is the State of a pool.
func snapshotState(node string, p *ipam.Pool, tunnels map[tunnelKey]*tunnel, now time.Time) State {
	s := State{Node: node}
	for _, b := range p.Blocks() {
		if b.State == ipam.Lost {
			continue
		}
		bs := BlockState{Subnet: b.Subnet, CIDR: b.CIDR, Closing: b.State == ipam.Closing, Cursor: b.Cursor}
		for _, l := range b.Lent {
			if bs.Lent == nil {
				bs.Lent = map[netip.Addr]string{}
			}
			bs.Lent[l.Addr] = l.Node
		}
		for _, f := range b.Freed {
			if f.Dropped && now.Sub(f.At) >= ipam.RestTime {
				continue
			}
			bs.Freed = append(bs.Freed, FreedState{Addr: f.Addr, At: f.At})
		}
		s.Blocks = append(s.Blocks, bs)
	}
	for _, b := range p.Borrowed() {
		if !b.Stray {
			s.Borrowed = append(s.Borrowed, SubnetAddr{b.Subnet, b.Addr})
		}
	}
	for _, k := range sortedTunnels(tunnels) {
		s.Tunnels = append(s.Tunnels, SubnetAddr{k.subnet, tunnels[k].addr})
	}
	return s
}

// block is the pool's form of a saved block.
func (b BlockState) block(node string) ipam.Block {
	out := ipam.Block{Subnet: b.Subnet, CIDR: b.CIDR, Node: node, Cursor: b.Cursor}
	if b.Closing {
		out.State = ipam.Closing
	}
	for a, n := range b.Lent {
		out.Lent = append(out.Lent, world.Loan{Addr: a, Node: n})
	}
	for _, f := range b.Freed {
		out.Freed = append(out.Freed, ipam.Freed{Addr: f.Addr, At: f.At, Dropped: true})
	}
	return out
}
