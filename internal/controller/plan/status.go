package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

const (
	// countsPause is the least time between two writes of a status in which only numbers
	// and words have changed: addresses come and go all the time.
	countsPause = 2 * time.Second
	// maxMessage bounds a condition's message, in bytes (the API allows 32 KiB).
	maxMessage = 1024
)

// verdict is what is said about a VPC or Subnet.
type verdict struct {
	inUse bool
	// reason and message say why it is not.
	reason, message string
	warnings        []world.Problem
	realised        realisation
}

// describeVPCs writes the status of VPCs: the VNI, and what tenancy decides.
func (p *planner) describeVPCs() {
	conflicts := p.tenantConflicts()
	for w := range p.snap.VPCs.Values() {
		o := p.Objects.VPCs[w.Name]
		if o == nil {
			continue
		}
		v := verdict{inUse: p.tenancy.Standing(w.Name) == tenancy.Usable, realised: p.realised(world.KindVPC, w.Name)}
		v.judge(p.own(world.KindVPC, w.Name))
		v.warnings = append(v.warnings, conflicts[w.Name]...)
		next := o.DeepCopy()
		next.Status.VNI, next.Status.ObservedGeneration = int32(w.VNI), o.Generation
		p.conditions(v, &next.Status.Conditions, o.Generation)
		if equality.Semantic.DeepEqual(next.Status, o.Status) {
			continue
		}
		important := next.Status.VNI != o.Status.VNI || next.Status.ObservedGeneration != o.Status.ObservedGeneration
		p.writeStatus(world.KindVPC, next, important || !sameStanding(o.Status.Conditions, next.Status.Conditions))
	}
}

// tenantConflicts are problems of NetNamespaces, which have no status, by the VPC of
// their namespace.
func (p *planner) tenantConflicts() map[string][]world.Problem {
	out := map[string][]world.Problem{}
	for _, pr := range p.tenancy.Problems {
		if pr.Kind != world.KindNetNamespace {
			continue
		}
		home, _ := p.tenancy.VPCOf(pr.Key.Name)
		pr.Field, pr.Message = "", fmt.Sprintf("NetNamespace %s: %s", pr.Key.Name, pr.Message)
		out[home] = append(out[home], pr)
	}
	return out
}

// describeSubnets writes the status of Subnets: what addressing decides, and how many
// addresses there are and are given.
func (p *planner) describeSubnets() {
	p.countAddresses()
	for w := range p.snap.Subnets.Values() {
		o := p.Objects.Subnets[w.Name]
		if o == nil {
			continue
		}
		next := o.DeepCopy()
		st := &next.Status
		st.ObservedGeneration = o.Generation
		v := verdict{realised: p.realised(world.KindSubnet, w.Name)}
		_, v.inUse = p.subnets.Get(w.Name)
		own := append(p.own(world.KindSubnet, w.Name), p.serviceOverlaps(w)...)
		if !v.inUse && len(own) == 0 {
			own = []world.Problem{{Reason: "VPCNotReady", Message: fmt.Sprintf("its VPC %s is not in use: see the conditions of the VPC", w.VPC)}}
		}
		v.judge(own)
		p.conditions(v, &st.Conditions, o.Generation)
		p.fill(w, st, o.Generation)
		if equality.Semantic.DeepEqual(next.Status, o.Status) {
			continue
		}
		important := st.ObservedGeneration != o.Status.ObservedGeneration || !sameStanding(o.Status.Conditions, st.Conditions)
		p.writeStatus(world.KindSubnet, next, important)
	}
}

// serviceOverlaps are the ranges of Services that a Subnet's range overlaps.
func (p *planner) serviceOverlaps(w *world.Subnet) []world.Problem {
	var out []world.Problem
	for _, cidr := range w.CIDRs {
		for _, services := range p.Objects.ServiceRanges {
			if cidr.Overlaps(services) {
				out = append(out, world.Problem{Kind: world.KindSubnet, Key: world.Key{Name: w.Name}, Reason: "ServiceRange", Message: fmt.Sprintf(
					"%s overlaps the range %s of Services: pods and Services would share addresses; make a Subnet of another range, and delete this one", cidr, services)})
			}
		}
	}
	return out
}

// judge reads the controller's own problems: warnings of an object in use, else the
// reason why it is not.
func (v *verdict) judge(own []world.Problem) {
	if v.inUse {
		v.warnings = own
		return
	}
	v.reason, v.message = "NotInUse", "is not in use"
	if len(own) == 0 {
		return
	}
	stops := slices.IndexFunc(own, func(pr world.Problem) bool { return !slices.Contains(harmless(), pr.Reason) })
	v.reason, v.message = own[max(stops, 0)].Reason, sentences(own)
}

// harmless are the reasons of problems for which at most a part of an object is left out.
func harmless() []string {
	return []string{"InvalidAddress", "InvalidBlockSize", "InvalidCIDR", "InvalidExclude", "InvalidSelector", "InvalidTransport", "InvalidVNI", "SeveralVPCs", "ServiceRange"}
}

