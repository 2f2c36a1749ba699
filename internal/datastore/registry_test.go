package datastore

import (
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestParseKind(t *testing.T) {
	for word, want := range map[string]Kind{
		"po": KindPod, "pod": KindPod, "pods": KindPod, "Pod": KindPod, "PODS": KindPod, " pods ": KindPod, "ns": KindNamespace,
		"no": KindNode, "svc": KindService, "endpointslices": KindEndpointSlice, "netpol": KindNetworkPolicy, "networkpolicies": KindNetworkPolicy,
		"networkpolicy": KindNetworkPolicy, "cnp": KindClusterNetworkPolicy, "ev": KindEvent, "lease": KindLease, "deploy": KindDeployment,
		"vpc": KindVPC, "vpcs": KindVPC, "sn": KindSubnet, "subnets.fairlead.dev": KindSubnet, "ipb": KindIPBlock, "nn": KindNodeNetwork, "netns": KindNetNamespace,
	} {
		got, err := ParseKind(word)
		if err != nil || got != want {
			t.Errorf("ParseKind(%q) = %q, %v; want %q", word, got, err, want)
		}
	}
	if _, err := ParseKind("unicorn"); err == nil || !strings.Contains(err.Error(), "Subnet") {
		t.Errorf("ParseKind(unicorn): %v, want an error that lists the kinds", err)
	}
}

// Every entry of the registry is complete, and no word means two kinds.
func TestRegistry(t *testing.T) {
	words := map[string]Kind{}
	for _, kind := range Kinds() {
		r, err := Lookup(kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range append([]string{strings.ToLower(string(kind)), r.Plural}, r.ShortNames...) {
			if other, ok := words[w]; ok {
				t.Errorf("%q means %s and %s", w, other, kind)
			}
			words[w] = kind
		}
		if got, err := KindOf(r.New()); err != nil || got != kind {
			t.Errorf("KindOf(New()) of %s = %s, %v", kind, got, err)
		}
		if hasField := reflect.ValueOf(r.New()).Elem().FieldByName("Status").IsValid(); r.HasStatus && !hasField {
			t.Errorf("%s has no field Status", kind)
		}
	}
	if _, err := Lookup("Unicorn"); !apierrors.IsBadRequest(err) {
		t.Errorf("Lookup of an unknown kind: %v", err)
	}
}
