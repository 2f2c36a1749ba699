package cni

import (
	"encoding/json"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
)

// result writes the answer to ADD in the version of the configuration: the two ends
// of the link, the addresses, and a default route of each family. What plugins
// before this one have made comes first.
func result(c *config, a attach.Result) ([]byte, error) {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if c.previous != nil {
		r.Interfaces, r.IPs, r.Routes, r.DNS = c.previous.Interfaces, c.previous.IPs, c.previous.Routes, c.previous.DNS
	}
	if !c.dns.IsEmpty() {
		r.DNS = c.dns
	}
	r.Interfaces = append(r.Interfaces,
		&types100.Interface{Name: a.HostInterface, Mac: claims.GatewayMAC.String(), Mtu: a.MTU},
		&types100.Interface{Name: a.Interface, Mac: a.MAC.String(), Mtu: a.MTU, Sandbox: a.Netns},
	)
	inside := len(r.Interfaces) - 1
	for _, addr := range a.Addresses {
		gateway, everywhere := claims.Gateway4, netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if addr.Is6() {
			gateway, everywhere = claims.Gateway6, netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		r.IPs = append(r.IPs, &types100.IPConfig{
			Interface: &inside,
			Address:   ipNet(netip.PrefixFrom(addr, addr.BitLen())),
			Gateway:   gateway.AsSlice(),
		})
		r.Routes = append(r.Routes, &types.Route{Dst: ipNet(everywhere), GW: gateway.AsSlice()})
	}
	converted, err := r.GetAsVersion(c.version)
	if err != nil {
		return nil, err
	}
	return json.Marshal(converted)
}

// ipNet leaves the world of netip: the library's types want it.
func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// attached is what a previous result says about one interface in a namespace. In
// results that name no interface (0.2.0) every address counts.
func attached(r *types100.Result, ifname, netns string) (attach.Attached, bool) {
	index := -1
	for i, link := range r.Interfaces {
		if link != nil && link.Name == ifname && link.Sandbox == netns {
			index = i
		}
	}
	if index < 0 && len(r.Interfaces) > 0 {
		return attach.Attached{}, false
	}
	var got attach.Attached
	if index >= 0 {
		got.MAC = r.Interfaces[index].Mac
	}
	for _, ip := range r.IPs {
		if ip == nil || ip.Interface != nil && *ip.Interface != index {
			continue
		}
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			got.Addresses = append(got.Addresses, a.Unmap())
		}
	}
	return got, true
}
