package kube_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

func subnetOf(change func(*v1alpha1.SubnetSpec)) *v1alpha1.Subnet {
	s := &v1alpha1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: v1alpha1.SubnetSpec{CIDRs: []string{"10.128.0.0/14", "fd00:10::/64"}}}
	change(&s.Spec)
	return s
}

// The definitions on a real API server take and refuse what our validation does, and fill
// in the same defaults.
func TestValidationAgreesReal(t *testing.T) {
	s := realServer(t)
	s.defineOurs(t)
	s.empty(t)
	name := metav1.ObjectMeta{Name: "a"}
	for what, o := range map[string]datastore.Object{
		"subnet":          subnetOf(func(*v1alpha1.SubnetSpec) {}),
		"no cidrs":        subnetOf(func(s *v1alpha1.SubnetSpec) { s.CIDRs = nil }),
		"host bits":       subnetOf(func(s *v1alpha1.SubnetSpec) { s.CIDRs[0] = "10.128.0.1/14" }),
		"not canonical":   subnetOf(func(s *v1alpha1.SubnetSpec) { s.CIDRs[1] = "fd00:0010::/64" }),
		"link-local":      subnetOf(func(s *v1alpha1.SubnetSpec) { s.CIDRs = []string{"169.254.0.0/24"} }),
		"overlap":         subnetOf(func(s *v1alpha1.SubnetSpec) { s.CIDRs = []string{"10.4.0.0/16", "10.4.1.0/24"} }),
		"block too large": subnetOf(func(s *v1alpha1.SubnetSpec) { s.CIDRs = []string{"10.4.0.0/28"}; s.BlockSize.V4 = 26 }),
		"block size":      subnetOf(func(s *v1alpha1.SubnetSpec) { s.BlockSize.V4 = 33 }),
		"routed":          subnetOf(func(s *v1alpha1.SubnetSpec) { s.Transport = v1alpha1.TransportRouted }),
		"routed in VXLAN": subnetOf(func(s *v1alpha1.SubnetSpec) {
			s.Transport, s.Encapsulation = v1alpha1.TransportRouted, v1alpha1.EncapsulationVXLAN
		}),
		"unknown transport":       subnetOf(func(s *v1alpha1.SubnetSpec) { s.Transport = "Pigeon" }),
		"exclude":                 subnetOf(func(s *v1alpha1.SubnetSpec) { s.Exclude = []string{"10.128.0.7", "10.129.0.0/24"} }),
		"exclude not canonical":   subnetOf(func(s *v1alpha1.SubnetSpec) { s.Exclude = []string{"fd00:10::0001"} }),
		"two gateways a family":   subnetOf(func(s *v1alpha1.SubnetSpec) { s.Gateway = []string{"10.128.0.1", "10.128.0.2"} }),
		"vpc":                     &v1alpha1.VPC{ObjectMeta: name},
		"vpc of a bad isolation":  &v1alpha1.VPC{ObjectMeta: name, Spec: v1alpha1.VPCSpec{Isolation: "Moat"}},
		"tenant":                  tenant("a", ""),
		"vni too large":           &v1alpha1.NetNamespace{ObjectMeta: name, Spec: v1alpha1.NetNamespaceSpec{VNI: 1 << 24}},
		"vni negative":            &v1alpha1.NetNamespace{ObjectMeta: name, Spec: v1alpha1.NetNamespaceSpec{VNI: -1}},
		"node":                    &v1alpha1.NodeNetwork{ObjectMeta: name, Spec: v1alpha1.NodeNetworkSpec{Addresses: []string{"172.30.0.11/24"}}},
		"node of a bad address":   &v1alpha1.NodeNetwork{ObjectMeta: name, Spec: v1alpha1.NodeNetworkSpec{Addresses: []string{"172.30.0.11/33"}}},
		"block of another's name": &v1alpha1.IPBlock{ObjectMeta: name, Spec: v1alpha1.IPBlockSpec{CIDR: "10.128.0.0/26"}},
	} {
		t.Run(what, func(t *testing.T) {
			r, err := datastore.LookupObject(o)
			if err != nil {
				t.Fatal(err)
			}
			ours := o.DeepCopyObject().(datastore.Object)
			r.Default(ours)
			refusal := datastore.Check(ours, nil, nil)

			sent := o.DeepCopyObject().(datastore.Object)
			sent.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
			body, err := datastore.Encode(sent)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := s.raw(t).Post().AbsPath("/apis/"+r.GroupVersion.String()).Resource(r.Plural).Param("dryRun", "All").
				SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Raw()
			if err != nil && !apierrors.IsInvalid(err) {
				t.Fatalf("the server: %v, want success or Invalid", err)
			}
			if (err == nil) != (refusal == nil) {
				t.Fatalf("the server says %v, our validation %v", err, refusal)
			}
			if err != nil {
				return
			}
			theirs, err := datastore.Decode(r.Kind, datastore.KeyOf(o), raw, "")
			if err != nil {
				t.Fatal(err)
			}
			r.Default(theirs)
			if diff := cmp.Diff(ours, theirs, cmpopts.IgnoreTypes(metav1.ObjectMeta{}, metav1.TypeMeta{})); diff != "" {
				t.Errorf("defaults (-ours +server):\n%s", diff)
			}
		})
	}
}
