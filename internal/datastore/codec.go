package datastore

import (
	"encoding/json"
	"fmt"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// MaxSize is how large an object may be as it is stored, in bytes: what etcd takes in one
// request by default (1.5 MiB), with room for what is around it.
const MaxSize = 3<<19 - 4<<10

// Encode is an object as it is stored: JSON with apiVersion and kind, without
// its resourceVersion, which the store knows. One that is too large to be stored is a
// RequestEntityTooLarge.
func Encode(o Object) ([]byte, error) {
	r, err := LookupObject(o)
	if err != nil {
		return nil, err
	}
	gvk, rv := o.GetObjectKind().GroupVersionKind(), o.GetResourceVersion()
	o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
	o.SetResourceVersion("")
	raw, err := json.Marshal(o)
	o.GetObjectKind().SetGroupVersionKind(gvk)
	o.SetResourceVersion(rv)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("encode %s %s: %w", r.Kind, KeyOf(o), err))
	}
	if len(raw) > MaxSize {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %s has %d bytes, of which %d can be stored: make it smaller", r.Kind, brief(KeyOf(o).String(), maxQuoted), len(raw), MaxSize))
	}
	return raw, nil
}

// Decode reads what Encode wrote and sets the resourceVersion. Fields that this
// version does not know are passed over: a newer one may have written them.
func Decode(kind Kind, key Key, raw []byte, resourceVersion string) (Object, error) {
	r, err := Lookup(kind)
	if err != nil {
		return nil, err
	}
	o := r.New()
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, o); err != nil {
		return nil, fmt.Errorf("decode %s %s: %w", kind, key, err)
	}
	if got := o.GetObjectKind().GroupVersionKind(); got != r.GroupVersionKind() {
		return nil, fmt.Errorf("decode %s %s: apiVersion %q, kind %q is stored there", kind, key, got.GroupVersion(), got.Kind)
	}
	if got := KeyOf(o); got != key {
		return nil, fmt.Errorf("decode %s %s: an object named %q is stored there", kind, key, got)
	}
	o.SetResourceVersion(resourceVersion)
	return o, nil
}

// AnnotationUnreadable marks what a Store hands out for a policy that it holds and cannot
// read; its value says why. It is never stored.
const AnnotationUnreadable = "fairlead.dev/unreadable"

// Unreadable says why an object could not be read, where it only stands for one; empty
// for all others.
func Unreadable(o Object) string { return o.GetAnnotations()[AnnotationUnreadable] }

// StandIn is what counts for an object that Decode refused, for why; nil where it counts as
// if it did not exist. Those that count are the kinds that forbid: without them more would be
// allowed than somebody meant. A NetworkPolicy isolates the pods that it selects, or, if that
// cannot be read either, all of its namespace. A ClusterNetworkPolicy denies everything to
// and from its subject, in its tier or in Admin; if the subject cannot be read, nobody knows
// whom it is about, and it does nothing but be there to be told of.
func StandIn(kind Kind, key Key, raw []byte, resourceVersion string, why error) Object {
	meta := metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, ResourceVersion: resourceVersion,
		Annotations: map[string]string{AnnotationUnreadable: brief(strings.ToValidUTF8(why.Error(), "?"), maxDetail)},
	}
	switch kind {
	case KindNetworkPolicy:
		p := &networkingv1.NetworkPolicy{ObjectMeta: meta}
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
		if selector, ok := salvage[metav1.LabelSelector](raw, "spec", "podSelector"); ok {
			p.Spec.PodSelector = selector
		}
		return p
	case KindClusterNetworkPolicy:
		p := &policyv1beta1.ClusterNetworkPolicy{ObjectMeta: meta}
		p.Spec.Tier = policyv1beta1.AdminTier
		if tier, ok := salvage[policyv1beta1.Tier](raw, "spec", "tier"); ok && tier == policyv1beta1.BaselineTier {
			p.Spec.Tier = tier
		}
		if priority, ok := salvage[int32](raw, "spec", "priority"); ok {
			p.Spec.Priority = priority
		}
		subject, ok := salvage[policyv1beta1.ClusterNetworkPolicySubject](raw, "spec", "subject")
		if !ok || (subject.Namespaces == nil) == (subject.Pods == nil) {
			p.Spec.Subject.Namespaces = &metav1.LabelSelector{}
			return p
		}
		p.Spec.Subject = subject
		// A peer that says nothing is one that cannot be read: of a Deny, everybody.
		p.Spec.Ingress = []policyv1beta1.ClusterNetworkPolicyIngressRule{{Action: policyv1beta1.ClusterNetworkPolicyRuleActionDeny, From: []policyv1beta1.ClusterNetworkPolicyIngressPeer{{}}}}
		p.Spec.Egress = []policyv1beta1.ClusterNetworkPolicyEgressRule{{Action: policyv1beta1.ClusterNetworkPolicyRuleActionDeny, To: []policyv1beta1.ClusterNetworkPolicyEgressPeer{{}}}}
		return p
	}
	return nil
}

// salvage reads one field of an object that cannot be read as a whole, strictly: a field
// that is not known might have narrowed what it says.
func salvage[T any](raw []byte, path ...string) (out T, ok bool) {
	for _, field := range path {
		var object map[string]json.RawMessage
		if kjson.UnmarshalCaseSensitivePreserveInts(raw, &object) != nil || object[field] == nil {
			return out, false
		}
		raw = object[field]
	}
	var none T
	if strict, err := kjson.UnmarshalStrict(raw, &out); err != nil || len(strict) > 0 || string(raw) == "null" {
		return none, false
	}
	return out, true
}
