package spec_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/lab/spec"
)

func TestSubnet(t *testing.T) {
	for _, tc := range []struct {
		cidrs []string
		want  v1alpha1.BlockSize
	}{
		{[]string{"10.128.0.0/14"}, v1alpha1.BlockSize{V4: 26, V6: 122}},
		{[]string{"10.128.0.0/30"}, v1alpha1.BlockSize{V4: 30, V6: 122}},
		{[]string{"10.128.0.0/24", "10.129.0.0/28", "fd00:10::/126"}, v1alpha1.BlockSize{V4: 28, V6: 126}},
	} {
		o := spec.Options{Encapsulation: "VXLAN"}
		for _, c := range tc.cidrs {
			o.Subnets = append(o.Subnets, netip.MustParsePrefix(c))
		}
		s := o.Subnet()
		if d := cmp.Diff(tc.want, s.Spec.BlockSize); d != "" {
			t.Errorf("%v: block size (-want +got):\n%s", tc.cidrs, d)
		}
		if errs := v1alpha1.ValidateSubnet(s, nil); len(errs) > 0 {
			t.Errorf("%v: %v", tc.cidrs, errs)
		}
	}
}
