package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/deploy"
)

const (
	agentSet     = "fairlead-agent"
	uninstallSet = "fairlead-uninstall"
	// uninstallLook is how often the nodes are looked at.
	uninstallLook = time.Second
)

// installed are the paths of what deploy/fairlead.yaml makes, but for agents and controller,
// in the order in which it is deleted. NAMESPACE is where Fairlead is installed.
var installed = []string{
	"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ipblocks.fairlead.dev",
	"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/netnamespaces.fairlead.dev",
	"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodenetworks.fairlead.dev",
	"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/subnets.fairlead.dev",
	"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/vpcs.fairlead.dev",
	"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/fairlead-agent",
	"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/fairlead-agent",
	"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/fairlead-agent",
	"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/fairlead-controller",
	"/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlead-agent",
	"/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlead-controller",
	"/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings/fairlead-controller",
	"/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/fairlead-controller",
	"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/fairlead-controller",
	"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/fairlead-controller-record",
	"/api/v1/namespaces/NAMESPACE/serviceaccounts/fairlead-agent",
	"/api/v1/namespaces/NAMESPACE/serviceaccounts/fairlead-controller",
	"/api/v1/namespaces/NAMESPACE/configmaps/fairlead",
}

// uninstalling is a cluster that Fairlead is taken away from.
type uninstalling struct {
	*kubeAccess
	a         *app
	namespace string
	uninstallOptions
}

func (a *app) uninstallCluster(ctx context.Context, o uninstallOptions) error {
	k, err := a.openCluster()
	if err != nil {
		return err
	}
	u := &uninstalling{kubeAccess: k, a: a, namespace: a.flags.agentNamespace, uninstallOptions: o}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	agents, err := u.daemonSet(ctx, agentSet)
	if err != nil {
		return err
	}
	cleaning, err := u.daemonSet(ctx, uninstallSet)
	if err != nil {
		return err
	}
	switch {
	case agents == nil && cleaning == nil && !o.objects:
		return a.say("namespace %s has neither agents nor an uninstall that was broken off: if Fairlead is installed elsewhere, say so with --agent-namespace; --objects deletes what is left in the API server", u.namespace)
	case o.dryRun:
		return u.plan(agents, cleaning)
	}
	if agents != nil || cleaning != nil {
		if err := u.clean(ctx, agents, cleaning); err != nil {
			return err
		}
	}
	if !o.objects {
		return a.say("VPCs, Subnets, their definitions and Fairlead's accounts are kept: --objects deletes them too")
	}
	for _, path := range installed {
		if err := u.remove(ctx, u.path(path)); err != nil {
			return err
		}
	}
	return nil
}

func (u *uninstalling) path(pattern string) string {
	return strings.Replace(pattern, "NAMESPACE", u.namespace, 1)
}

func (u *uninstalling) workload(kind, name string) string {
	return "/apis/apps/v1/namespaces/" + u.namespace + "/" + kind + "/" + name
}

// plan says what would be done.
func (u *uninstalling) plan(agents, cleaning *appsv1.DaemonSet) error {
	var lines []string
	if agents != nil {
		lines = append(lines, fmt.Sprintf("DaemonSet %s/%s, with what it has made on %s", u.namespace, agentSet, count(int(agents.Status.DesiredNumberScheduled), "node", "nodes")),
			fmt.Sprintf("Deployment %s/fairlead-controller", u.namespace))
	} else if cleaning != nil {
		lines = append(lines, fmt.Sprintf("what is left on %s", count(int(cleaning.Status.DesiredNumberScheduled), "node", "nodes")))
	}
	if u.objects {
		for _, path := range installed {
			lines = append(lines, objectOf(u.path(path)))
		}
	}
	return u.a.list(lines, "would be removed: %s", "nothing would be removed")
}

// clean removes Fairlead from the nodes.
func (u *uninstalling) clean(ctx context.Context, agents, cleaning *appsv1.DaemonSet) error {
	set, config, err := uninstallObjects(u.namespace, agents)
	if err != nil {
		return err
	}
	// Agents would put back what is removed.
	for _, path := range []string{u.workload("daemonsets", agentSet), u.workload("deployments", "fairlead-controller")} {
		if err := u.remove(ctx, path); err != nil {
			return err
		}
	}
	if cleaning == nil {
		// The agents' own says where everything is; one is needed for the pods to start.
		if err := u.create(ctx, "/api/v1/namespaces/"+u.namespace+"/configmaps", config); err != nil {
			return err
		}
		if err := u.create(ctx, "/apis/apps/v1/namespaces/"+u.namespace+"/daemonsets", set); err != nil {
			return err
		}
	}
	if err := u.await(ctx); err != nil {
		return err
	}
	return u.remove(ctx, u.workload("daemonsets", uninstallSet))
}

