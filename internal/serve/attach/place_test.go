package attach

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

func TestChoose(t *testing.T) {
	labels := func(kv string) *world.Selector {
		k, v, _ := strings.Cut(kv, "=")
		return &world.Selector{MatchLabels: map[string]string{k: v}}
	}
	subnets := []*world.Subnet{
		{Name: "a-general", VPC: "default", CIDRs: cidrs("10.1.0.0/24")},
		{Name: "b-empty", VPC: "default", Namespaces: &world.Selector{}, CIDRs: cidrs("10.2.0.0/24", "fd00:2::/64")},
		{Name: "c-team-a", VPC: "default", Namespaces: labels("team=a"), CIDRs: cidrs("10.3.0.0/24")},
		{Name: "d-team-b", VPC: "default", Namespaces: labels("team=b"), CIDRs: cidrs("10.4.0.0/24")},
		{Name: "e-other-vpc", VPC: "blue", CIDRs: cidrs("10.5.0.0/24")},
		{Name: "f-broken", VPC: "default", Namespaces: labels("/=!"), CIDRs: cidrs("10.6.0.0/24")},
		{Name: "g-without-cidrs", VPC: "default", BadCIDRs: []string{"nonsense"}},
		{Name: "h-tenants", VPC: "red", CIDRs: cidrs("10.8.0.0/24")},
	}
	base := []world.Change{
		object(world.KindVPC, "", "blue", &world.VPC{Name: "blue", VNI: 2, Namespaces: labels("vpc=blue")}),
		object(world.KindVPC, "", "red", &world.VPC{Name: "red", VNI: 3, Tenant: true, Namespaces: labels("vpc=red")}),
		object(world.KindVPC, "", "green", &world.VPC{Name: "green", Namespaces: labels("vpc=green")}),
		object(world.KindNamespace, "", "b", &world.Namespace{Name: "b", Labels: map[string]string{"team": "b", "vpc": "blue"}}),
		object(world.KindNamespace, "", "c", &world.Namespace{Name: "c"}),
		object(world.KindNamespace, "", "red1", &world.Namespace{Name: "red1", Labels: map[string]string{"vpc": "red"}}),
		object(world.KindNamespace, "", "red2", &world.Namespace{Name: "red2", Labels: map[string]string{"vpc": "red"}}),
		object(world.KindNamespace, "", "green1", &world.Namespace{Name: "green1", Labels: map[string]string{"vpc": "green"}}),
		object(world.KindNetNamespace, "", "red2", &world.NetNamespace{Name: "red2", VNI: 33}),
	}
	pod := func(namespace string) Request {
		return Request{ContainerID: "x", Pod: world.Owner{Namespace: namespace, Name: "p"}}
	}
	for name, c := range map[string]struct {
		request    Request
		wantSubnet string
		wantIP     string
		vpc        string
		subnets    string
		addrs      []netip.Addr
		err        string
		notYet     bool
	}{
		"selected before general":         {request: pod("ns"), vpc: "default", subnets: "c-team-a a-general b-empty"},
		"general only":                    {request: pod("c"), vpc: "default", subnets: "a-general b-empty"},
		"another VPC":                     {request: pod("b"), vpc: "blue", subnets: "e-other-vpc"},
		"annotation":                      {request: pod("ns"), wantSubnet: "b-empty", vpc: "default", subnets: "b-empty"},
		"configuration":                   {request: Request{Subnet: "b-empty", Pod: pod("ns").Pod}, vpc: "default", subnets: "b-empty"},
		"annotation over configuration":   {request: Request{Subnet: "b-empty", Pod: pod("ns").Pod}, wantSubnet: "a-general", vpc: "default", subnets: "a-general"},
		"annotation of no Subnet":         {request: pod("ns"), wantSubnet: "nope", notYet: true, err: "the Subnet nope, which the pod's annotation fairlead.dev/subnet asks for, does not exist"},
		"annotation of no name":           {request: pod("ns"), wantSubnet: "../x\n", err: `asks for the Subnet "../x\n", which is no name of a Subnet`},
		"annotation of another VPC":       {request: pod("ns"), wantSubnet: "e-other-vpc", err: "is in VPC blue, and the namespace ns in default"},
		"annotation of a reserved Subnet": {request: pod("ns"), wantSubnet: "d-team-b", err: "does not select the namespace ns"},
		"address":                         {request: pod("ns"), wantIP: "10.1.0.7", vpc: "default", subnets: "a-general", addrs: addrs("10.1.0.7")},
		"addresses":                       {request: pod("ns"), wantIP: " fd00:2::7, 10.2.0.7", vpc: "default", subnets: "b-empty", addrs: addrs("10.2.0.7", "fd00:2::7")},
		"address of the request":          {request: Request{Want: addrs("10.3.0.9"), Pod: pod("ns").Pod}, vpc: "default", subnets: "c-team-a", addrs: addrs("10.3.0.9")},
		"address of nowhere":              {request: pod("ns"), wantIP: "192.0.2.1", notYet: true, err: "no Subnet of VPC default for the namespace ns contains 192.0.2.1"},
		"two of a family":                 {request: pod("ns"), wantIP: "10.1.0.7,10.1.0.8", err: "are not one of each family"},
		"three":                           {request: pod("ns"), wantIP: "10.1.0.7,10.1.0.8,fd00::1", err: "has 3 addresses"},
		"no address":                      {request: pod("ns"), wantIP: "$(reboot)", err: `"$(reboot)" is not an IP address`},
		"a megabyte":                      {request: pod("ns"), wantIP: strings.Repeat("é", 1<<19), err: "is not an IP address"},
		"a mapped address":                {request: pod("ns"), wantIP: "::ffff:10.1.0.7", err: "are not one of each family"},
		"isolated, no tenant yet":         {request: pod("red1"), notYet: true, err: "has no NetNamespace yet"},
		"isolated":                        {request: pod("red2"), vpc: "red", subnets: "h-tenants"},
		"VPC without VNI":                 {request: pod("green1"), notYet: true, err: "the VPC green has no VNI"},
		"unknown namespace":               {request: pod("nowhere"), notYet: true, err: "the Namespace nowhere is not known"},
		"standalone":                      {request: Request{ContainerID: "x"}, vpc: "default", subnets: "a-general b-empty"},
		"standalone in a Subnet":          {request: Request{ContainerID: "x", Subnet: "e-other-vpc"}, vpc: "blue", subnets: "e-other-vpc"},
		"standalone among tenants":        {request: Request{ContainerID: "x", Subnet: "h-tenants"}, notYet: true, err: "isolates tenants"},
		"standalone with an address":      {request: Request{ContainerID: "x", Want: addrs("10.2.0.9")}, vpc: "default", subnets: "b-empty", addrs: addrs("10.2.0.9")},
	} {
		t.Run(name, func(t *testing.T) {
			w := baseWorld(options{subnets: subnets, world: base})
			if ns := c.request.Pod.Namespace; ns != "" {
				w.Apply(object(world.KindPod, ns, "p", &world.Pod{Namespace: ns, Name: "p", UID: "u", WantIP: c.wantIP, WantSubnet: c.wantSubnet}))
			}
			s, _ := w.Snapshot()
			p, _, err := choose(s, c.request)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || isNotYet(err) != c.notYet || len(err.Error()) > 500 {
					t.Errorf("got %.600v, not yet: %v", err, isNotYet(err))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, s := range p.subnets {
				names = append(names, s.Name)
			}
			got, want := fmt.Sprint(p.vpc, names, p.want), fmt.Sprint(c.vpc, strings.Fields(c.subnets), c.addrs)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
