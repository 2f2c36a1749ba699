package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

const (
	// Component is the source of the controller's Events.
	Component = "fairlead-controller"
	// MaxEvents bounds the Events of the controller.
	MaxEvents = 1000
	// eventWindow is within which a problem that comes back is counted.
	eventWindow = 10 * time.Minute
	// eventPause is the least time between two changes of one Event.
	eventPause = time.Minute
	// eventLife is how long an Event is kept after its problem was last news. An API
	// server removes it by itself.
	eventLife = time.Hour
)

// OurEvent reports whether a controller has written an Event.
func OurEvent(e *corev1.Event) bool { return e.Source.Component == Component }

// occurrence is one problem of one object, from whomever it was heard.
type occurrence struct {
	ref     objectRef
	uid     types.UID
	reason  string
	message string
}

// tell keeps one Event for every object and reason. An Event is written when a problem
// appears, comes back, says something else, or is over; never because it lasts.
func (p *planner) tell() {
	first := p.old.active == nil
	for _, o := range p.occurrences() {
		key := o.eventKey()
		e := p.Objects.Events[key]
		switch {
		case e == nil && len(p.Objects.Events)+p.newEvents >= MaxEvents:
			p.out.Suppressed++
		case e == nil:
			p.newEvents++
			p.out.Memory.active[key] = true
			p.create(datastore.KindEvent, o.event(p.Now, p.Identity), "a problem appeared")
		default:
			p.repeat(e, o, first || p.old.active[key])
		}
	}
	p.expire()
}

// repeat changes an Event if there is news. lasting says that its problem was there at
// the last Plan too, as far as is known.
func (p *planner) repeat(e *corev1.Event, o occurrence, lasting bool) {
	key := datastore.KeyOf(e)
	if lasting && e.Message == o.message {
		p.out.Memory.active[key] = true
		return
	}
	age := p.Now.Sub(e.LastTimestamp.Time)
	if due := e.LastTimestamp.Add(eventPause); age >= 0 && p.Now.Before(due) {
		// Remembered as it was, so that the news is told when it is due.
		if lasting {
			p.out.Memory.active[key] = true
		}
		p.again(due)
		return
	}
	p.out.Memory.active[key] = true
	next := e.DeepCopy()
	now := metav1.NewTime(p.Now.UTC().Truncate(time.Second))
	next.Type, next.Message, next.LastTimestamp, next.Count = corev1.EventTypeWarning, o.message, now, e.Count+1
	if age >= eventWindow && !lasting {
		next.FirstTimestamp, next.Count = now, 1
	}
	p.write(Write{Action: Update, Ref: Ref{Kind: datastore.KindEvent, Key: key, UID: e.UID}, Object: next, Why: "a problem came back or changed"})
}

// over begins the message of an Event whose problem is not there any more.
const over = "over: "

// expire says of Events whose problem is over that it is, and removes them later. Within the
// pause after the last news nothing is said: the problem may come back, and that could not
// be told.
func (p *planner) expire() {
	keys := slices.SortedFunc(maps.Keys(p.Objects.Events), datastore.CompareKeys)
	for _, key := range keys {
		e := p.Objects.Events[key]
		if p.out.Memory.active[key] {
			continue
		}
		due := e.LastTimestamp.Add(eventLife)
		if told := e.LastTimestamp.Add(eventPause); e.Type != corev1.EventTypeNormal && p.Now.Before(due) {
			if p.Now.Before(told) {
				p.again(told)
				continue
			}
			next := e.DeepCopy()
			next.Type, next.Message = corev1.EventTypeNormal, cut(over+e.Message, maxMessage)
			p.write(Write{Action: Update, Ref: Ref{Kind: datastore.KindEvent, Key: key, UID: e.UID}, Object: next, Why: "its problem is over"})
		}
		if p.Now.Before(due) {
			p.again(due)
			continue
		}
		p.write(Write{Action: Delete, Ref: Ref{Kind: datastore.KindEvent, Key: key, UID: e.UID}, Why: "its problem was over an hour ago"})
	}
}

