package nftables

import (
	"bytes"
	"slices"
)

// overlap finds two elements with a key in common. Exact duplicates count.
func overlap(elements []Element) (a, b Element, found bool) {
	if len(elements) == 0 {
		return a, b, false
	}
	sorted := slices.Clone(elements)
	slices.SortFunc(sorted, func(a, b Element) int { return CompareKeys(a.Key, b.Key) })
	return overlapFrom(sorted, 0)
}

// overlapFrom looks at the fields from the given one on; the fields before are
// equal in all the elements, which are sorted.
func overlapFrom(sorted []Element, field int) (a, b Element, found bool) {
	if field == len(sorted[0].Key) {
		if len(sorted) > 1 {
			return sorted[0], sorted[1], true
		}
		return a, b, false
	}
	for len(sorted) > 0 {
		// A cluster is a run in which each element touches one before it in this
		// field. Elements of different clusters have nothing in common.
		first := sorted[0].Key[field]
		end, same, to := 1, true, first.To
		for end < len(sorted) {
			v := sorted[end].Key[field]
			if bytes.Compare(v.From[:], to[:]) > 0 {
				break
			}
			same = same && v == first
			if bytes.Compare(v.To[:], to[:]) > 0 {
				to = v.To
			}
			end++
		}
		cluster := sorted[:end]
		sorted = sorted[end:]
		if len(cluster) == 1 {
			continue
		}
		if same {
			a, b, found = overlapFrom(cluster, field+1)
		} else {
			a, b, found = overlapPairs(cluster, field)
		}
		if found {
			return a, b, true
		}
	}
	return a, b, false
}

// overlapPairs sweeps over a cluster and compares each element with those before
// it that still reach its start.
func overlapPairs(cluster []Element, field int) (a, b Element, found bool) {
	var active []Element
	for _, e := range cluster {
		start := e.Key[field].From
		active = slices.DeleteFunc(active, func(o Element) bool {
			to := o.Key[field].To
			return bytes.Compare(to[:], start[:]) < 0
		})
		for _, o := range active {
			if keysOverlap(o.Key, e.Key) {
				return o, e, true
			}
		}
		active = append(active, e)
	}
	return a, b, false
}

func keysOverlap(a, b []Value) bool {
	for i := range a {
		if !a[i].overlaps(b[i]) {
			return false
		}
	}
	return true
}
