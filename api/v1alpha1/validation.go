package v1alpha1

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The bounds that the CRDs state too.
const (
	maxVNI = 1<<24 - 1
	// MaxCIDRs is how many CIDRs a Subnet can have.
	MaxCIDRs    = 32
	maxExcludes = 256
	// maxBlockEntries bounds an IPBlock's size to what every datastore stores.
	maxBlockEntries = 8192
	// maxProblems and maxWanted bound the lists of a NodeNetwork's status.
	maxProblems = 50
	maxWanted   = 256
)

// ValidateVPC checks a VPC as it would be stored, defaults filled in. old is
// nil on create. Like every Validate function here it returns each bad field
// with its path, its value and what would be right.
func ValidateVPC(v, old *VPC) field.ErrorList {
	errs := validateLabelName(v.Name)
	spec := field.NewPath("spec")
	errs = append(errs, validateSelector(v.Spec.Namespaces, spec.Child("namespaces"))...)
	errs = append(errs, oneOf(v.Spec.Isolation, spec.Child("isolation"), IsolationNone, IsolationTenant)...)
	if v.Status.VNI < 0 || v.Status.VNI > maxVNI {
		errs = append(errs, field.Invalid(field.NewPath("status", "vni"), v.Status.VNI, "must be between 0 and 16777215"))
	}
	return append(errs, validateConditions(v.Status.Conditions)...)
}

// ValidateNetNamespace checks a NetNamespace. old is nil on create.
func ValidateNetNamespace(n, old *NetNamespace) field.ErrorList {
	errs := validateLabelName(n.Name)
	if n.Spec.VNI < 1 || n.Spec.VNI > maxVNI {
		errs = append(errs, field.Invalid(field.NewPath("spec", "vni"), n.Spec.VNI, "must be between 1 and 16777215 (24 bits)"))
	}
	return errs
}

// ValidateNodeNetwork checks a NodeNetwork. old is nil on create.
func ValidateNodeNetwork(n, old *NodeNetwork) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	errs = append(errs, validateNodeAddresses(n.Spec.Addresses, spec.Child("addresses"))...)
	if mac := n.Spec.VTEPMAC; mac != "" && !isUnicastMAC(mac) {
		errs = append(errs, field.Invalid(spec.Child("vtepMAC"), mac, "must be a unicast MAC in lower case, such as 0a:58:0a:80:00:01"))
	}
	if mtu := n.Spec.MTU; mtu != 0 && (mtu < 576 || mtu > 65535) {
		errs = append(errs, field.Invalid(spec.Child("mtu"), mtu, "must be between 576 and 65535"))
	}
	if n.Spec.Plane != "" {
		errs = append(errs, oneOf(n.Spec.Plane, spec.Child("plane"), PlaneLinux, PlaneOVS)...)
	}
	status := field.NewPath("status")
	if len(n.Status.Problems) > maxProblems {
		errs = append(errs, field.TooMany(status.Child("problems"), len(n.Status.Problems), maxProblems))
	}
	if len(n.Status.Wanted) > maxWanted {
		errs = append(errs, field.TooMany(status.Child("wanted"), len(n.Status.Wanted), maxWanted))
	}
	errs = append(errs, validateOwners(n.Status.Borrowed, status.Child("borrowed"), netip.Prefix{})...)
	return append(errs, validateConditions(n.Status.Conditions)...)
}

func validateNodeAddresses(addresses []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[bool]string{}
	for i, s := range addresses {
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil || p.Addr().Is4In6():
			errs = append(errs, field.Invalid(path.Index(i), s, "must be an address with its prefix length, such as 172.30.0.11/24"))
		case seen[p.Addr().Is4()] != "":
			errs = append(errs, field.Invalid(path.Index(i), s, fmt.Sprintf("only one address a family: %s is of the same", seen[p.Addr().Is4()])))
		default:
			seen[p.Addr().Is4()] = s
		}
	}
	return errs
}

func isUnicastMAC(s string) bool {
	if len(s) != 17 || !strings.ContainsRune("02468ace", rune(s[1])) {
		return false
	}
	for i := range len(s) {
		switch {
		case i%3 == 2 && s[i] != ':':
			return false
		case i%3 != 2 && !strings.ContainsRune("0123456789abcdef", rune(s[i])):
			return false
		}
	}
	return true
}