// uninstallObjects are the DaemonSet that cleans nodes, with the image and the directories of
// the agents that there are, and a ConfigMap for it.
func uninstallObjects(namespace string, agents *appsv1.DaemonSet) (*appsv1.DaemonSet, *corev1.ConfigMap, error) {
	var set appsv1.DaemonSet
	var config corev1.ConfigMap
	for _, document := range strings.Split(deploy.Uninstall, "\n---\n") {
		var into any
		switch {
		case strings.Contains(document, "\nkind: DaemonSet\n"):
			into = &set
		case strings.Contains(document, "\nkind: ConfigMap\n"):
			into = &config
		default:
			continue
		}
		if err := yaml.Unmarshal([]byte(document), into); err != nil {
			return nil, nil, fmt.Errorf("the manifest of the uninstall: %w", err)
		}
	}
	if set.Name == "" || config.Name == "" {
		return nil, nil, errors.New("the manifest of the uninstall lacks a DaemonSet or a ConfigMap")
	}
	set.Namespace, config.Namespace = namespace, namespace
	if agents == nil || len(agents.Spec.Template.Spec.Containers) == 0 {
		return &set, &config, nil
	}
	spec, have := &set.Spec.Template.Spec, agents.Spec.Template.Spec
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			containers[i].Image, containers[i].ImagePullPolicy = have.Containers[0].Image, have.Containers[0].ImagePullPolicy
		}
	}
	for i, v := range spec.Volumes {
		if j := slices.IndexFunc(have.Volumes, func(h corev1.Volume) bool { return h.Name == v.Name }); j >= 0 {
			spec.Volumes[i] = have.Volumes[j]
		}
	}
	spec.ImagePullSecrets, spec.NodeSelector, spec.Affinity = have.ImagePullSecrets, have.NodeSelector, have.Affinity
	return &set, &config, nil
}

// await waits until every node is clean, and says which ones are not.
func (u *uninstalling) await(ctx context.Context) error {
	tick := time.NewTicker(uninstallLook)
	defer tick.Stop()
	for {
		set, err := u.daemonSet(ctx, uninstallSet)
		if err == nil && set == nil {
			err = fmt.Errorf("the DaemonSet %s/%s was deleted: run the command again", u.namespace, uninstallSet)
		}
		if err != nil {
			return err
		}
		if s := set.Status; s.ObservedGeneration >= set.Generation && s.NumberReady == s.DesiredNumberScheduled {
			return u.a.say("%s clean", count(int(s.DesiredNumberScheduled), "node is", "nodes are"))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not every node is clean after %s; run the command again, or look into the pods: kubectl -n %s get pods -l app=%s -o wide", u.timeout, u.namespace, uninstallSet), u.unclean(context.WithoutCancel(ctx)))
		}
	}
}

// unclean says of each node that is not clean what its pod waits for.
func (u *uninstalling) unclean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	raw, err := read(ctx, u.client.Get().AbsPath("/api/v1/namespaces/"+u.namespace+"/pods").Param("labelSelector", "app="+uninstallSet).SetHeader("Accept", runtime.ContentTypeJSON))
	if err != nil {
		return missing(err, "list", "pods in namespace "+u.namespace, "look at the nodes that are not clean")
	}
	var pods corev1.PodList
	if err := json.Unmarshal(raw, &pods); err != nil {
		return err
	}
	var errs []error
	for _, p := range pods.Items {
		for _, s := range p.Status.InitContainerStatuses {
			switch {
			case s.State.Terminated != nil && s.State.Terminated.ExitCode == 0:
			case s.LastTerminationState.Terminated != nil:
				errs = append(errs, fmt.Errorf("node %s: %s", p.Spec.NodeName, strings.TrimSpace(s.LastTerminationState.Terminated.Message)))
			case s.State.Waiting != nil:
				errs = append(errs, fmt.Errorf("node %s: %s %s", p.Spec.NodeName, s.State.Waiting.Reason, s.State.Waiting.Message))
			default:
				errs = append(errs, fmt.Errorf("node %s is being cleaned", p.Spec.NodeName))
			}
		}
	}
	return errors.Join(errs...)
}

// daemonSet reads one, nil if it is not there.
func (u *uninstalling) daemonSet(ctx context.Context, name string) (*appsv1.DaemonSet, error) {
	raw, err := read(ctx, u.client.Get().AbsPath(u.workload("daemonsets", name)).SetHeader("Accept", runtime.ContentTypeJSON))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, missing(err, "get", "daemonsets in namespace "+u.namespace, "look at DaemonSet "+name)
	}
	var set appsv1.DaemonSet
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, fmt.Errorf("DaemonSet %s: %w", name, err)
	}
	return &set, nil
}

// create makes an object; one that is there is as good.
func (u *uninstalling) create(ctx context.Context, path string, object any) error {
	raw, err := json.Marshal(object)
	if err != nil {
		return err
	}
	_, err = read(ctx, u.client.Post().AbsPath(path).SetHeader("Content-Type", runtime.ContentTypeJSON).SetHeader("Accept", runtime.ContentTypeJSON).Body(raw))
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return missing(err, "create", objectOf(path), "make what cleans the nodes")
}

// remove deletes an object with what belongs to it, and says so. One that is not there is no
// fault.
func (u *uninstalling) remove(ctx context.Context, path string) error {
	_, err := read(ctx, u.client.Delete().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return missing(err, "delete", objectOf(path), "delete "+objectOf(path))
	}
	return u.a.say("removed: %s", objectOf(path))
}

// objectOf names the object of a path for people.
func objectOf(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	return strings.Join(parts[max(0, len(parts)-2):], " ")
}
