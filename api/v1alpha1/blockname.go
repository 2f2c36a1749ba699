package v1alpha1

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// BlockName is the name of the IPBlock that covers cidr in a Subnet:
// SUBNET.HEXADDRESS-BITS, with every byte of the network address as two
// lower-case hex digits ("default.0a800040-26"). One name a block makes two
// nodes that claim the same block collide at the datastore.
func BlockName(subnet string, cidr netip.Prefix) string {
	return subnet + "." + hex.EncodeToString(cidr.Addr().AsSlice()) + "-" + strconv.Itoa(cidr.Bits())
}

// ParseBlockName is the inverse of BlockName.
func ParseBlockName(name string) (subnet string, cidr netip.Prefix, err error) {
	subnet, cidr, ok := splitBlockName(name)
	// Comparing with the name made anew refuses leading zeros, host bits,
	// upper-case digits and everything else that BlockName never writes.
	if !ok || BlockName(subnet, cidr) != name {
		return "", netip.Prefix{}, fmt.Errorf("block name %q is not of the form SUBNET.HEXADDRESS-BITS, such as default.0a800040-26", name)
	}
	return subnet, cidr, nil
}

func splitBlockName(name string) (string, netip.Prefix, bool) {
	dot := strings.LastIndexByte(name, '.')
	if dot <= 0 {
		return "", netip.Prefix{}, false
	}
	digits, bits, ok := strings.Cut(name[dot+1:], "-")
	if !ok {
		return "", netip.Prefix{}, false
	}
	raw, err := hex.DecodeString(digits)
	if err != nil {
		return "", netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok || addr.Is4In6() {
		return "", netip.Prefix{}, false
	}
	n, err := strconv.Atoi(bits)
	if err != nil {
		return "", netip.Prefix{}, false
	}
	cidr, err := addr.Prefix(n)
	if err != nil {
		return "", netip.Prefix{}, false
	}
	return name[:dot], cidr, true
}
