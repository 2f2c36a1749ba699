package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

func TestScrambleIsOneToOne(t *testing.T) {
	for n := range uint32(vniCount) {
		v := scramble(n)
		if v > packet.MaxVNI {
			t.Fatalf("scramble(%d) = %d, which does not fit the wire", n, v)
		}
		if got := position(v); got != n { // What can be undone comes once.
			t.Fatalf("position(scramble(%d)) = %d", n, got)
		}
	}
}

// TestNoVNITwiceInADay runs random creations, deletions, choices of users, lost writes
// and changes of leaders, which know only what the Record says.
func TestNoVNITwiceInADay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_800_000_000, 0)
		record := Record{}
		inUse := map[int]packet.VNI{}          // tenant → VNI
		released := map[packet.VNI]time.Time{} // when it was last in use
		free := func(tenant int) {
			released[inUse[tenant]] = now
			delete(inUse, tenant)
		}
		tenants := rapid.IntRange(0, 30)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 7200).Draw(t, "seconds")) * time.Second)
			tenant := tenants.Draw(t, "tenant")
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0: // A user chooses, often just what would come next.
				s := NewSequence(record.Next, !record.Stored, used(inUse), record.Reserved)
				v := scramble(s.Next + uint32(rapid.IntRange(0, 5).Draw(t, "ahead")))
				if v == 0 {
					continue
				}
				if _, had := inUse[tenant]; had {
					free(tenant)
				}
				inUse[tenant] = v
			case 1:
				if _, had := inUse[tenant]; had {
					free(tenant)
				}
			case 2: // The Record is stored, the object is not: the leader died in between.
				s := NewSequence(record.Next, !record.Stored, used(inUse), record.Reserved)
				s.Take()
				record = ParseRecord(Record{Next: s.Next, Reserved: s.reserved()}.Annotations())
				continue
			default:
				if _, had := inUse[tenant]; had {
					continue
				}
				s := NewSequence(record.Next, !record.Stored, used(inUse), record.Reserved)
				v, ok := s.Take()
				if !ok || v == 0 || v > packet.MaxVNI {
					t.Fatalf("Take: %d, %v", v, ok)
				}
				if slices.Contains(used(inUse), v) {
					t.Fatalf("%d is in use", v)
				}
				if at, was := released[v]; was && now.Sub(at) < 24*time.Hour {
					t.Fatalf("%d was given back %s ago", v, now.Sub(at))
				}
				inUse[tenant] = v
				record = ParseRecord(Record{Next: s.Next, Reserved: s.reserved()}.Annotations())
				continue
			}
			// Every change of the world makes a plan, and with it a Record.
			s := NewSequence(record.Next, !record.Stored, used(inUse), record.Reserved)
			record = ParseRecord(Record{Next: s.Next, Reserved: s.reserved()}.Annotations())
		}
	})
}

func used(inUse map[int]packet.VNI) []packet.VNI {
	var out []packet.VNI
	for _, v := range inUse {
		out = append(out, v)
	}
	return out
}

// Without a Record the sequence begins behind what is in use.
func TestSequenceWithoutRecord(t *testing.T) {
	inUse := []packet.VNI{scramble(7), scramble(41)}
	v, ok := NewSequence(0, true, inUse, nil).Take()
	if want := scramble(42); !ok || v != want {
		t.Errorf("Take: %d, %v, want %d", v, ok, want)
	}
}

func TestReservedIsBounded(t *testing.T) {
	var inUse []packet.VNI
	for n := range uint32(3 * maxReserved) {
		inUse = append(inUse, scramble(10+n))
	}
	s := NewSequence(5, false, inUse, nil)
	got := s.reserved()
	if len(got) != maxReserved || !slices.Contains(got, scramble(10)) || slices.Contains(got, scramble(10+maxReserved)) {
		t.Errorf("%d VNIs are remembered, want the %d that come next", len(got), maxReserved)
	}
	if v, _ := s.Take(); v != scramble(5) {
		t.Errorf("Take: %d, want %d", v, scramble(5))
	}
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Record{Stored: true, Next: rapid.Uint32Range(0, vniMask).Draw(t, "next")}
		for v := range rapid.SliceOfNDistinct(rapid.Uint32Range(1, vniMask), 0, 20, rapid.ID).Draw(t, "reserved") {
			want.Reserved = append(want.Reserved, packet.VNI(v+1))
		}
		slices.Sort(want.Reserved)
		for _, node := range rapid.SliceOfN(rapid.StringMatching(`[a-z]([-a-z0-9.]{0,20}[a-z0-9])?`), 0, 5).Draw(t, "nodes") {
			if want.Vanished == nil {
				want.Vanished = map[string]time.Time{}
			}
			want.Vanished[node] = time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "since"), 0).UTC()
		}
		got := ParseRecord(want.SetAnnotations(map[string]string{"other": "kept", annotationReserved: "stale"}))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add("12", "4,5", "n1=17,n2=18")
	f.Add("-1", "99999999,x,,0", "=,a=,b=c,=5")
	f.Fuzz(func(t *testing.T, next, reserved, vanished string) {
		r := ParseRecord(map[string]string{annotationNext: next, annotationReserved: reserved, annotationVanished: vanished})
		if again := ParseRecord(r.Annotations()); r.Stored && !again.Equal(r) && len(vanished) < maxVanishedText {
			t.Errorf("%+v became %+v", r, again)
		}
	})
}
