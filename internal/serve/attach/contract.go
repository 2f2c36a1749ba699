package attach

import (
	"context"
	"errors"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Request is what a runtime asks for: one interface for one container.
type Request struct {
	ContainerID string
	// Interface is the link's name inside the pod.
	Interface string
	// Netns is the path of the pod's network namespace.
	Netns string
	// Pod is the pod that the container belongs to; the zero Owner for an
	// attachment without one, which only Standalone permits. Without a UID any pod
	// of that name will do.
	Pod        world.Owner
	Standalone bool
	// Network is the name of the network configuration. Collect of one network
	// leaves the attachments of others alone.
	Network string
	// Subnet and Want ask for a Subnet and for addresses, at most one a family. The
	// pod's own annotations take precedence.
	Subnet string
	Want   []netip.Addr
}

// Result of an Add: the attachment, and the MTU that its interface has.
type Result struct {
	world.Attachment
	MTU int
}

// Key identifies an attachment as a runtime does.
type Key struct {
	ContainerID string
	Interface   string
}

// ID is the attachment's ID in the world, "CONTAINER/INTERFACE".
func (k Key) ID() string { return k.ContainerID + "/" + k.Interface }

// Lease is what one attachment holds of one Subnet.
type Lease struct {
	Subnet    string
	Owner     world.Owner
	Addresses []netip.Addr
}

// AddressRequest asks for one address of each family, or for fixed ones.
type AddressRequest = ipam.Request

// ErrSubnetFull is wrapped by Addresses.Allocate when the Subnet has no address for
// this node: another Subnet may do. Package ipam's errors that say so count too.
var ErrSubnetFull = errors.New("no address left for this node")

// Held is everything that the records of this node say about addresses.
type Held struct {
	// Live are those of attachments. Resting are those whose attachment is gone but
	// which the plane may not have dropped: to be treated as by Release.
	Live, Resting []Lease
	// Blocked are those of records whose content is lost, with "record/LINK" as their
	// owner: they are held like live ones until they are released.
	Blocked []Lease
	// Incomplete says that some record is unreadable in content and name: what the
	// node's blocks say is allocated must be kept even if no lease here says so.
	Incomplete bool
}

// Addresses hands out the node's addresses. All methods are safe for concurrent
// use; only Allocate may wait for the datastore.
type Addresses interface {
	// Allocate reserves addresses, IPv4 first. They are this caller's until Cancel
	// or Release; it is the caller who makes them durable. The error wraps
	// ErrSubnetFull if another Subnet may help, and is an *Error with Refused if no
	// later attempt can succeed.
	Allocate(ctx context.Context, r AddressRequest) ([]netip.Addr, error)
	// Cancel gives back what was allocated and never used: it need not rest.
	Cancel(l Lease)
	// Release gives back what was used. From now on the addresses rest, and they
	// may not be given again before Dropped either.
	Release(l Lease)
	// Dropped says that the plane has let go of released addresses.
	Dropped(l Lease)
	// Restore replaces everything that the allocator believes by what is on disk.
	Restore(ctx context.Context, h Held) error
}

// Applied tells how far the plane is. The reconcile loop implements it.
type Applied interface {
	// Wait returns once the plane has applied a revision at least as new. The error
	// is that of the object, if it failed. An object that this revision asks for and
	// the intent lacks (decide refused it) has failed too; one that it no longer asks
	// for counts as applied only after an Apply that was allowed to remove things, and
	// so does the zero Ref, which stands for an object of unknown name.
	Wait(ctx context.Context, revision uint64, ref intent.Ref) error
	// Ready returns why the plane cannot serve: it has not applied a first intent,
	// or it is dead. One failed object or a lost datastore is no reason.
	Ready() error
	// MTU of a pod's interface, in bytes, as last applied.
	MTU() int
}

// NamespaceState says what a path of a network namespace leads to.
type NamespaceState uint8

// The states.
const (
	// NamespaceDead: nothing is there, or what is there is no network namespace.
	NamespaceDead NamespaceState = iota
	// NamespaceAlive: a network namespace.
	NamespaceAlive
	// NamespaceHost: the node's own network namespace.
	NamespaceHost
)

// Namespaces looks at network namespaces.
type Namespaces interface {
	// State returns an error if it cannot tell, and never Dead in doubt: what is
	// dead is removed.
	State(path string) (NamespaceState, error)
}

// Pods asks the datastore for one pod directly.
type Pods interface {
	// Pod returns nil if there is none. It ends when ctx does.
	Pod(ctx context.Context, namespace, name string) (*world.Pod, error)
}
