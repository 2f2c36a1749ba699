package plan

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Annotations of the object that holds a Record.
const (
	annotationNext     = "fairlead.dev/vni-next"
	annotationReserved = "fairlead.dev/vni-reserved"
	annotationVanished = "fairlead.dev/vanished-nodes"
	// maxVanishedText bounds the list of vanished nodes: an object's annotations may have
	// 256 KiB in all. Nodes that do not fit begin their grace period again when the
	// leader changes.
	maxVanishedText = 128 << 10
)

// Record is what must outlive a leader.
type Record struct {
	// Stored says that it has been read from the datastore.
	Stored bool
	// Next is the place in the sequence of VNIs, Reserved are VNIs ahead of it that users
	// chose, sorted.
	Next     uint32
	Reserved []packet.VNI
	// Vanished says since when a node has had no Node object, in whole seconds.
	Vanished map[string]time.Time
}

// Equal reports whether two Records say the same.
func (r Record) Equal(o Record) bool {
	return r.Stored == o.Stored && r.Next == o.Next && slices.Equal(r.Reserved, o.Reserved) && maps.EqualFunc(r.Vanished, o.Vanished, time.Time.Equal)
}

// Annotations is the Record as text.
func (r Record) Annotations() map[string]string {
	reserved := make([]string, len(r.Reserved))
	for i, v := range r.Reserved {
		reserved[i] = strconv.FormatUint(uint64(v), 10)
	}
	var vanished []string
	size := 0
	for _, node := range slices.Sorted(maps.Keys(r.Vanished)) {
		entry := node + "=" + strconv.FormatInt(r.Vanished[node].Unix(), 10)
		if size += len(entry) + 1; size > maxVanishedText {
			break
		}
		vanished = append(vanished, entry)
	}
	out := map[string]string{annotationNext: strconv.FormatUint(uint64(r.Next), 10)}
	if len(reserved) > 0 {
		out[annotationReserved] = strings.Join(reserved, ",")
	}
	if len(vanished) > 0 {
		out[annotationVanished] = strings.Join(vanished, ",")
	}
	return out
}

// SetAnnotations replaces the Record's own annotations among others.
func (r Record) SetAnnotations(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	if out == nil {
		out = map[string]string{}
	}
	for _, own := range []string{annotationNext, annotationReserved, annotationVanished} {
		delete(out, own)
	}
	maps.Copy(out, r.Annotations())
	return out
}

// ParseRecord reads what Annotations wrote. What cannot be read is as if it had never
// been written: without a place the sequence begins behind the VNIs in use.
func ParseRecord(annotations map[string]string) Record {
	var r Record
	if next, err := strconv.ParseUint(annotations[annotationNext], 10, vniBits); err == nil {
		r.Stored, r.Next = true, uint32(next)
	}
	for text := range strings.SplitSeq(annotations[annotationReserved], ",") {
		if v, err := strconv.ParseUint(text, 10, vniBits); err == nil && v > 0 {
			r.Reserved = append(r.Reserved, packet.VNI(v))
		}
	}
	slices.Sort(r.Reserved)
	r.Reserved = slices.Compact(r.Reserved)
	for text := range strings.SplitSeq(annotations[annotationVanished], ",") {
		node, since, ok := strings.Cut(text, "=")
		seconds, err := strconv.ParseInt(since, 10, 64)
		if !ok || node == "" || err != nil {
			continue
		}
		if r.Vanished == nil {
			r.Vanished = map[string]time.Time{}
		}
		r.Vanished[node] = time.Unix(seconds, 0).UTC()
	}
	return r
}
