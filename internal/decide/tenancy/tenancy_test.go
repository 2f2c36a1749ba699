package tenancy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// build makes a world of VPCs, namespaces and NetNamespaces.
type build struct{ changes []world.Change }

func (b *build) vpc(age int, v world.VPC) {
	v.Created = time.Unix(int64(age), 0)
	b.changes = append(b.changes, world.Change{Kind: world.KindVPC, Key: world.Key{Name: v.Name}, Object: &v})
}

// namespace adds one with the label team, and a NetNamespace unless vni is zero.
func (b *build) namespace(name, team string, vni packet.VNI, global bool) {
	key := world.Key{Name: name}
	b.changes = append(b.changes, world.Change{Kind: world.KindNamespace, Key: key, Object: &world.Namespace{Name: name, Labels: map[string]string{"team": team}}})
	if vni != 0 {
		b.changes = append(b.changes, world.Change{Kind: world.KindNetNamespace, Key: key, Object: &world.NetNamespace{Name: name, VNI: vni, Global: global}})
	}
}

func (b *build) decide() *Result {
	w := world.NewStore(nil).Apply(b.changes...)
	return Decide(w.Namespaces, w.VPCs, w.NetNamespaces)
}

func team(names ...string) *world.Selector {
	return &world.Selector{MatchExpressions: []world.Requirement{{Key: "team", Operator: "In", Values: names}}}
}

// reasons are the problems as "Kind/key Reason".
func reasons(problems []world.Problem) []string {
	var list []string
	for _, p := range problems {
		list = append(list, string(p.Kind)+"/"+p.Key.String()+" "+p.Reason)
	}
	return list
}