// occurrences are all problems that Events tell of, sorted, one an object and reason.
func (p *planner) occurrences() []occurrence {
	refs := slices.SortedFunc(maps.Keys(p.reported), func(a, b objectRef) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), a.key.Compare(b.key))
	})
	var out []occurrence
	for _, ref := range refs {
		uid, ok := p.subject(ref)
		if !ok {
			continue
		}
		byReason := map[string][]report{}
		for _, r := range p.reported[ref] {
			byReason[r.Reason] = append(byReason[r.Reason], r)
		}
		for _, reason := range slices.Sorted(maps.Keys(byReason)) {
			out = append(out, occurrence{ref: ref, uid: uid, reason: reason, message: tellAll(byReason[reason])})
		}
	}
	for _, pr := range slices.Concat(p.full, p.out.Held) {
		ref := objectRef{pr.Kind, pr.Key}
		uid, ok := p.subject(ref)
		if !ok {
			uid, _ = uidOf(p.snap.Subnets, pr.Key, func(o *world.Subnet) string { return o.UID })
		}
		out = append(out, occurrence{ref: ref, uid: uid, reason: pr.Reason, message: cut(pr.Message, maxMessage)})
	}
	return out
}

// tellAll makes one message of what the controller and the nodes say of one reason. What
// the controller knows itself needs no node.
func tellAll(reports []report) string {
	if reports[0].node == "" {
		var own []world.Problem
		for _, r := range reports {
			if r.node == "" {
				own = append(own, r.Problem)
			}
		}
		return cut(sentences(own), maxMessage)
	}
	text := reports[0].Message
	if f := reports[0].Field; f != "" {
		text = f + ": " + text
	}
	var nodes []string
	for _, r := range reports {
		if !slices.Contains(nodes, r.node) {
			nodes = append(nodes, r.node)
		}
	}
	return cut(fmt.Sprintf("%s (on %s)", text, strings.Join(shorten(nodes), ", ")), maxMessage)
}

// subject is the UID of an object that Events tell of; false for one that is gone, and
// for kinds whose status has conditions.
func (p *planner) subject(ref objectRef) (types.UID, bool) {
	switch ref.kind {
	case world.KindPod:
		return uidOf(p.snap.Pods, ref.key, func(o *world.Pod) string { return o.UID })
	case world.KindNamespace:
		return uidOf(p.snap.Namespaces, ref.key, func(o *world.Namespace) string { return o.UID })
	case world.KindNode:
		return uidOf(p.snap.Nodes, ref.key, func(o *world.Node) string { return o.UID })
	case world.KindBlock:
		return uidOf(p.snap.Blocks, ref.key, func(o *world.Block) string { return o.UID })
	case world.KindNetworkPolicy:
		return uidOf(p.snap.NetworkPolicies, ref.key, func(o *world.NetworkPolicy) string { return o.UID })
	case world.KindClusterNetworkPolicy:
		// It has a status to tell all else in; of one that cannot be read, that cannot be written.
		if o := p.Objects.ClusterNetworkPolicies[ref.key.Name]; o != nil && datastore.Unreadable(o) != "" {
			return o.UID, true
		}
		return "", false
	case world.KindNetNamespace:
		if o := p.Objects.NetNamespaces[ref.key.Name]; o != nil {
			return o.UID, true
		}
		return "", false
	}
	switch kind := datastore.Kind(ref.kind); kind {
	case datastore.KindService, datastore.KindEndpointSlice:
		return "", ref.key.Namespace != "" && ref.key.Name != ""
	}
	return "", false
}

func uidOf[T any](t world.Table[*T], key world.Key, uid func(*T) string) (types.UID, bool) {
	o, ok := t.Get(key)
	if !ok {
		return "", false
	}
	return types.UID(uid(o)), true
}

// eventKey is where an Event lives: beside its object, or in "default".
func (o occurrence) eventKey() datastore.Key {
	namespace := o.ref.key.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	h := fnv.New64a()
	for _, part := range []string{string(o.ref.kind), o.ref.key.String(), string(o.uid), o.reason} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	name := strings.Trim(o.ref.key.Name[:min(len(o.ref.key.Name), 200)], ".-")
	return datastore.Key{Namespace: namespace, Name: fmt.Sprintf("%s.%016x", name, h.Sum64())}
}

func (o occurrence) event(at time.Time, identity string) *corev1.Event {
	key := o.eventKey()
	now := metav1.NewTime(at.UTC().Truncate(time.Second))
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		InvolvedObject: corev1.ObjectReference{
			Kind: string(o.ref.kind), Namespace: o.ref.key.Namespace, Name: o.ref.key.Name, UID: o.uid,
		},
		Reason: o.reason, Message: o.message, Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: Component}, ReportingController: Component, ReportingInstance: cut(identity, 128),
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	if r, err := datastore.Lookup(datastore.Kind(o.ref.kind)); err == nil {
		e.InvolvedObject.APIVersion = r.GroupVersion.String()
	}
	return e
}