// conditions sets Ready, Realised and, once there has been any, Warnings.
func (p *planner) conditions(v verdict, conditions *[]metav1.Condition, generation int64) {
	ready := metav1.Condition{Status: metav1.ConditionTrue, Reason: "InUse", Message: "valid and in use"}
	realised := metav1.Condition{Status: metav1.ConditionTrue, Reason: "Realised", Message: v.realised.String()}
	switch {
	case !v.inUse:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v.reason, v.message
		realised.Status, realised.Reason, realised.Message = metav1.ConditionFalse, "NotInUse", "not in use, so on no node"
	case v.realised.nodes == 0:
		realised.Status, realised.Reason, realised.Message = metav1.ConditionUnknown, "NoNodes", "no node has told anything yet"
	case v.realised.done < v.realised.nodes:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "NotRealised", v.realised.String()
		realised.Status, realised.Reason = metav1.ConditionFalse, "NotRealised"
	}
	p.condition(conditions, v1alpha1.ConditionReady, ready, generation)
	p.condition(conditions, v1alpha1.ConditionRealised, realised, generation)
	switch {
	case len(v.warnings) > 0:
		p.condition(conditions, v1alpha1.ConditionWarnings, metav1.Condition{
			Status: metav1.ConditionTrue, Reason: v.warnings[0].Reason, Message: sentences(v.warnings),
		}, generation)
	case meta.FindStatusCondition(*conditions, v1alpha1.ConditionWarnings) != nil:
		p.condition(conditions, v1alpha1.ConditionWarnings, metav1.Condition{Status: metav1.ConditionFalse, Reason: "None", Message: "nothing is wrong"}, generation)
	}
}

func (p *planner) condition(conditions *[]metav1.Condition, kind string, c metav1.Condition, generation int64) {
	c.Type, c.ObservedGeneration = kind, generation
	c.LastTransitionTime = metav1.NewTime(p.Now.UTC().Truncate(time.Second))
	c.Message = cut(c.Message, maxMessage)
	meta.SetStatusCondition(conditions, c)
}

// count is how many addresses of a Subnet there are and are given.
type count struct {
	blocks              int
	capacity, allocated uint64
	families            []ipam.Usage
}

// counted holds the counts of some tables, by Subnet.
type counted struct {
	from   world.Snapshot
	counts map[string]count
}

func (p *planner) countAddresses() {
	c, now := p.old.counted, &p.snap
	if c == nil || c.from.Blocks != now.Blocks || c.from.NodeNetworks != now.NodeNetworks || c.from.Subnets != now.Subnets {
		c = &counted{*now, countAll(now)}
	}
	p.counts = c.counts
	p.out.Memory.counted = c
}

func countAll(snap *world.Snapshot) map[string]count {
	blocks := map[string][]*world.Block{}
	for b := range snap.Blocks.Values() {
		blocks[b.Subnet] = append(blocks[b.Subnet], b)
	}
	var borrowers []*world.NodeNetwork
	for n := range snap.NodeNetworks.Values() {
		if len(n.Borrowed) > 0 {
			borrowers = append(borrowers, n)
		}
	}
	out := map[string]count{}
	for w := range snap.Subnets.Values() {
		sn := ipam.Subnet{Name: w.Name, VPC: w.VPC, CIDRs: w.CIDRs, BlockBits4: w.BlockBits4, BlockBits6: w.BlockBits6, Exclude: w.Exclude}
		c := count{blocks: len(blocks[w.Name])}
		for _, f := range ipam.Families() {
			if !sn.Has(f) {
				continue
			}
			u := ipam.SubnetUsage(sn, f, blocks[w.Name], borrowers)
			c.capacity = min(c.capacity+sn.Capacity(f), ipam.MaxCount)
			c.allocated = min(c.allocated+u.Used+u.Tunnels, ipam.MaxCount)
			c.families = append(c.families, u)
		}
		out[w.Name] = c
	}
	return out
}

// fill writes the numbers into a status, and says when a family is nearly full.
func (p *planner) fill(w *world.Subnet, st *v1alpha1.SubnetStatus, generation int64) {
	c := p.counts[w.Name]
	st.Blocks, st.Capacity, st.Allocated = int32(c.blocks), int64(c.capacity), int64(c.allocated)
	var full []string
	reason := "NearlyFull"
	for _, u := range c.families {
		if u.Warning {
			full = append(full, fmt.Sprintf("%d of %d %s addresses are used (%d %%)", u.Used, u.Capacity, u.Family, u.Percent))
		}
		if u.Capacity > 0 && u.Free == 0 {
			reason = "Full"
		}
	}
	message := strings.Join(full, "; ") + ": add a CIDR to the Subnet"
	switch {
	case len(full) > 0:
		p.condition(&st.Conditions, v1alpha1.ConditionNearlyFull, metav1.Condition{Status: metav1.ConditionTrue, Reason: reason, Message: message}, generation)
		p.full = append(p.full, world.Problem{Kind: world.KindSubnet, Key: world.Key{Name: w.Name}, Reason: reason, Message: message})
	case meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionNearlyFull) != nil:
		p.condition(&st.Conditions, v1alpha1.ConditionNearlyFull, metav1.Condition{Status: metav1.ConditionFalse, Reason: "Room", Message: "there is room"}, generation)
	}
}

// sameStanding reports whether two lists of conditions differ in words only.
func sameStanding(a, b []metav1.Condition) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.Condition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason
	})
}

// writeStatus writes what is important at once and the rest in turn.
func (p *planner) writeStatus(kind world.Kind, o datastore.Object, important bool) {
	key := world.Key{Name: o.GetName()}
	last, wrote := p.old.written[objectRef{kind, key}]
	if due := last.Add(countsPause); wrote && !important && p.Now.Before(due) {
		p.again(due)
		return
	}
	p.out.Memory.written[objectRef{kind, key}] = p.Now
	p.write(Write{
		Action: UpdateStatus, Ref: Ref{Kind: datastore.Kind(kind), Key: datastore.KeyOf(o), UID: o.GetUID()},
		Object: o, Why: "its status is not what it should be",
	})
}

// cut shortens a text to at most n bytes, at the end of a rune.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-3], "") + "…"
}
