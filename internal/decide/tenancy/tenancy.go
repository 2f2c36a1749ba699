package tenancy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/decide/selector"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Standing is what is known of a VPC that something refers to.
type Standing uint8

// The standings.
const (
	// Unknown: there is no such VPC.
	Unknown Standing = iota
	// Unusable: it exists, but has no VNI of its own; a Problem says why.
	Unusable
	// Usable: it has a VNI.
	Usable
)

// Result is what Decide found. It is immutable.
type Result struct {
	// VPCs that are usable, sorted by name.
	VPCs     []intent.VPC
	Problems []world.Problem

	vpcs    map[string]*vpc
	home    map[string]string // namespace → VPC; namespaces of the world only
	tenants map[string]tenant // namespace → tenant, of VPCs with isolation Tenant
}

type vpc struct {
	*world.VPC
	matcher selector.Matcher
	usable  bool
}

// tenant is a namespace's own VNI, or the reason why it has none.
type tenant struct {
	vni    packet.VNI
	global bool
	err    error
}

// Decide reads the three tables.
func Decide(namespaces world.Table[*world.Namespace], vpcs world.Table[*world.VPC], netNamespaces world.Table[*world.NetNamespace]) *Result {
	r := &Result{
		vpcs:    make(map[string]*vpc, vpcs.Len()),
		home:    make(map[string]string, namespaces.Len()),
		tenants: map[string]tenant{},
	}
	byAge := r.readVPCs(vpcs)
	r.settle(byAge, namespaces)
	byVPC := r.nameTenants(byAge, namespaces, netNamespaces)
	for _, v := range byAge {
		if v.usable {
			r.VPCs = append(r.VPCs, intent.VPC{Name: v.Name, VNI: v.VNI, Tenants: byVPC[v.Name]})
		}
	}
	slices.SortFunc(r.VPCs, intent.VPC.Compare)
	slices.SortFunc(r.Problems, world.Problem.Compare)
	return r
}

// readVPCs parses selectors and finds which VPCs have a VNI of their own.
func (r *Result) readVPCs(vpcs world.Table[*world.VPC]) []*vpc {
	byAge := make([]*vpc, 0, vpcs.Len())
	for w := range vpcs.Values() {
		v := &vpc{VPC: w}
		matcher, err := selector.Parse(w.Namespaces)
		if err != nil {
			r.vpcProblem(w.Name, "spec.namespaces", "InvalidSelector", "selects no namespace: "+strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		v.matcher = matcher
		r.vpcs[w.Name] = v
		byAge = append(byAge, v)
	}
	slices.SortFunc(byAge, func(a, b *vpc) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) })
	owner := map[packet.VNI]string{}
	for _, v := range byAge {
		switch first, taken := owner[v.VNI]; {
		case v.VNI == 0:
			r.vpcProblem(v.Name, "status.vni", "VNIPending", "waits for the controller to give it a VNI; until then its namespaces and Subnets have no network")
		case v.VNI > packet.MaxVNI:
			r.vpcProblem(v.Name, "status.vni", "VNIInvalid", fmt.Sprintf("VNI %d does not fit the 24 bits of the wire", v.VNI))
		case taken:
			r.vpcProblem(v.Name, "status.vni", "DuplicateVNI", fmt.Sprintf("VNI %d belongs to the older VPC %s", v.VNI, first))
		default:
			owner[v.VNI], v.usable = v.Name, true
		}
	}
	return byAge
}

// settle gives every namespace its VPC.
func (r *Result) settle(byAge []*vpc, namespaces world.Table[*world.Namespace]) {
	lost := map[string][]string{} // younger VPC → namespaces that it selects in vain
	homeless := 0
	for ns := range namespaces.Values() {
		var selecting []string
		for _, v := range byAge {
			if v.matcher.Matches(ns.Labels) {
				selecting = append(selecting, v.Name)
			}
		}
		home := packet.DefaultVPC
		if len(selecting) > 0 {
			home = selecting[0]
		} else if r.vpcs[home] == nil {
			homeless++
		}
		r.home[ns.Name] = home
		if len(selecting) > 1 {
			r.Problems = append(r.Problems, world.Problem{
				Kind: world.KindNamespace, Key: world.Key{Name: ns.Name}, Reason: "SeveralVPCs",
				Message: fmt.Sprintf("VPCs %s select it: it is in %s, the oldest", strings.Join(selecting, ", "), home),
			})
			for _, name := range selecting[1:] {
				lost[name] = append(lost[name], ns.Name+" (in "+home+")")
			}
		}
	}
	for name, nss := range lost {
		r.vpcProblem(name, "spec.namespaces", "SeveralVPCs", "selects namespaces that an older VPC selects too: "+enumerate(nss))
	}
	if homeless > 0 {
		r.vpcProblem(packet.DefaultVPC, "", "VPCMissing", fmt.Sprintf("does not exist: the controller creates it; until then %d namespaces that no VPC selects have no network", homeless))
	}
}

