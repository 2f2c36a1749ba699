package admin

import (
	"net/netip"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Status of a node's agent.
type Status struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Plane   string    `json:"plane"`
	Started time.Time `json:"started"`
	// NotReady is why the agent serves no ADD, empty if it does.
	NotReady string `json:"notReady,omitempty"`
	// Revision of the world, and the one that the plane has applied last.
	Revision        uint64 `json:"revision"`
	AppliedRevision uint64 `json:"appliedRevision"`
	// AddOnly: the world is not complete yet, nothing is changed or removed.
	AddOnly  bool           `json:"addOnly"`
	Position world.Position `json:"position,omitempty"`
	Synced   []string       `json:"synced"`
	// Feed is how the node follows the datastore, kind by kind.
	Feed     []Feed         `json:"feed"`
	PodMTU   int            `json:"podMTU"`
	Underlay []netip.Prefix `json:"underlay"`
	Health   []health.State `json:"health"`
	// Counts of the intent's objects: vpcs, subnets, peers, routes, ports.
	Counts   map[string]int `json:"counts"`
	Problems []Problem      `json:"problems"`
	// Failed objects of the last pass, and why.
	Failed []string `json:"failed,omitempty"`
	// Features of the kernel that were found, and what they are used for.
	Features []string `json:"features,omitempty"`
	// Drops are packets dropped by reason since the tables were made.
	Drops map[string]uint64 `json:"drops,omitempty"`
	// Memory the agent uses, resident, in bytes.
	Memory uint64 `json:"memory"`
}

// Feed is how the objects of one kind arrive.
type Feed struct {
	Kind string `json:"kind"`
	// Phase is "Syncing", "Watching" or "Disconnected", Since when.
	Phase string    `json:"phase"`
	Since time.Time `json:"since"`
	// Suspicious says why the last list is not trusted, empty if it is.
	Suspicious string `json:"suspicious,omitempty"`
	// LastError stays after recovery.
	LastError string `json:"lastError,omitempty"`
	// Lists counts lists of everything, Events changes that a watch delivered, since
	// the agent started.
	Lists  uint64 `json:"lists"`
	Events uint64 `json:"events"`
}

// Problem is a problem with one object, as this node sees it.
type Problem struct {
	Kind    string `json:"kind"`
	Object  string `json:"object"`
	Field   string `json:"field,omitempty"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// ProblemOf converts a problem of the world.
func ProblemOf(p world.Problem) Problem {
	p = p.Brief()
	return Problem{Kind: string(p.Kind), Object: p.Key.String(), Field: p.Field, Reason: p.Reason, Message: p.Message}
}

// Audit is how the kernel differs from what it should hold, and what others
// changed of late.
type Audit struct {
	Node        string             `json:"node"`
	Differences []apply.Difference `json:"differences"`
	// Foreign changes of the last hour, oldest first; at most 100.
	Foreign []apply.Foreign `json:"foreign"`
}

// Peer is another node and how packets get there.
type Peer struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
	VTEPMAC   string       `json:"vtepMAC"`
	Paths     []Path       `json:"paths"`
}

// Path is how the prefixes of one VPC reach a peer.
type Path struct {
	VPC string `json:"vpc"`
	// Via is "VXLAN to 172.30.0.12" or "route via 172.30.0.12".
	Via      string         `json:"via"`
	Prefixes []netip.Prefix `json:"prefixes"`
}

// Attachment is a pod interface on this node.
type Attachment struct {
	ID            string       `json:"id"`
	Namespace     string       `json:"namespace,omitempty"`
	Pod           string       `json:"pod,omitempty"`
	Addresses     []netip.Addr `json:"addresses"`
	Subnet        string       `json:"subnet"`
	VPC           string       `json:"vpc"`
	HostInterface string       `json:"hostInterface"`
	Interface     string       `json:"interface"`
	Netns         string       `json:"netns"`
	MAC           string       `json:"mac"`
}

// Tables are what an intent renders to on a node's data plane.
type Tables struct {
	Node  string `json:"node"`
	Plane string `json:"plane"`
	// Text for people: of the linux plane, what nft would list.
	Text string `json:"text"`
}
