package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Why an address cannot be had. Every error of this package is an *Error whose
// Unwrap is one of these.
var (
	// ErrNoRoom: the node's own blocks are full; claim another.
	ErrNoRoom = errors.New("no room in the node's blocks")
	// ErrSubnetFull: every address of the Subnet is in use.
	ErrSubnetFull = errors.New("subnet full")
	// ErrResting: all that is left was freed a moment ago.
	ErrResting = errors.New("only resting addresses are left")
	// ErrTaken: the address belongs to somebody.
	ErrTaken = errors.New("address taken")
	// ErrNotOwned: the address lies in the Subnet but in none of the node's blocks.
	ErrNotOwned = errors.New("address in none of the node's blocks")
	// ErrOutside: the address lies in no CIDR of the Subnet.
	ErrOutside = errors.New("address outside the Subnet")
	// ErrExcluded: the address is never given.
	ErrExcluded = errors.New("address excluded")
	// ErrLost: the node no longer owns the block.
	ErrLost = errors.New("block lost")
	// ErrUnknownSubnet: there is no such Subnet.
	ErrUnknownSubnet = errors.New("no such Subnet")
	// ErrInvalid: the request makes no sense.
	ErrInvalid = errors.New("invalid request")
)

// Error says what was asked for and why it cannot be had.
type Error struct {
	// Err is one of this package's errors.
	Err    error
	Subnet string
	// Family is zero where the request was for one address.
	Family Family
	// Addr and Block are what the error speaks of, if it is one address or block.
	Addr  netip.Addr
	Block netip.Prefix
	// Owner or Node has the address (ErrTaken).
	Owner world.Owner
	Node  string
	// Used and Capacity count addresses of pods (ErrSubnetFull).
	Used, Capacity uint64
	// Until is when the first resting address is free; zero if the data plane still
	// holds all of them (ErrResting).
	Until time.Time
	// Detail is why (ErrExcluded, ErrInvalid).
	Detail string
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Error names the address or Subnet, the cause and what to do.
func (e *Error) Error() string {
	switch e.Err {
	case ErrNoRoom:
		return fmt.Sprintf("Subnet %s: the node's %s blocks are full", e.Subnet, e.Family)
	case ErrSubnetFull:
		return fmt.Sprintf("subnet full: %d of %d %s addresses of Subnet %s are in use: delete pods or add a CIDR to the Subnet",
			e.Used, e.Capacity, e.Family, e.Subnet)
	case ErrResting:
		return e.resting()
	case ErrTaken:
		if e.Node != "" {
			return fmt.Sprintf("address %s of Subnet %s is taken: it is lent to node %s", e.Addr, e.Subnet, e.Node)
		}
		return fmt.Sprintf("address %s of Subnet %s is taken by %s", e.Addr, e.Subnet, OwnerText(e.Owner))
	case ErrNotOwned:
		return fmt.Sprintf("address %s of Subnet %s is in none of this node's blocks", e.Addr, e.Subnet)
	case ErrOutside:
		return fmt.Sprintf("address %s is in no CIDR of Subnet %s", e.Addr, e.Subnet)
	case ErrExcluded:
		return fmt.Sprintf("address %s of Subnet %s is never given: %s", e.Addr, e.Subnet, e.Detail)
	case ErrLost:
		return fmt.Sprintf("block %s of Subnet %s no longer belongs to this node", e.Block, e.Subnet)
	case ErrUnknownSubnet:
		return fmt.Sprintf("there is no Subnet %q", e.Subnet)
	}
	return fmt.Sprintf("Subnet %s: %v: %s", e.Subnet, e.Err, e.Detail)
}

func (e *Error) resting() string {
	what := fmt.Sprintf("all free %s addresses of this node in Subnet %s rest after their last use", e.Family, e.Subnet)
	if e.Addr.IsValid() {
		what = fmt.Sprintf("address %s of Subnet %s rests after its last use", e.Addr, e.Subnet)
	}
	if e.Until.IsZero() {
		return what + " until the data plane has dropped them"
	}
	return what + " until " + e.Until.UTC().Format(time.RFC3339)
}

// OwnerText names an owner for people: "pod NAMESPACE/NAME", or its name.
func OwnerText(o world.Owner) string {
	if o.Namespace == "" {
		return o.Name
	}
	return "pod " + o.Namespace + "/" + o.Name
}

// TunnelOwner is the owner of a node's tunnel addresses.
func TunnelOwner(node string) world.Owner { return world.Owner{Name: "node/" + node + "/tunnel"} }
