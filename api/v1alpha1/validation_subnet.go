package v1alpha1

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateSubnet checks a Subnet by itself, defaults filled in. old is nil on
// create. Overlap with other objects is ValidateSubnetAgainst's question.
func ValidateSubnet(s, old *Subnet) field.ErrorList {
	errs := validateLabelName(s.Name)
	path := field.NewPath("spec")
	errs = append(errs, labelValue(s.Spec.VPC, path.Child("vpc"))...)
	errs = append(errs, validateTransport(&s.Spec, path)...)
	errs = append(errs, validateCIDRs(s.Spec.CIDRs, path.Child("cidrs"))...)
	errs = append(errs, validateBlockSize(&s.Spec, path.Child("blockSize"))...)
	errs = append(errs, validateExclude(&s.Spec, path.Child("exclude"))...)
	errs = append(errs, validateGateway(&s.Spec, path.Child("gateway"))...)
	errs = append(errs, validateSelector(s.Spec.Namespaces, path.Child("namespaces"))...)
	if old != nil {
		errs = append(errs, validateSubnetUpdate(&s.Spec, &old.Spec, path)...)
	}
	return append(errs, validateConditions(s.Status.Conditions)...)
}

func validateTransport(spec *SubnetSpec, path *field.Path) field.ErrorList {
	errs := oneOf(spec.Transport, path.Child("transport"), TransportOverlay, TransportRouted, TransportUnderlay)
	encap := oneOf(spec.Encapsulation, path.Child("encapsulation"), EncapsulationVXLAN, EncapsulationCrossSubnet, EncapsulationNone)
	errs = append(errs, encap...)
	if len(errs) > 0 {
		return errs
	}
	if overlay := spec.Transport == TransportOverlay; overlay == (spec.Encapsulation == EncapsulationNone) {
		right := "None"
		if overlay {
			right = "VXLAN or CrossSubnet"
		}
		errs = append(errs, field.Invalid(path.Child("encapsulation"), spec.Encapsulation,
			fmt.Sprintf("must be %s with transport %s", right, spec.Transport)))
	}
	return errs
}

func validateCIDRs(texts []string, path *field.Path) field.ErrorList {
	switch n := len(texts); {
	case n == 0:
		return field.ErrorList{field.Required(path, "at least one CIDR, such as 10.128.0.0/14 or fd00:10::/64")}
	case n > MaxCIDRs:
		return field.ErrorList{field.TooMany(path, n, MaxCIDRs)}
	}
	var errs field.ErrorList
	parsed := make([]netip.Prefix, len(texts))
	for i, s := range texts {
		p, err := ParseCIDR(s)
		if err == nil {
			err = CheckUsable(p)
		}
		if err != nil {
			errs = append(errs, field.Invalid(path.Index(i), s, err.Error()))
			continue
		}
		for j, q := range parsed[:i] {
			if q.IsValid() && q.Overlaps(p) {
				errs = append(errs, field.Invalid(path.Index(i), s, fmt.Sprintf("overlaps %s (%s)", path.Index(j), q)))
				break
			}
		}
		parsed[i] = p
	}
	return errs
}

func validateBlockSize(spec *SubnetSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	size := spec.BlockSize
	if size.V4 < 16 || size.V4 > 32 {
		errs = append(errs, field.Invalid(path.Child("v4"), size.V4, "must be a prefix length between 16 and 32"))
	}
	if size.V6 < 64 || size.V6 > 128 {
		errs = append(errs, field.Invalid(path.Child("v6"), size.V6, "must be a prefix length between 64 and 128"))
	}
	if len(errs) > 0 {
		return errs
	}
	// One error a family, about the smallest CIDR: its length is what would be right.
	longest := map[bool]netip.Prefix{}
	for _, p := range validCIDRs(spec.CIDRs) {
		if best, ok := longest[p.Addr().Is4()]; !ok || p.Bits() > best.Bits() {
			longest[p.Addr().Is4()] = p
		}
	}
	if p, ok := longest[true]; ok && p.Bits() > int(size.V4) {
		errs = append(errs, blockTooLarge(path.Child("v4"), size.V4, p))
	}
	if p, ok := longest[false]; ok && p.Bits() > int(size.V6) {
		errs = append(errs, blockTooLarge(path.Child("v6"), size.V6, p))
	}
	return errs
}

func blockTooLarge(path *field.Path, size int32, p netip.Prefix) *field.Error {
	return field.Invalid(path, size, fmt.Sprintf("a /%d block is larger than the CIDR %s: use %d or more", size, p, p.Bits()))
}