// nameTenants gives namespaces of VPCs with isolation Tenant their VNIs, and
// returns each such VPC's list of them. A VNI goes to the oldest VPC that uses it.
func (r *Result) nameTenants(byAge []*vpc, namespaces world.Table[*world.Namespace], netNamespaces world.Table[*world.NetNamespace]) map[string][]packet.VNI {
	owner := map[packet.VNI]string{} // VNI → VPC
	for _, v := range byAge {
		if v.usable {
			owner[v.VNI] = v.Name
		}
	}
	claims := map[string][]*world.NetNamespace{}
	for ns := range namespaces.Values() {
		home := r.vpcs[r.home[ns.Name]]
		if home == nil || !home.usable || !home.Tenant {
			continue
		}
		n, ok := netNamespaces.Get(world.Key{Name: ns.Name})
		if !ok {
			r.tenants[ns.Name] = tenant{err: errNoTenant}
			continue
		}
		claims[home.Name] = append(claims[home.Name], n)
	}
	lists := map[string][]packet.VNI{}
	for _, v := range byAge {
		for _, n := range claims[v.Name] {
			t := tenant{vni: n.VNI, global: n.Global}
			first, taken := owner[n.VNI]
			switch {
			case n.VNI == 0 || n.VNI > packet.MaxVNI:
				t.err = fmt.Errorf("VNI %d is not between 1 and %d", n.VNI, packet.MaxVNI)
			case taken && first == v.Name && n.VNI == v.VNI:
				t.err = fmt.Errorf("VNI %d is that of the VPC %s itself, which reaches every tenant", n.VNI, v.Name)
			case taken && first != v.Name:
				t.err = fmt.Errorf("VNI %d belongs to the VPC %s, and this namespace is in %s", n.VNI, first, v.Name)
			default:
				owner[n.VNI] = v.Name
				lists[v.Name] = append(lists[v.Name], n.VNI)
			}
			r.tenants[n.Name] = t
			if t.err != nil {
				r.Problems = append(r.Problems, world.Problem{
					Kind: world.KindNetNamespace, Key: world.Key{Name: n.Name}, Field: "spec.vni", Reason: "VNIConflict",
					Message: t.err.Error() + "; the namespace's pods have no network until it has a VNI of its own",
				})
			}
		}
		slices.Sort(lists[v.Name])
		lists[v.Name] = slices.Compact(lists[v.Name])
	}
	return lists
}

var errNoTenant = errors.New("the namespace has no NetNamespace yet, and its VPC isolates tenants: wait for the controller")

// Standing says whether a VPC exists and is usable.
func (r *Result) Standing(name string) Standing {
	switch v := r.vpcs[name]; {
	case v == nil:
		return Unknown
	case !v.usable:
		return Unusable
	}
	return Usable
}

// Isolates reports whether a VPC cuts its tenants apart.
func (r *Result) Isolates(name string) bool {
	v := r.vpcs[name]
	return v != nil && v.Tenant
}

// VPCOf returns the VPC that a namespace is in, and false for a namespace that
// the world does not hold.
func (r *Result) VPCOf(namespace string) (string, bool) {
	name, ok := r.home[namespace]
	return name, ok
}

// VNI returns what the packets of a pod bear whose address is in the given VPC and
// whose namespace is the given one; the empty namespace is an attachment without a
// pod. The error says why it has none.
func (r *Result) VNI(vpc, namespace string) (packet.VNI, error) {
	v := r.vpcs[vpc]
	switch {
	case v == nil:
		return 0, fmt.Errorf("there is no VPC %s", vpc)
	case !v.usable:
		return 0, fmt.Errorf("the VPC %s has no VNI", vpc)
	case !v.Tenant:
		return v.VNI, nil
	case namespace == "":
		return 0, fmt.Errorf("the VPC %s isolates tenants, and an attachment without a pod has none", vpc)
	}
	home, known := r.home[namespace]
	if !known {
		return 0, fmt.Errorf("the VPC %s isolates tenants, and the namespace %s is not known", vpc, namespace)
	}
	if home != vpc {
		return 0, fmt.Errorf("the VPC %s isolates tenants, and the namespace %s is now in %s", vpc, namespace, home)
	}
	t := r.tenants[namespace]
	if t.err != nil {
		return 0, t.err
	}
	if t.global {
		return v.VNI, nil
	}
	return t.vni, nil
}

func (r *Result) vpcProblem(name, field, reason, message string) {
	r.Problems = append(r.Problems, world.Problem{Kind: world.KindVPC, Key: world.Key{Name: name}, Field: field, Reason: reason, Message: message})
}

// enumerate names the first few of a list, so that messages stay bounded.
func enumerate(names []string) string {
	const shown = 5
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}