// ValidateIPBlock checks an IPBlock. old is nil on create.
func ValidateIPBlock(b, old *IPBlock) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	errs = append(errs, labelValue(b.Spec.Subnet, path.Child("subnet"))...)
	if msgs := validation.IsDNS1123Subdomain(b.Spec.Node); len(msgs) > 0 {
		errs = append(errs, field.Invalid(path.Child("node"), b.Spec.Node, "must be the name of a Node: "+msgs[0]))
	}
	if old != nil {
		errs = append(errs, immutable(b.Spec.Subnet, old.Spec.Subnet, path.Child("subnet"))...)
		errs = append(errs, immutable(b.Spec.CIDR, old.Spec.CIDR, path.Child("cidr"))...)
		errs = append(errs, immutable(b.Spec.Node, old.Spec.Node, path.Child("node"))...)
	}
	cidr, err := ParseCIDR(b.Spec.CIDR)
	if err == nil {
		err = CheckUsable(cidr)
	}
	if err != nil {
		return append(errs, field.Invalid(path.Child("cidr"), b.Spec.CIDR, err.Error()))
	}
	if want := BlockName(b.Spec.Subnet, cidr); b.Name != want {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), b.Name,
			fmt.Sprintf("must be SUBNET.HEXADDRESS-BITS of spec.subnet and spec.cidr: %s", want)))
	}
	errs = append(errs, validateOwners(b.Spec.Allocations, path.Child("allocations"), cidr)...)
	return append(errs, validateLent(b, path.Child("lent"), cidr)...)
}

// validateOwners checks a map of address → owner; a valid cidr bounds the addresses.
func validateOwners(owners map[string]AddressOwner, path *field.Path, cidr netip.Prefix) field.ErrorList {
	var errs field.ErrorList
	if len(owners) > maxBlockEntries {
		return append(errs, field.TooMany(path, len(owners), maxBlockEntries))
	}
	for _, s := range sortedKeys(owners) {
		errs = append(errs, addressInside(s, path.Key(s), cidr)...)
		switch name := owners[s].Name; {
		case name == "":
			errs = append(errs, field.Required(path.Key(s).Child("name"), "who holds the address: a pod's name, or node/NAME/tunnel"))
		case len(name) > 512:
			errs = append(errs, field.TooLong(path.Key(s).Child("name"), name, 512))
		}
	}
	return errs
}

func validateLent(b *IPBlock, path *field.Path, cidr netip.Prefix) field.ErrorList {
	var errs field.ErrorList
	if len(b.Spec.Lent) > maxBlockEntries {
		return append(errs, field.TooMany(path, len(b.Spec.Lent), maxBlockEntries))
	}
	for _, s := range sortedKeys(b.Spec.Lent) {
		errs = append(errs, addressInside(s, path.Key(s), cidr)...)
		if owner, ok := b.Spec.Allocations[s]; ok {
			errs = append(errs, field.Invalid(path.Key(s), b.Spec.Lent[s],
				fmt.Sprintf("the address is allocated to %s: an address is either lent or allocated", owner.Name)))
		}
		if msgs := validation.IsDNS1123Subdomain(b.Spec.Lent[s]); len(msgs) > 0 {
			errs = append(errs, field.Invalid(path.Key(s), b.Spec.Lent[s], "must be the name of a Node: "+msgs[0]))
		}
	}
	return errs
}

func addressInside(s string, path *field.Path, cidr netip.Prefix) field.ErrorList {
	a, err := ParseAddr(s)
	if err != nil {
		return field.ErrorList{field.Invalid(path, s, err.Error())}
	}
	if cidr.IsValid() && !cidr.Contains(a) {
		return field.ErrorList{field.Invalid(path, s, fmt.Sprintf("is outside the block %s", cidr))}
	}
	return nil
}

// validateLabelName holds names to a DNS label, so that they fit into a label
// value and, with a block's suffix, into an IPBlock's name.
func validateLabelName(name string) field.ErrorList {
	if name == "" {
		return nil // reported once, by the check of the metadata
	}
	return labelValue(name, field.NewPath("metadata", "name"))
}

func labelValue(s string, path *field.Path) field.ErrorList {
	if s == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if msgs := validation.IsDNS1123Label(s); len(msgs) > 0 {
		return field.ErrorList{field.Invalid(path, s, msgs[0])}
	}
	return nil
}

func validateSelector(s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path)
}

func validateConditions(conditions []metav1.Condition) field.ErrorList {
	return metav1validation.ValidateConditions(conditions, field.NewPath("status", "conditions"))
}

func oneOf[T ~string](got T, path *field.Path, valid ...T) field.ErrorList {
	if slices.Contains(valid, got) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, got, valid)}
}

func immutable[T comparable](now, before T, path *field.Path) field.ErrorList {
	if now == before {
		return nil
	}
	return field.ErrorList{field.Invalid(path, now, fmt.Sprintf("is immutable, it was %v: make a new object instead", before))}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
