package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// agentSelector finds the agents' pods (deploy/chart).
	agentSelector = "app=fairlead-agent"
	// defaultAgentNamespace is where Fairlead is installed unless somebody chose another.
	defaultAgentNamespace = "kube-system"
)

// kubeAccess is a cluster as the user reaches it.
type kubeAccess struct {
	config *rest.Config
	client rest.Interface
}

// clientConfig is the kubeconfig that the flags name; in a pod without one, the pod's own.
func (f *targetFlags) clientConfig() clientcmd.ClientConfig {
	rules := &clientcmd.ClientConfigLoadingRules{}
	if f.kubernetes() {
		files := filepath.SplitList(f.kubeconfigs())
		if rules.Precedence = files; len(files) == 1 {
			rules = &clientcmd.ClientConfigLoadingRules{ExplicitPath: files[0]}
		}
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
}

// cluster names it for people.
func (f *targetFlags) cluster() string {
	switch {
	case !f.kubernetes():
		return "the service account of this pod"
	case f.context != "":
		return fmt.Sprintf("kubeconfig %s, context %s", f.kubeconfigs(), f.context)
	}
	return "kubeconfig " + f.kubeconfigs()
}

// openCluster prepares the connection to the cluster that the flags name.
func (a *app) openCluster() (*kubeAccess, error) {
	config, err := a.flags.clientConfig().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.flags.cluster(), err)
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	config.UserAgent = "fairlead/" + a.version
	config.WarningHandler = rest.NoWarnings{}
	config.GroupVersion, config.APIPath = &corev1.SchemeGroupVersion, "/api"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// Only questions of this one person.
	config.QPS, config.Burst = -1, 0
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.flags.cluster(), err)
	}
	return &kubeAccess{config: config, client: client}, nil
}

// namespace is the one that a flag gives, or else the context's; empty where there is
// neither.
func (a *app) namespace(given string) (string, error) {
	if given != "" || !a.flags.kubernetes() || a.flags.check() != nil {
		return given, nil // A mistake is told by whoever opens the datastore.
	}
	name, _, err := a.flags.clientConfig().Namespace()
	if err != nil {
		return "", fmt.Errorf("%s: %w", a.flags.cluster(), err)
	}
	return name, nil
}

// clusterAgents reaches agents through their pods.
func (a *app) clusterAgents(ctx context.Context, names []string) ([]agentOf, error) {
	k, err := a.openCluster()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	where := cmp.Or(a.flags.agentNamespace, defaultAgentNamespace)
	pods, err := k.agentPods(ctx, where)
	if err != nil {
		return nil, err
	}
	known, err := k.nodes(ctx)
	switch {
	case err == nil:
	case len(pods) == 0:
		return nil, fmt.Errorf("namespace %s has no pod with the label %s: if Fairlead is installed elsewhere, say so with --agent-namespace", where, agentSelector)
	default:
		// Only which nodes lack an agent cannot be told.
		fmt.Fprintln(a.err, "warning: only nodes that have an agent's pod are known:", err)
		for node := range pods {
			known = append(known, node)
		}
		slices.Sort(known)
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, noNode(n, known)
		}
	}
	if len(names) == 0 {
		names = known
	}
	var out []agentOf
	for _, n := range names {
		out = append(out, agentOf{node: n, client: k.doorTo(pods[n], where)})
	}
	return out, nil
}

// doorTo is the door to an agent's pod, or says why there is none.
func (k *kubeAccess) doorTo(p *corev1.Pod, namespace string) door {
	switch {
	case p == nil:
		return closedDoor{fmt.Errorf("there is no agent's pod on this node (looked for the label %s in namespace %s; --agent-namespace names another): does the DaemonSet fairlead-agent reach it?", agentSelector, namespace)}
	case p.Status.Phase != corev1.PodRunning:
		return closedDoor{fmt.Errorf("the agent's pod %s/%s is %s: kubectl -n %s describe pod %s says why", p.Namespace, p.Name, cmp.Or(string(p.Status.Phase), "new"), p.Namespace, p.Name)}
	}
	return &podDoor{config: k.config, client: k.client, namespace: p.Namespace, pod: p.Name}
}

// agentPods are the agents' pods by node: of several the one that can best be asked, as
// during an upgrade. They are looked for in one namespace: everybody who may make pods could
// make one that looks like an agent's.
func (k *kubeAccess) agentPods(ctx context.Context, namespace string) (map[string]*corev1.Pod, error) {
	raw, err := read(ctx, k.client.Get().Namespace(namespace).Resource("pods").Param("labelSelector", agentSelector).
		SetHeader("Accept", runtime.ContentTypeJSON))
	if err != nil {
		return nil, missing(err, "list", "pods in namespace "+namespace, "find the agents' pods")
	}
	var list corev1.PodList
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("find the agents' pods: %w", err)
	}
	out := map[string]*corev1.Pod{}
	for i := range list.Items {
		p := &list.Items[i]
		if p.Spec.NodeName != "" && (out[p.Spec.NodeName] == nil || better(p, out[p.Spec.NodeName])) {
			out[p.Spec.NodeName] = p
		}
	}
	return out, nil
}

// read returns the body of an answer, or the server's own words.
func read(ctx context.Context, r *rest.Request) ([]byte, error) {
	result := r.Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// better prefers a pod that runs, then one that stays, then the newer one.
func better(a, b *corev1.Pod) bool {
	rank := func(p *corev1.Pod) int {
		n := 0
		if p.Status.Phase == corev1.PodRunning {
			n += 2
		}
		if p.DeletionTimestamp == nil {
			n++
		}
		return n
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time)) > 0
}

// nodes are the names of all nodes, sorted.
func (k *kubeAccess) nodes(ctx context.Context) ([]string, error) {
	const onlyMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	raw, err := read(ctx, k.client.Get().Resource("nodes").SetHeader("Accept", onlyMetadata))
	if err != nil {
		return nil, missing(err, "list", "nodes", "list the nodes")
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	var out []string
	for _, n := range list.Items {
		out = append(out, n.Name)
	}
	slices.Sort(out)
	return out, nil
}

// missing says which right a person lacks.
func missing(err error, verb, what, purpose string) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("you may not %s: it takes the verb %s of %s: %w", purpose, verb, what, err)
	}
	return fmt.Errorf("%s: %w", purpose, err)
}
