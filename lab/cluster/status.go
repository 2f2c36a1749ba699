package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/lab/machine"
)

// podStatus is the status of a pod whose state its node has told. Times of
// conditions move only when the condition does.
func podStatus(p *corev1.Pod, s machine.PodState, host []netip.Addr) corev1.PodStatus {
	out := corev1.PodStatus{
		ObservedGeneration: p.Generation,
		Phase:              s.Phase, Reason: s.Reason, Message: s.Message, QOSClass: corev1.PodQOSBestEffort,
		StartTime: p.Status.StartTime,
	}
	if s.Phase == corev1.PodRunning {
		out.Reason, out.Message = "", ""
	}
	if s.Phase == corev1.PodRunning || s.Phase == corev1.PodPending {
		for _, c := range s.Containers {
			if c.Failing != "" {
				out.Reason, out.Message = machine.CrashLoop, "container "+c.Name+": "+c.Failing
				break
			}
		}
	}
	if out.StartTime == nil && !s.Started.IsZero() {
		out.StartTime = at(s.Started)
	}
	for i, a := range host {
		if i == 0 {
			out.HostIP = a.String()
		}
		out.HostIPs = append(out.HostIPs, corev1.HostIP{IP: a.String()})
	}
	for i, a := range s.IPs {
		if i == 0 {
			out.PodIP = a.String()
		}
		out.PodIPs = append(out.PodIPs, corev1.PodIP{IP: a.String()})
	}
	initialized := s.Phase != corev1.PodPending
	for _, c := range []struct {
		kind corev1.PodConditionType
		ok   bool
	}{
		{corev1.PodScheduled, true},
		{corev1.PodReadyToStartContainers, len(s.IPs) > 0},
		{corev1.PodInitialized, initialized},
		{corev1.ContainersReady, s.Ready},
		{corev1.PodReady, s.Ready},
	} {
		out.Conditions = append(out.Conditions, podCondition(p.Status.Conditions, c.kind, c.ok, out.Reason, out.Message))
	}
	for _, c := range s.Containers {
		cs := containerStatus(p, c)
		if c.Init {
			out.InitContainerStatuses = append(out.InitContainerStatuses, cs)
		} else {
			out.ContainerStatuses = append(out.ContainerStatuses, cs)
		}
	}
	return out
}

// lostStatus is the status of a pod that its node does not run at the moment: as it
// was, but not ready.
func lostStatus(p *corev1.Pod) corev1.PodStatus {
	out := *p.Status.DeepCopy()
	for i := range out.Conditions {
		c := &out.Conditions[i]
		if (c.Type == corev1.PodReady || c.Type == corev1.ContainersReady) && c.Status == corev1.ConditionTrue {
			*c = podCondition(nil, c.Type, false, "NodeLost", "the node is off or has just booted")
		}
	}
	return out
}

func podCondition(old []corev1.PodCondition, kind corev1.PodConditionType, ok bool, reason, message string) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	if ok {
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "", ""
	}
	c.LastTransitionTime = now()
	for _, o := range old {
		if o.Type == kind && o.Status == c.Status {
			c.LastTransitionTime = o.LastTransitionTime
		}
	}
	return c
}

func containerStatus(p *corev1.Pod, c machine.ContainerState) corev1.ContainerStatus {
	started := c.Running
	out := corev1.ContainerStatus{Name: c.Name, Ready: c.Running, Started: &started, RestartCount: int32(c.Restarts)}
	for _, spec := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if spec.Name == c.Name {
			out.Image = spec.Image
		}
	}
	var last *corev1.ContainerStateTerminated
	if c.Exited {
		last = &corev1.ContainerStateTerminated{
			ExitCode: int32(c.ExitCode), Reason: c.Reason, StartedAt: *at(c.Started), FinishedAt: *at(c.Finished),
		}
	}
	switch {
	case c.Failing != "":
		// Also while it runs, if not yet for long enough to tell that it will.
		no := false
		out.Ready, out.Started = false, &no
		out.State.Waiting = &corev1.ContainerStateWaiting{Reason: machine.CrashLoop, Message: c.Failing}
		out.LastTerminationState.Terminated = last
	case c.Running:
		out.State.Running = &corev1.ContainerStateRunning{StartedAt: *at(c.Started)}
		out.LastTerminationState.Terminated = last
	case last != nil:
		out.State.Terminated = last
		out.Ready = c.Init && c.ExitCode == 0
	default:
		out.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	return out
}

// nodeStatus is the status of a node. A node that is off is not ready.
func nodeStatus(n *corev1.Node, s *machine.State, addresses []netip.Addr) corev1.NodeStatus {
	out := *n.Status.DeepCopy()
	out.Addresses = nil
	for _, a := range addresses {
		out.Addresses = append(out.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	out.Addresses = append(out.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.Name})
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Ready", Message: "pods can be attached"}
	switch {
	case s == nil:
		ready.Status, ready.Reason, ready.Message = corev1.ConditionUnknown, "PowerOff", "the node is off or has not started"
	case !s.Ready:
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "NetworkNotReady", s.Reason
	}
	ready.LastTransitionTime = now()
	for _, o := range n.Status.Conditions {
		if o.Type == ready.Type && o.Status == ready.Status {
			ready.LastTransitionTime, ready.LastHeartbeatTime = o.LastTransitionTime, o.LastHeartbeatTime
		}
	}
	out.Conditions = []corev1.NodeCondition{ready}
	return out
}

// deploymentStatus counts the pods of a Deployment.
func deploymentStatus(v View, d *appsv1.Deployment) appsv1.DeploymentStatus {
	out := appsv1.DeploymentStatus{ObservedGeneration: d.Generation}
	hash := templateHash(d)
	for _, p := range v.Pods {
		if !ownedBy(p, d) {
			continue
		}
		out.Replicas++
		if p.Labels[LabelTemplate] == hash {
			out.UpdatedReplicas++
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				out.ReadyReplicas++
				out.AvailableReplicas++
			}
		}
	}
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	out.UnavailableReplicas = max(0, want-out.AvailableReplicas)
	c := appsv1.DeploymentCondition{
		Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable",
		Message: fmt.Sprintf("%d of %d pods are ready", out.AvailableReplicas, want),
	}
	if out.UnavailableReplicas > 0 {
		c.Status, c.Reason = corev1.ConditionFalse, "MinimumReplicasUnavailable"
	}
	c.LastTransitionTime = now()
	c.LastUpdateTime = c.LastTransitionTime
	for _, o := range d.Status.Conditions {
		if o.Type == c.Type && o.Status == c.Status {
			c.LastTransitionTime = o.LastTransitionTime
			if o.Message == c.Message {
				c.LastUpdateTime = o.LastUpdateTime
			}
		}
	}
	out.Conditions = []appsv1.DeploymentCondition{c}
	return out
}

// at is a time as the API keeps it, in whole seconds.
func at(t time.Time) *metav1.Time {
	if t.IsZero() {
		return &metav1.Time{}
	}
	return &metav1.Time{Time: t.UTC().Truncate(time.Second)}
}

func now() metav1.Time { return *at(time.Now()) }
