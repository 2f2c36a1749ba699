package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// giveTenants keeps one NetNamespace for every Namespace of a VPC that isolates
// tenants. An owner reference ties it to one life of the Namespace: a Namespace that is
// deleted and made again must not inherit the tenant that the old one was joined to.
// One that outlives its VPC's isolation is kept, it has no effect.
func (p *planner) giveTenants(vnis *Sequence) {
	for ns := range p.snap.Namespaces.Values() {
		key := world.Key{Name: ns.Name}
		if _, exists := p.snap.NetNamespaces.Get(key); exists {
			p.tieTenant(ns)
			continue
		}
		home, _ := p.tenancy.VPCOf(ns.Name)
		if !p.tenancy.Isolates(home) {
			continue
		}
		vni, ok := p.grant(vnis, objectRef{world.KindNetNamespace, key})
		if !ok {
			return
		}
		n := &v1alpha1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: ns.Name}, Spec: v1alpha1.NetNamespaceSpec{VNI: int32(vni)}}
		n.OwnerReferences = []metav1.OwnerReference{ownerReference(ns)}
		p.create(datastore.KindNetNamespace, n, "VPC "+home+" isolates tenants")
	}
	for n := range p.snap.NetNamespaces.Values() {
		if _, lives := p.snap.Namespaces.Get(world.Key{Name: n.Name}); !lives {
			p.removeTenant(n.Name)
		}
	}
}

// tieTenant sees that a NetNamespace belongs to the Namespace that there is now.
func (p *planner) tieTenant(ns *world.Namespace) {
	o := p.Objects.NetNamespaces[ns.Name]
	if o == nil {
		return
	}
	switch uid, tied := namespaceOf(o); {
	case tied && string(uid) != ns.UID:
		p.deleteTenant(o, uid, "its Namespace was deleted and made again")
	case !tied:
		next := o.DeepCopy()
		next.OwnerReferences = append(next.OwnerReferences, ownerReference(ns))
		p.write(Write{Action: Update, Ref: Ref{Kind: datastore.KindNetNamespace, Key: datastore.KeyOf(o), UID: o.UID}, Object: next, Why: "to tie it to its Namespace"})
	}
}

// removeTenant deletes a NetNamespace without a Namespace. One that never had one may
// have been applied ahead of it.
func (p *planner) removeTenant(name string) {
	o := p.Objects.NetNamespaces[name]
	if o == nil {
		return
	}
	if uid, tied := namespaceOf(o); tied {
		p.deleteTenant(o, uid, "its Namespace is gone")
		return
	}
	since, seen := p.old.orphans[name]
	if !seen {
		since = p.Now
	}
	p.out.Memory.orphans[name] = since
	if due := since.Add(p.Grace); p.Now.Before(due) {
		p.again(due)
		return
	}
	p.deleteTenant(o, "", "it has no Namespace")
}

func (p *planner) deleteTenant(o *v1alpha1.NetNamespace, namespace types.UID, why string) {
	p.write(Write{
		Action: Delete, Ref: Ref{Kind: datastore.KindNetNamespace, Key: datastore.KeyOf(o), UID: o.UID},
		Absent: Ref{Kind: datastore.KindNamespace, Key: datastore.Key{Name: o.Name}, UID: namespace}, Why: why,
	})
}

func ownerReference(ns *world.Namespace) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: corev1.SchemeGroupVersion.String(), Kind: string(datastore.KindNamespace), Name: ns.Name, UID: types.UID(ns.UID),
	}
}

// namespaceOf is the Namespace that a NetNamespace is tied to.
func namespaceOf(o *v1alpha1.NetNamespace) (types.UID, bool) {
	i := slices.IndexFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.APIVersion == "v1" && r.Kind == string(datastore.KindNamespace) && r.Name == o.Name
	})
	if i < 0 {
		return "", false
	}
	return o.OwnerReferences[i].UID, true
}
