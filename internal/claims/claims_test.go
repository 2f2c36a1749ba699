package claims

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

func TestMarkRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vni := packet.VNI(rapid.Uint32Range(0, uint32(packet.MaxVNI)).Draw(t, "vni"))
		mark := Mark(vni)
		if mark&^MarkVNIMask != 0 || mark&MarkKubeProxy != 0 {
			t.Fatalf("mark of VNI %d is %#x: outside of our bits %#x", vni, mark, MarkVNIMask)
		}
		foreign := rapid.Uint32().Draw(t, "foreign") &^ MarkVNIMask
		if got := MarkVNI(mark | foreign); got != vni {
			t.Fatalf("got VNI %d, want %d", got, vni)
		}
	})
}

func TestPortNameFitsKernel(t *testing.T) {
	name := PortName("0123456789abcdef", "eth0")
	if len(name) > 15 {
		t.Fatalf("port name %q has %d bytes, the kernel takes 15", name, len(name))
	}
	if name == PortName("0123456789abcdef", "eth1") {
		t.Fatal("two interfaces of one container got the same name")
	}
}
