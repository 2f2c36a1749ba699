package attach

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// recordVersion is the version of the format that this code writes, and the only
// one that it reads.
const recordVersion = 1

// What a file of the directory is.
const (
	suffixLive = ".json"
	suffixGone = ".gone"
	suffixTorn = ".torn"
)

// errNewer: the record is intact, but a newer release wrote it. Setting it aside
// would cut off a living pod, so that the agent must not start on it.
var errNewer = errors.New("written by a newer release of Fairlead")

// record is one attachment as it is on disk.
type record struct {
	world.Attachment
	Network string
	Created time.Time
}

func (r *record) lease() Lease {
	return Lease{Subnet: r.Subnet, Owner: r.Pod, Addresses: r.Addresses}
}

// stem is the file's name without suffix.
func (r *record) stem() string {
	name := r.HostInterface + "_" + r.Subnet
	for _, a := range r.Addresses {
		name += "_" + a.String()
	}
	return name
}

// parseStem is the inverse of stem. The owner of the lease is the record itself. It
// fails for a name that stem has not made.
func parseStem(name string) (link string, l Lease, err error) {
	parts := strings.Split(name, "_")
	if len(parts) < 3 || !strings.HasPrefix(parts[0], claims.PortPrefix) || !isSubnetName(parts[1]) {
		return "", Lease{}, fmt.Errorf("the name %q is not LINK_SUBNET_ADDRESS", name)
	}
	l = Lease{Subnet: parts[1], Owner: world.Owner{Name: "record/" + parts[0]}}
	for _, text := range parts[2:] {
		a, err := netip.ParseAddr(text)
		if err != nil || a.String() != text {
			return "", Lease{}, fmt.Errorf("the name %q holds the malformed address %q", name, text)
		}
		l.Addresses = append(l.Addresses, a)
	}
	return parts[0], l, checkAddresses(l.Addresses)
}

// isSubnetName accepts a DNS label, as the API does.
func isSubnetName(s string) bool {
	return s != "" && len(s) <= 63 && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-'
	})
}

// envelope is the file: the sum is SHA-256 of the bytes of Record, in hexadecimal.
type envelope struct {
	Sum    string          `json:"sha256"`
	Record json.RawMessage `json:"record"`
}

// recordJSON is version 1 of the format.
type recordJSON struct {
	Version   int          `json:"version"`
	Container string       `json:"container"`
	Interface string       `json:"interface"`
	Link      string       `json:"link"`
	Netns     string       `json:"netns"`
	Network   string       `json:"network,omitempty"`
	Owner     ownerJSON    `json:"owner"`
	VPC       string       `json:"vpc"`
	Subnet    string       `json:"subnet"`
	Addresses []netip.Addr `json:"addresses"`
	MAC       packet.MAC   `json:"mac"`
	Created   time.Time    `json:"created"`
}

type ownerJSON struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// encode returns the file's content. The bytes are the same for the same record.
func (r *record) encode() ([]byte, error) {
	inner, err := json.Marshal(recordJSON{
		Version: recordVersion, Container: r.ContainerID, Interface: r.Interface, Link: r.HostInterface,
		Netns: r.Netns, Network: r.Network, Owner: ownerJSON(r.Pod), VPC: r.VPC, Subnet: r.Subnet,
		Addresses: r.Addresses, MAC: r.MAC, Created: r.Created.UTC(),
	})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(inner)
	return json.Marshal(envelope{Sum: hex.EncodeToString(sum[:]), Record: inner})
}

// decodeRecord reads a file. It fails on anything that encode has not written, in
// this version: no byte may be missing, and none may be different.
func decodeRecord(data []byte) (*record, error) {
	var e envelope
	if err := decodeStrictly(data, &e); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(e.Record); hex.EncodeToString(sum[:]) != e.Sum {
		return nil, errors.New("the checksum does not match")
	}
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(e.Record, &version); err != nil {
		return nil, err
	}
	if version.Version > recordVersion {
		return nil, fmt.Errorf("%w: its format is version %d, this one reads %d", errNewer, version.Version, recordVersion)
	}
	var in recordJSON
	if err := decodeStrictly(e.Record, &in); err != nil {
		return nil, err
	}
	r := &record{
		Attachment: world.Attachment{
			ID: Key{in.Container, in.Interface}.ID(), ContainerID: in.Container, Interface: in.Interface,
			HostInterface: in.Link, Netns: in.Netns, Pod: world.Owner(in.Owner), VPC: in.VPC, Subnet: in.Subnet,
			Addresses: in.Addresses, MAC: in.MAC,
		},
		Network: in.Network, Created: in.Created,
	}
	return r, r.check(in.Version)
}

// check holds what is true of every record that Add has written.
func (r *record) check(version int) error {
	switch {
	case version != recordVersion:
		return fmt.Errorf("format version %d is unknown", version)
	case r.ContainerID == "" || r.Interface == "" || r.VPC == "":
		return errors.New("container, interface or VPC is missing")
	case !isSubnetName(r.Subnet):
		return fmt.Errorf("%q is no name for a Subnet", r.Subnet)
	case r.HostInterface != claims.PortName(r.ContainerID, r.Interface):
		return fmt.Errorf("the link %q is not that of container and interface", r.HostInterface)
	}
	return checkAddresses(r.Addresses)
}

// checkAddresses wants one or two plain addresses of different families, IPv4 first.
func checkAddresses(addrs []netip.Addr) error {
	for i, a := range addrs {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || i > 0 && (addrs[0].Is6() || a.Is4()) {
			return fmt.Errorf("addresses %v are not one of each family, IPv4 first", addrs)
		}
	}
	if len(addrs) < 1 || len(addrs) > 2 {
		return fmt.Errorf("%d addresses instead of one or two", len(addrs))
	}
	return nil
}

func decodeStrictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON object")
	}
	return nil
}