func validateExclude(spec *SubnetSpec, path *field.Path) field.ErrorList {
	if n := len(spec.Exclude); n > maxExcludes {
		return field.ErrorList{field.TooMany(path, n, maxExcludes)}
	}
	var errs field.ErrorList
	cidrs := validCIDRs(spec.CIDRs)
	for i, s := range spec.Exclude {
		p, err := ParseExclude(s)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(path.Index(i), s, err.Error()))
		case len(cidrs) == len(spec.CIDRs) && !containedInAny(cidrs, p):
			errs = append(errs, field.Invalid(path.Index(i), s, fmt.Sprintf("is not inside any of the cidrs %v", spec.CIDRs)))
		}
	}
	return errs
}

// ParseExclude reads an element of spec.exclude: an address or a CIDR.
func ParseExclude(s string) (netip.Prefix, error) {
	if a, err := ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return ParseCIDR(s)
}

func validateGateway(spec *SubnetSpec, path *field.Path) field.ErrorList {
	if len(spec.Gateway) == 0 {
		return nil
	}
	if spec.Transport != TransportUnderlay {
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("only with transport Underlay: with %s the pods' gateway is constant", spec.Transport))}
	}
	var errs field.ErrorList
	cidrs := validCIDRs(spec.CIDRs)
	seen := map[bool]string{}
	for i, s := range spec.Gateway {
		a, err := ParseAddr(s)
		if err != nil {
			errs = append(errs, field.Invalid(path.Index(i), s, err.Error()))
			continue
		}
		if first := seen[a.Is4()]; first != "" {
			errs = append(errs, field.Invalid(path.Index(i), s, fmt.Sprintf("only one gateway a family: %s is of the same", first)))
			continue
		}
		seen[a.Is4()] = s
		if len(cidrs) == len(spec.CIDRs) && !containedInAny(cidrs, netip.PrefixFrom(a, a.BitLen())) {
			errs = append(errs, field.Invalid(path.Index(i), s, fmt.Sprintf("is not inside any of the cidrs %v", spec.CIDRs)))
		}
	}
	return errs
}

func validateSubnetUpdate(now, before *SubnetSpec, path *field.Path) field.ErrorList {
	errs := immutable(now.VPC, before.VPC, path.Child("vpc"))
	errs = append(errs, immutable(now.Transport, before.Transport, path.Child("transport"))...)
	errs = append(errs, immutable(now.BlockSize.V4, before.BlockSize.V4, path.Child("blockSize", "v4"))...)
	errs = append(errs, immutable(now.BlockSize.V6, before.BlockSize.V6, path.Child("blockSize", "v6"))...)
	for _, c := range before.CIDRs {
		if !slices.Contains(now.CIDRs, c) {
			errs = append(errs, field.Invalid(path.Child("cidrs"), now.CIDRs,
				fmt.Sprintf("%s is missing: existing CIDRs may not be changed or removed, only added", c)))
		}
	}
	return errs
}

// ValidateSubnetAgainst checks the CIDRs of a Subnet against the other objects
// of the datastore: the Subnets of the same VPC, and the nodes' own networks
// (but for transport Underlay, where pods live on them). CIDRs that old had
// already are not judged again. Two Subnets that are created at the same moment
// can both pass: the controller reports that as a condition. Subnets of another
// VPC may overlap as far as the API is concerned.
func ValidateSubnetAgainst(s, old *Subnet, subnets []*Subnet, nodes []*NodeNetwork) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "cidrs")
	for i, text := range s.Spec.CIDRs {
		p, err := ParseCIDR(text)
		if err != nil || old != nil && slices.Contains(old.Spec.CIDRs, text) {
			continue
		}
		if who := overlapping(s, p, subnets, nodes); who != "" {
			errs = append(errs, field.Invalid(path.Index(i), text, "overlaps "+who))
		}
	}
	return errs
}

func overlapping(s *Subnet, p netip.Prefix, subnets []*Subnet, nodes []*NodeNetwork) string {
	for _, other := range subnets {
		if other.Name == s.Name || other.Spec.VPC != s.Spec.VPC {
			continue
		}
		for _, q := range validCIDRs(other.Spec.CIDRs) {
			if q.Overlaps(p) {
				return fmt.Sprintf("%s of Subnet %s in the same VPC %s: choose another range", q, other.Name, s.Spec.VPC)
			}
		}
	}
	if s.Spec.Transport == TransportUnderlay {
		return ""
	}
	for _, n := range nodes {
		for _, text := range n.Spec.Addresses {
			if q, err := netip.ParsePrefix(text); err == nil && q.Overlaps(p) {
				return fmt.Sprintf("the network %s of node %s: choose another range", q.Masked(), n.Name)
			}
		}
	}
	return ""
}
