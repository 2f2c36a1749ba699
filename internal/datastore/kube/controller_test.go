package kube_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/controller"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// The controller leads by a Lease, makes the default objects, writes status and keeps it,
// all through the API: nothing that it writes is refused.
func TestControllerReal(t *testing.T) {
	s := realServer(t)
	s.defineOurs(t)
	s.empty(t)
	defer s.empty(t)
	c := s.config()
	c.Lean = true
	store := open(t, c)
	if _, err := store.Create(t.Context(), &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1alpha1.NodeNetworkSpec{Addresses: []string{"172.30.0.11/24", "fd00:30::11/64"}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}); err != nil {
		t.Fatal(err)
	}
	subnet := &v1alpha1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultSubnetName}, Spec: v1alpha1.SubnetSpec{CIDRs: []string{"10.128.0.0/14", "fd00:10::/64"}}}
	v1alpha1.DefaultSubnet(subnet)
	defer lead(t, store, controller.Config{DefaultSubnet: subnet})()
	eventually(t, func() error {
		o, err := store.Get(t.Context(), datastore.KindSubnet, datastore.Key{Name: v1alpha1.DefaultSubnetName})
		if err != nil {
			return err
		}
		if sn := o.(*v1alpha1.Subnet); len(sn.Status.Conditions) == 0 || meta.FindStatusCondition(sn.Status.Conditions, sn.Status.Conditions[0].Type) == nil {
			return fmt.Errorf("the default Subnet has no conditions: %+v", sn.Status)
		}
		_, err = store.Get(t.Context(), datastore.KindVPC, datastore.Key{Name: v1alpha1.DefaultVPCName})
		return err
	})
	lease := datastore.Key{Namespace: "kube-system", Name: "fairlead-controller"}
	if _, err := store.Get(t.Context(), datastore.KindLease, lease); err != nil {
		t.Errorf("the election's Lease: %v", err)
	}
}
