package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Versions of what is built.
const (
	kubernetesVersion = "v1.37.2"
	containerdVersion = "v2.4.2"
	etcdVersion       = "v3.7.3"
	pluginsVersion    = "v1.10.0"
	corednsVersion    = "v1.15.0"
	policyAPIVersion  = "v0.3.0"
)

// Addresses of the cluster. They exist in its own namespaces only.
const (
	podCIDR     = "10.244.0.0/16"
	podCIDR6    = "fd00:10:244::/56"
	serviceCIDR = "10.96.0.0/16,fd00:10:96::/112"
	clusterDNS  = "10.96.0.10"
	apiService  = "10.96.0.1"
	maxNodes    = 100
	outsidePort = 8080
	fabricMTU   = 1500
)

var (
	nodeSegment     = netip.MustParsePrefix("172.30.0.0/24")
	nodeSegment6    = netip.MustParsePrefix("fd00:172:30::/64")
	outsideSegment  = netip.MustParsePrefix("198.51.100.0/24")
	outsideSegment6 = netip.MustParsePrefix("fd00:198:51::/64")
)

// host is the nth address of a segment, with the segment's length.
func host(segment netip.Prefix, n int) netip.Prefix {
	a := segment.Addr().AsSlice()
	a[len(a)-1] += byte(n)
	addr, _ := netip.AddrFromSlice(a)
	return netip.PrefixFrom(addr, segment.Bits())
}

func controlAddress() netip.Addr { return host(nodeSegment, 2).Addr() }
func nodeAddress(i int) netip.Addr {
	return host(nodeSegment, 10+i).Addr()
}

func nodeAddress6(i int) netip.Addr {
	return host(nodeSegment6, 10+i).Addr()
}
func outsideAddress() netip.Addr  { return host(outsideSegment, 2).Addr() }
func outsideAddress6() netip.Addr { return host(outsideSegment6, 2).Addr() }

func nodeName(i int) string { return fmt.Sprintf("node%d", i) }

// layout is where everything lies: below one cache directory.
type layout struct{ root string }

// newLayout finds the cache directory.
func newLayout() (layout, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return layout{}, fmt.Errorf("find the cache directory (set XDG_CACHE_HOME): %w", err)
	}
	return layout{root: filepath.Join(cache, "fairlead-kube")}, nil
}

func (l layout) bin(name string) string { return filepath.Join(l.root, "bin", name) }
func (l layout) src(name string) string { return filepath.Join(l.root, "src", name) }
func (l layout) image(name string) string {
	return filepath.Join(l.root, "images", name+".tar")
}

// run is what a running cluster has: it goes away with it.
func (l layout) run(elem ...string) string {
	return filepath.Join(append([]string{l.root, "run"}, elem...)...)
}

func (l layout) pki(name string) string        { return l.run("pki", name) }
func (l layout) kubeconfig(user string) string { return l.run("conf", user+".kubeconfig") }
func (l layout) machine(name string, elem ...string) string {
	return l.run(append([]string{"machines", name}, elem...)...)
}

// output is what a cluster leaves for people: reports of tests.
func (l layout) output(elem ...string) string {
	return filepath.Join(append([]string{l.root, "output"}, elem...)...)
}
