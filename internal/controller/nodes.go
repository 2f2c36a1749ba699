package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/internal/controller/plan"
)

// setCondition changes one condition in the status of a Node. The Node is read right before:
// what a watch has shown may have parts left out, and the kubelet writes to it too.
func (t *term) setCondition(ctx context.Context, w plan.Write) error {
	o, err := t.Store.Get(ctx, w.Kind, w.Key)
	if err != nil {
		return err
	}
	n, ok := o.(*corev1.Node)
	switch {
	case !ok:
		return fmt.Errorf("the datastore answered with a %T", o)
	case w.UID != "" && n.UID != w.UID:
		return nil // It is another Node of that name.
	}
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == w.Condition.Type })
	if i < 0 {
		n.Status.Conditions = append(n.Status.Conditions, w.Condition)
	} else {
		n.Status.Conditions[i] = w.Condition
	}
	_, err = t.Store.UpdateStatus(ctx, n)
	return err
}
