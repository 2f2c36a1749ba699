package policy

import (
	"maps"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// pending is a pod of which the object may have changed, or that lost or got addresses.
type pending struct {
	key        world.Key
	object     *world.Pod // as it is now, nil if there is none
	gone, come []held
}

// pod returns what is noted of a pod.
func (k *bookkeeper) pod(key world.Key) *pending {
	p := k.pods[key]
	if p == nil {
		p = &pending{key: key}
		p.object, _ = k.now.Pods.Get(key)
		k.expect(p)
	}
	return p
}

func (k *bookkeeper) expect(p *pending) {
	k.pods[p.key] = p
	k.order = append(k.order, p)
}

// changes compares what was known of each pod that may have changed with what is, in
// the order of the pods: what is made in order is read fast later. Addresses are the
// known pod's if they were given to it by its UID, or by name alone; others with its
// name are of an instance that is not known.
func (k *bookkeeper) changes() []podChange {
	slices.SortFunc(k.order, func(a, b *pending) int { return a.key.Compare(b.key) })
	changes := make([]podChange, 0, len(k.order))
	for _, p := range k.order {
		oldKnown, oldOther := k.old.index.Get(p.key, true), k.old.index.Get(p.key, false)
		known, other := p.divide(p.holds(oldKnown, oldOther))
		var now *pod
		if len(known) > 0 {
			now = &pod{Key: p.key, Known: true, Labels: p.object.Labels, Value: peer{held: known, ports: p.object.Ports}}
		}
		changes = appendChange(changes, oldKnown, now)
		if now = nil; len(other) > 0 {
			now = &pod{Key: p.key, Value: peer{held: other}}
		}
		changes = appendChange(changes, oldOther, now)
	}
	return changes
}

// holds returns the addresses of both instances, sorted.
func (p *pending) holds(before ...*pod) []held {
	n := len(p.come)
	for _, b := range before {
		if b != nil {
			n += len(b.Value.held)
		}
	}
	all := make([]held, 0, n)
	for _, b := range before {
		if b != nil {
			all = append(all, b.Value.held...)
		}
	}
	for _, h := range p.gone {
		if i := slices.Index(all, h); i >= 0 {
			all = slices.Delete(all, i, i+1)
		}
	}
	all = append(all, p.come...)
	slices.SortFunc(all, held.compare)
	return all
}

// divide parts the addresses into those of the pod and those of others of its name.
func (p *pending) divide(all []held) (known, other []held) {
	mine := func(h held) bool { return p.object != nil && isInstance(p.object, h.owner.UID) }
	if !slices.ContainsFunc(all, func(h held) bool { return !mine(h) }) {
		return all, nil
	}
	for _, h := range all {
		if mine(h) {
			known = append(known, h)
		} else {
			other = append(other, h)
		}
	}
	return known, other
}

// isInstance: runtimes name a static pod by another UID than the API does.
func isInstance(p *world.Pod, uid string) bool {
	return uid == "" || uid == p.UID || uid == p.StaticUID
}

// appendChange leaves out what did not change.
func appendChange(changes []podChange, old, now *pod) []podChange {
	switch {
	case old == nil && now == nil:
		return changes
	case old != nil && now != nil && slices.Equal(old.Value.held, now.Value.held) && slices.Equal(old.Value.ports, now.Value.ports) && maps.Equal(old.Labels, now.Labels):
		return changes
	}
	return append(changes, podChange{Old: old, New: now})
}
