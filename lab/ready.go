package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/process"
	"github.com/fairlead-sdn/fairlead/lab/spec"
)

// Unready is an object that is not as it should be.
type Unready struct {
	// Kind is "Pod" or "Deployment", Name is NAMESPACE/NAME.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Reason says what it waits for.
	Reason string `json:"reason"`
}

// String is the object and its reason.
func (u Unready) String() string {
	return fmt.Sprintf("%s %s: %s", strings.ToLower(u.Kind), u.Name, u.Reason)
}

// UnreadyError is WaitForPods' answer when its time is over: the pods that are ready
// and what is not.
type UnreadyError struct {
	Ready   []*corev1.Pod
	Unready []Unready
}

// Error names the first object.
func (e *UnreadyError) Error() string {
	return fmt.Sprintf("not all is ready (pods that are: %d, what is not: %d); the first: %s", len(e.Ready), len(e.Unready), e.Unready[0])
}

// pollPods is how often WaitForPods looks.
const pollPods = 50 * time.Millisecond

// WaitForPods waits until every Deployment has its pods, and every pod of the
// datastore that has not ended is ready, and returns the ready pods. When ctx ends
// first the error is an UnreadyError.
func WaitForPods(ctx context.Context, store datastore.Store) ([]*corev1.Pod, error) {
	var last *UnreadyError
	for {
		ready, unready, err := readyPods(ctx, store)
		switch {
		case err != nil && ctx.Err() != nil && last != nil:
			return nil, last
		case err != nil:
			return nil, err
		case len(unready) == 0:
			return ready, nil
		}
		last = &UnreadyError{Ready: ready, Unready: unready}
		timer := time.NewTimer(pollPods)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, last
		}
	}
}

