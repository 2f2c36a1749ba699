package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// perTransaction is how many objects are written at once: etcd takes 128.
const perTransaction = 100

// fill writes a world's objects into a datastore behind its back, where they are not
// there already, as fast as etcd goes.
func fill(ctx context.Context, endpoint string, snap *world.Snapshot) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("fill the datastore: %w", err)
	}
	defer client.Close()
	for batch := range batches(objects(snap)) {
		puts := make([]clientv3.Op, 0, perTransaction)
		for _, o := range batch {
			r, err := datastore.LookupObject(o)
			if err != nil {
				return err
			}
			value, err := datastore.Encode(o)
			if err != nil {
				return err
			}
			key := etcd.DefaultPrefix + "/" + r.Plural + "/" + datastore.KeyOf(o).String()
			absent := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
			puts = append(puts, clientv3.OpTxn([]clientv3.Cmp{absent}, []clientv3.Op{clientv3.OpPut(key, string(value))}, nil))
		}
		if _, err := client.Txn(ctx).Then(puts...).Commit(); err != nil {
			return fmt.Errorf("fill the datastore: %w", err)
		}
	}
	return nil
}

// batches parts a sequence of objects.
func batches(all func(yield func(datastore.Object) bool)) func(yield func([]datastore.Object) bool) {
	return func(yield func([]datastore.Object) bool) {
		var batch []datastore.Object
		for o := range all {
			if batch = append(batch, o); len(batch) == perTransaction {
				if !yield(batch) {
					return
				}
				batch = nil
			}
		}
		if len(batch) > 0 {
			yield(batch)
		}
	}
}

// objects are the API's objects of a world but for VPCs and Subnets, which a lab has,
// as somebody would have written them. What is bound to a node comes after the node.
func objects(s *world.Snapshot) func(yield func(datastore.Object) bool) {
	return func(yield func(datastore.Object) bool) {
		for n := range s.Nodes.Values() {
			if !yield(node(n)) {
				return
			}
		}
		for n := range s.NodeNetworks.Values() {
			if !yield(nodeNetwork(n)) {
				return
			}
		}
		for n := range s.Namespaces.Values() {
			if !yield(&corev1.Namespace{ObjectMeta: meta("", n.Name, n.UID, n.Labels)}) {
				return
			}
		}
		for n := range s.NetNamespaces.Values() {
			o := &v1alpha1.NetNamespace{ObjectMeta: meta("", n.Name, "uid-net-"+n.Name, nil), Spec: v1alpha1.NetNamespaceSpec{VNI: int32(n.VNI)}}
			if !yield(o) {
				return
			}
		}
		for b := range s.Blocks.Values() {
			if !yield(block(b)) {
				return
			}
		}
		for p := range s.Pods.Values() {
			if !yield(pod(p)) {
				return
			}
		}
	}
}

func meta(namespace, name, uid string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(uid), Labels: labels, Generation: 1,
		CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
	}
}

func node(n *world.Node) *corev1.Node {
	o := &corev1.Node{ObjectMeta: meta("", n.Name, n.UID, map[string]string{"kubernetes.io/hostname": n.Name})}
	for _, a := range n.Addresses {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	return o
}

func nodeNetwork(n *world.NodeNetwork) *v1alpha1.NodeNetwork {
	o := &v1alpha1.NodeNetwork{ObjectMeta: meta("", n.Name, "uid-network-"+n.Name, nil), Spec: v1alpha1.NodeNetworkSpec{
		VTEPMAC: packet.VTEPMAC(n.Name).String(), MTU: int32(n.MTU), Plane: v1alpha1.PlaneLinux,
	}}
	for _, a := range n.Addresses {
		o.Spec.Addresses = append(o.Spec.Addresses, a.String())
	}
	return o
}

func block(b *world.Block) *v1alpha1.IPBlock {
	o := &v1alpha1.IPBlock{ObjectMeta: meta("", v1alpha1.BlockName(b.Subnet, b.CIDR), "uid-block-"+b.Name, nil), Spec: v1alpha1.IPBlockSpec{
		Subnet: b.Subnet, CIDR: b.CIDR.String(), Node: b.Node, Allocations: map[string]v1alpha1.AddressOwner{},
	}}
	for _, a := range b.Allocations {
		o.Spec.Allocations[a.Addr.String()] = v1alpha1.AddressOwner{Namespace: a.Owner.Namespace, Name: a.Owner.Name, UID: types.UID(a.Owner.UID)}
	}
	return o
}

// pod is of the size that a Deployment's pod has in a cluster: some kilobytes of
// which the agent reads a hundred bytes.
func pod(p *world.Pod) *corev1.Pod {
	yes, start := true, metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	o := &corev1.Pod{ObjectMeta: meta(p.Namespace, p.Name, p.UID, p.Labels)}
	o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-6d4cf56db6", UID: "4f0c", Controller: &yes}}
	o.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z", "prometheus.io/scrape": "true"}
	o.Spec = corev1.PodSpec{
		NodeName: p.Node, ServiceAccountName: "web", RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
		Tolerations: []corev1.Toleration{
			{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			{Key: "node.kubernetes.io/unreachable", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		},
		Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}}},
		Containers: []corev1.Container{{
			Name: "web", Image: "registry.example.com/shop/web:v1.14.3", Command: []string{"/web"}, Args: []string{"--listen=:8080", "--log=info"},
			Ports: []corev1.ContainerPort{{Name: "http", Protocol: corev1.ProtocolTCP, ContainerPort: 8080}},
			Env:   []corev1.EnvVar{{Name: "DATABASE", Value: "postgres://db.shop.svc:5432/shop"}, {Name: "REGION", Value: "eu-central-1"}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi"),
			}},
			VolumeMounts:             []corev1.VolumeMount{{Name: "config", MountPath: "/etc/web", ReadOnly: true}},
			TerminationMessagePath:   corev1.TerminationMessagePathDefault,
			TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullIfNotPresent,
		}},
	}
	o.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: "172.16.0.1", QOSClass: corev1.PodQOSBurstable, StartTime: &start,
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "web", Ready: true, Started: &yes, Image: "registry.example.com/shop/web:v1.14.3",
			ImageID: "registry.example.com/shop/web@sha256:5e1f0d2b5e1f0d2b5e1f0d2b5e1f0d2b5e1f0d2b5e1f0d2b5e1f0d2b5e1f0d2b",
			State:   corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: start}},
		}},
	}
	for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		o.Status.Conditions = append(o.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: start})
	}
	for _, a := range p.Addresses {
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	if len(p.Addresses) > 0 {
		o.Status.PodIP = p.Addresses[0].String()
	}
	return o
}
