package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/controller/plan"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// release deletes a block whose node is gone. It stands in for the owner in the protocol
// of loans (package ipam): it marks every loan as recalled, and only then reads what
// the borrowers list. One that has listed an address before sees its loan kept; one that
// lists it later finds the mark.
func (t *term) release(ctx context.Context, w plan.Write) error {
	o, err := t.Store.Get(ctx, w.Kind, w.Key)
	if err != nil {
		return err
	}
	b, ok := o.(*v1alpha1.IPBlock)
	switch {
	case !ok:
		return fmt.Errorf("the datastore answered with a %T", o)
	case b.UID != w.UID || b.Spec.Node != w.Absent.Key.Name:
		return nil // It has changed hands.
	}
	if len(b.Spec.Lent) > 0 {
		if b, err = t.recall(ctx, b); err != nil {
			return err
		}
		if err := t.unlisted(ctx, b); err != nil {
			return err
		}
	}
	return t.Store.Delete(ctx, w.Kind, w.Key, datastore.Preconditions{UID: b.UID, ResourceVersion: b.ResourceVersion})
}

// recall marks all loans of a block, and returns it as it is marked.
func (t *term) recall(ctx context.Context, b *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error) {
	mark := strings.Join(slices.Sorted(maps.Keys(b.Spec.Lent)), ",")
	if b.Annotations[v1alpha1.AnnotationRecall] == mark {
		return b, nil
	}
	marked := b.DeepCopy()
	if marked.Annotations == nil {
		marked.Annotations = map[string]string{}
	}
	marked.Annotations[v1alpha1.AnnotationRecall] = mark
	o, err := t.Store.Update(ctx, marked)
	if err != nil {
		return nil, err
	}
	stored, ok := o.(*v1alpha1.IPBlock)
	if !ok {
		return nil, fmt.Errorf("the datastore answered with a %T", o)
	}
	return stored, nil
}

// unlisted is nil if no borrower that exists lists one of a block's loans.
func (t *term) unlisted(ctx context.Context, b *v1alpha1.IPBlock) error {
	byNode := map[string][]string{}
	for _, addr := range slices.Sorted(maps.Keys(b.Spec.Lent)) {
		byNode[b.Spec.Lent[addr]] = append(byNode[b.Spec.Lent[addr]], addr)
	}
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		_, err := t.Store.Get(ctx, datastore.KindNode, datastore.Key{Name: node})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look whether the borrower %s exists: %w", node, err)
		}
		o, err := t.Store.Get(ctx, datastore.KindNodeNetwork, datastore.Key{Name: node})
		n, ok := o.(*v1alpha1.NodeNetwork)
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("%w: node %s has borrowed %s and has not told what it holds", errRefused, node, strings.Join(byNode[node], ", "))
		case err != nil || !ok:
			return fmt.Errorf("read what node %s has borrowed: %w", node, err)
		}
		for _, addr := range byNode[node] {
			if _, listed := n.Status.Borrowed[addr]; listed {
				return fmt.Errorf("%w: node %s holds the loan %s", errRefused, node, addr)
			}
		}
	}
	return nil
}