func readyPods(ctx context.Context, store datastore.Store) (ready []*corev1.Pod, unready []Unready, err error) {
	pods, err := store.List(ctx, datastore.KindPod)
	if err != nil {
		return nil, nil, fmt.Errorf("list pods: %w", err)
	}
	for _, o := range pods.Items {
		p, ok := o.(*corev1.Pod)
		switch {
		case !ok || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		case isReady(p):
			ready = append(ready, p)
		default:
			unready = append(unready, Unready{Kind: string(datastore.KindPod), Name: podName(p), Reason: whyUnready(p)})
		}
	}
	deployments, err := store.List(ctx, datastore.KindDeployment)
	if err != nil {
		return nil, nil, fmt.Errorf("list deployments: %w", err)
	}
	for _, o := range deployments.Items {
		d, ok := o.(*appsv1.Deployment)
		if !ok {
			continue
		}
		want := int32(1)
		if d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != want || s.Replicas != want {
			unready = append(unready, Unready{
				Kind: string(datastore.KindDeployment), Name: d.Namespace + "/" + d.Name,
				Reason: fmt.Sprintf("%d of %d pods exist", s.UpdatedReplicas, want),
			})
		}
	}
	return ready, unready, nil
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// whyUnready is the most exact reason that a pod's status has.
func whyUnready(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "is being deleted"
	}
	if p.Spec.NodeName == "" {
		return "waits for a node: none is schedulable and has the labels of its nodeSelector"
	}
	on := "on " + p.Spec.NodeName + ": "
	if p.Status.Reason != "" {
		return on + because(p.Status.Reason, p.Status.Message)
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Reason != "" {
			return on + because(c.Reason, c.Message)
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && !c.Ready {
			return on + "container " + c.Name + ": " + because(w.Reason, w.Message)
		}
	}
	if len(p.Status.Conditions) == 0 {
		return on + "the node has not taken it up: is it off, or does it not exist? fairlead lab status shows it"
	}
	return on + "its containers do not all run"
}

func because(reason, message string) string {
	if message == "" {
		return reason
	}
	return reason + ": " + message
}

// ReadyPods is WaitForPods for who goes on with what is ready after some time. It looks
// once at least.
func ReadyPods(ctx context.Context, store datastore.Store, wait time.Duration) ([]*corev1.Pod, []Unready, error) {
	ready, unready, err := readyPods(ctx, store)
	if err != nil || len(unready) == 0 || wait <= 0 {
		return ready, unready, err
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	pods, err := WaitForPods(waiting, store)
	var missing *UnreadyError
	switch {
	case errors.As(err, &missing):
		return missing.Ready, missing.Unready, nil
	case err != nil && waiting.Err() != nil && ctx.Err() == nil:
		return ready, unready, nil
	}
	return pods, nil, err
}

// What a fault has started is waited for this long; what does not say when it is ready counts
// as started once it has run for a while.
const (
	startPatience = 10 * time.Second
	startSettled  = time.Second
	pollStart     = 50 * time.Millisecond
)

// AwaitStart waits for what a fault has started: a node until pods can be attached to it, other
// programs until they have run for a second. The error says how it ended. After ten seconds
// the note says what it waits for. Of faults that start nothing there is nothing to wait for.
func (l *Lab) AwaitStart(ctx context.Context, f Fault) (note string, err error) {
	waiting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		s, err := l.Status(waiting)
		if err == nil {
			note, err = l.started(&s, f)
		}
		switch {
		case waiting.Err() != nil && ctx.Err() == nil:
			return note, nil
		case err != nil || note == "":
			return "", err
		}
		timer := time.NewTimer(pollStart)
		select {
		case <-timer.C:
		case <-waiting.Done():
			timer.Stop()
			if err := ctx.Err(); err != nil {
				return "", err
			}
			return note, nil
		}
	}
}

// started says what is waited for after a fault, empty if for nothing any more.
func (l *Lab) started(s *Status, f Fault) (waitsFor string, err error) {
	if f.Kind == spec.ControllerStart || f.Kind == spec.ControllerRestart {
		return settling("the controller", &s.Controller, l.path(spec.LogController))
	}
	i := slices.IndexFunc(s.Nodes, func(n spec.Node) bool { return n.Name == f.Node })
	if i < 0 {
		return "", nil
	}
	n := &s.Nodes[i]
	log := func(name string) string { return filepath.Join(l.NodeDirectory(n.Name), machine.DirLog, name) }
	switch f.Kind {
	case spec.SwitchStart, spec.SwitchRestart:
		return settling("ovs-vswitchd of "+n.Name, n.State.Switch, log("ovs-vswitchd.log"))
	case spec.DatabaseStart, spec.DatabaseRestart, spec.DatabaseWipe:
		return settling("ovsdb-server of "+n.Name, n.State.Database, log("ovsdb-server.log"))
	case spec.NodePowerOn, spec.NodeReboot:
		if n.Power != "on" {
			return "", fmt.Errorf("node %s has ended again; it says: %s", n.Name, process.Tail(log("node.log")))
		}
		if n.State.Agent.Starts == 0 {
			return "the node is booting", nil
		}
	case spec.AgentStart, spec.AgentRestart:
	default:
		return "", nil
	}
	if err := alive("the agent of "+n.Name, &n.State.Agent, log("agent.log")); err != nil || n.State.Ready {
		return "", err
	}
	return "pods cannot be attached yet: " + n.State.Reason, nil
}

// settling waits for a program that does not say when it is ready.
func settling(what string, st *process.Status, log string) (waitsFor string, err error) {
	if st == nil {
		return "", nil
	}
	if err := alive(what, st, log); err != nil || time.Since(st.Started) >= startSettled {
		return "", err
	}
	return what + " was started a moment ago", nil
}

// alive says how a program ended, if it has.
func alive(what string, st *process.Status, log string) error {
	switch st.State {
	case process.Running:
		return nil
	case process.Frozen:
		return fmt.Errorf("%s is frozen; its fault of the kind continue lets it go on", what)
	}
	return fmt.Errorf("%s has ended again (%s); it says: %s", what, cmp.Or(st.Exit, "it was stopped"), cmp.Or(process.LastLine(log), "nothing"))
}