func TestOldestVPCTakesANamespace(t *testing.T) {
	var b build
	b.vpc(0, world.VPC{Name: "default", VNI: 1})
	b.vpc(2, world.VPC{Name: "a-young", VNI: 2, Namespaces: team("x", "y")})
	b.vpc(1, world.VPC{Name: "old", VNI: 3, Namespaces: team("x")})
	b.vpc(2, world.VPC{Name: "b-young", VNI: 4, Namespaces: team("y")})
	b.vpc(3, world.VPC{Name: "none", VNI: 5})
	b.vpc(3, world.VPC{Name: "broken", VNI: 6, Namespaces: &world.Selector{MatchExpressions: []world.Requirement{{Key: "team", Operator: "Is"}}}})
	for _, ns := range [][2]string{{"ns-x", "x"}, {"ns-y", "y"}, {"ns-z", "z"}} {
		b.namespace(ns[0], ns[1], 0, false)
	}
	r := b.decide()
	got := map[string]string{}
	for _, ns := range []string{"ns-x", "ns-y", "ns-z"} {
		got[ns], _ = r.VPCOf(ns)
	}
	if diff := cmp.Diff(map[string]string{"ns-x": "old", "ns-y": "a-young", "ns-z": "default"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, known := r.VPCOf("nobody"); known {
		t.Error("an unknown namespace is in a VPC")
	}
	want := []string{
		"Namespace/ns-x SeveralVPCs", "Namespace/ns-y SeveralVPCs",
		"VPC/a-young SeveralVPCs", "VPC/b-young SeveralVPCs", "VPC/broken InvalidSelector",
	}
	if diff := cmp.Diff(want, reasons(r.Problems)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if m := r.Problems[0].Message; !strings.Contains(m, "old, a-young") {
		t.Errorf("the problem names not both: %s", m)
	}
}

func TestUsableVPCs(t *testing.T) {
	var b build
	b.vpc(0, world.VPC{Name: "first", VNI: 7})
	b.vpc(1, world.VPC{Name: "same", VNI: 7})
	b.vpc(1, world.VPC{Name: "waiting"})
	b.vpc(1, world.VPC{Name: "huge", VNI: packet.MaxVNI + 1})
	b.namespace("ns", "x", 0, false)
	r := b.decide()
	if diff := cmp.Diff([]intent.VPC{{Name: "first", VNI: 7}}, r.VPCs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := []string{"VPC/default VPCMissing", "VPC/huge VNIInvalid", "VPC/same DuplicateVNI", "VPC/waiting VNIPending"}
	if diff := cmp.Diff(want, reasons(r.Problems)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	for name, want := range map[string]Standing{"first": Usable, "same": Unusable, "waiting": Unusable, "default": Unknown} {
		if got := r.Standing(name); got != want {
			t.Errorf("standing of %s: %d, want %d", name, got, want)
		}
		if _, err := r.VNI(name, "ns"); (err == nil) != (want == Usable) {
			t.Errorf("VNI in %s: %v", name, err)
		}
	}
}

func TestTenants(t *testing.T) {
	var b build
	b.vpc(0, world.VPC{Name: "default", VNI: 1})
	b.vpc(1, world.VPC{Name: "red", VNI: 2, Tenant: true, Namespaces: team("red")})
	b.vpc(2, world.VPC{Name: "blue", VNI: 3, Tenant: true, Namespaces: team("blue")})
	b.namespace("plain", "", 20, false) // No tenant matters in default.
	b.namespace("red-1", "red", 20, false)
	b.namespace("red-joined", "red", 20, false)
	b.namespace("red-global", "red", 21, true)
	b.namespace("red-own", "red", 2, false)
	b.namespace("red-other", "red", 3, false)
	b.namespace("red-new", "red", 0, false)
	b.namespace("blue-1", "blue", 30, false)
	b.namespace("blue-stolen", "blue", 20, false)
	b.namespace("blue-huge", "blue", packet.MaxVNI+1, false)
	r := b.decide()
	want := []intent.VPC{
		{Name: "blue", VNI: 3, Tenants: []packet.VNI{30}},
		{Name: "default", VNI: 1},
		{Name: "red", VNI: 2, Tenants: []packet.VNI{20, 21}},
	}
	if diff := cmp.Diff(want, r.VPCs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		vpc, namespace string
		want           packet.VNI // zero for none
	}{
		{"default", "plain", 1},
		{"default", "nobody", 1},
		{"default", "", 1},
		{"default", "red-1", 1}, // Its pods of before the move stay.
		{"red", "red-1", 20},
		{"red", "red-joined", 20},
		{"red", "red-global", 2},
		{"red", "red-own", 0},
		{"red", "red-other", 0},
		{"red", "red-new", 0},
		{"red", "plain", 0},
		{"red", "nobody", 0},
		{"red", "", 0},
		{"blue", "blue-1", 30},
		{"blue", "blue-stolen", 0},
		{"blue", "blue-huge", 0},
	} {
		if got, err := r.VNI(tt.vpc, tt.namespace); got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("VNI(%s, %q) = %d, %v; want %d", tt.vpc, tt.namespace, got, err, tt.want)
		}
	}
	wantProblems := []string{
		"NetNamespace/blue-huge VNIConflict", "NetNamespace/blue-stolen VNIConflict",
		"NetNamespace/red-other VNIConflict", "NetNamespace/red-own VNIConflict",
	}
	if diff := cmp.Diff(wantProblems, reasons(r.Problems)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if !r.Isolates("red") || r.Isolates("default") || r.Isolates("nobody") {
		t.Error("Isolates is wrong")
	}
}

func TestMessagesStayBounded(t *testing.T) {
	var b build
	b.vpc(0, world.VPC{Name: "a", VNI: 1, Namespaces: &world.Selector{}})
	b.vpc(1, world.VPC{Name: "b", VNI: 2, Namespaces: &world.Selector{}})
	for i := range 500 {
		b.namespace("ns"+strings.Repeat("x", i%7)+string(rune('a'+i%26))+strings.Repeat("y", i/26), "", 0, false)
	}
	for _, p := range b.decide().Problems {
		if p.Kind == world.KindVPC && (len(p.Message) > 400 || !strings.Contains(p.Message, "more")) {
			t.Errorf("message of %d bytes: %.100s", len(p.Message), p.Message)
		}
	}
}
