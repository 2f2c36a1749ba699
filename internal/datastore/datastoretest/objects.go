package datastoretest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

func testCRUD(t *testing.T, h Harness) {
	s := h.Store
	_, err := s.Get(t.Context(), datastore.KindPod, datastore.Key{Namespace: "web", Name: "a"})
	must(t, "get a missing pod", err, apierrors.IsNotFound, "NotFound")

	made := create(t, s, pod("web", "a"))
	if made.ResourceVersion == "" || made.Kind != "Pod" || made.APIVersion != "v1" {
		t.Errorf("created object has resourceVersion %q, kind %q, apiVersion %q", made.ResourceVersion, made.Kind, made.APIVersion)
	}
	if diff := cmp.Diff(made, get(t, s, made)); diff != "" {
		t.Errorf("Get differs from what Create returned (-created +got):\n%s", diff)
	}
	_, err = s.Create(t.Context(), pod("web", "a"))
	must(t, "create it again", err, apierrors.IsAlreadyExists, "AlreadyExists")
	create(t, s, pod("other", "a")) // the same name in another namespace

	if got := len(list(t, s, datastore.KindPod).Items); got != 2 {
		t.Errorf("List has %d items, want 2", got)
	}
	remove(t, s, made)
	_, err = s.Get(t.Context(), datastore.KindPod, datastore.KeyOf(made))
	must(t, "get a deleted pod", err, apierrors.IsNotFound, "NotFound")
	err = s.Delete(t.Context(), datastore.KindPod, datastore.KeyOf(made), datastore.Preconditions{})
	must(t, "delete it again", err, apierrors.IsNotFound, "NotFound")

	again := create(t, s, pod("web", "a"))
	if again.UID == made.UID {
		t.Error("an object created anew has its predecessor's uid")
	}
}

func testCreateStamps(t *testing.T, h Harness) {
	in := pod("web", "a")
	in.Status.PodIP = "10.0.0.1" // dropped: status has its own door
	in.UID, in.Generation = "mine", 7
	got := create(t, h.Store, in)
	if got.UID == "" || got.UID == "mine" || got.Generation != 1 {
		t.Errorf("uid %q, generation %d; want a new uid and 1", got.UID, got.Generation)
	}
	if age := time.Since(got.CreationTimestamp.Time); age < -time.Minute || age > time.Minute {
		t.Errorf("creationTimestamp %s is not now", got.CreationTimestamp)
	}
	if got.Status.PodIP != "" || got.Status.Phase != corev1.PodPending {
		t.Errorf("status %+v, want an empty pending one", got.Status)
	}
	if p := got.Spec.Containers[0].Ports[0].Protocol; p != corev1.ProtocolTCP {
		t.Errorf("protocol %q, want the default TCP", p)
	}
	ns := create(t, h.Store, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}})
	if got := ns.Labels["kubernetes.io/metadata.name"]; got != "tenant" {
		t.Errorf("label kubernetes.io/metadata.name is %q, want tenant", got)
	}
	sn := create(t, h.Store, subnet("pods", "10.128.0.0/14"))
	want := v1alpha1.SubnetSpec{
		VPC: "default", CIDRs: []string{"10.128.0.0/14"}, Transport: v1alpha1.TransportOverlay, Encapsulation: v1alpha1.EncapsulationVXLAN,
		BlockSize: v1alpha1.BlockSize{V4: 26, V6: 122}, NATOutgoing: new(bool),
	}
	*want.NATOutgoing = true
	if diff := cmp.Diff(want, sn.Spec); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	about := corev1.ObjectReference{Kind: "Pod", Namespace: "web", Name: "a"}
	a := create(t, h.Store, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "web", GenerateName: "pod-"}, InvolvedObject: about})
	b := create(t, h.Store, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "web", GenerateName: "pod-"}, InvolvedObject: about})
	if !strings.HasPrefix(a.Name, "pod-") || a.Name == b.Name {
		t.Errorf("generated names %q and %q", a.Name, b.Name)
	}
}

func testCreateRefuses(t *testing.T, h Harness) {
	bad := subnet("pods", "10.128.0.1/14", "10.4.0.0/16", "10.4.1.0/24")
	_, err := h.Store.Create(t.Context(), bad)
	must(t, "create a bad Subnet", err, apierrors.IsInvalid, "Invalid")
	for _, want := range []string{"spec.cidrs[0]", "10.128.0.1/14", "10.128.0.0/14", "spec.cidrs[2]"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal does not mention %s: %v", want, err)
		}
	}
	versioned := netns("web", 5)
	versioned.ResourceVersion = "7"
	_, err = h.Store.Create(t.Context(), versioned)
	must(t, "create with a resourceVersion", err, apierrors.IsBadRequest, "BadRequest")
	_, err = h.Store.Create(t.Context(), pod("", "a"))
	must(t, "create a pod without a namespace", err, apierrors.IsInvalid, "Invalid")
	namespaced := netns("web", 5)
	namespaced.Namespace = "web"
	_, err = h.Store.Create(t.Context(), namespaced)
	must(t, "create a cluster-scoped object in a namespace", err, apierrors.IsInvalid, "Invalid")
	if !h.Finalizers {
		final := netns("web", 5)
		final.Finalizers = []string{"example.com/wait"}
		_, err = h.Store.Create(t.Context(), final)
		must(t, "create with a finalizer", err, apierrors.IsInvalid, "Invalid")
	}
	if got := list(t, h.Store, datastore.KindNetNamespace).Items; len(got) != 0 {
		t.Errorf("refused objects were stored: %v", got)
	}
}

func testOwnership(t *testing.T, h Harness) {
	in := pod("web", "a")
	before := in.DeepCopy()
	out := create(t, h.Store, in)
	if diff := cmp.Diff(before, in); diff != "" {
		t.Errorf("Create changed the caller's object (-before +after):\n%s", diff)
	}
	want := out.DeepCopy()
	out.Spec.Containers[0].Name = "changed"
	got := get(t, h.Store, in)
	got.Spec.Containers[0].Name = "changed"
	listed := list(t, h.Store, datastore.KindPod).Items[0].(*corev1.Pod)
	listed.Spec.Containers[0].Name = "changed"
	if diff := cmp.Diff(want, get(t, h.Store, in)); diff != "" {
		t.Errorf("a change of a returned object changed the stored one (-want +got):\n%s", diff)
	}
}

func testUpdate(t *testing.T, h Harness) {
	first := create(t, h.Store, netns("web", 5))
	edit := first.DeepCopy()
	edit.Spec.VNI = 6
	second := update(t, h.Store, edit)
	if second.ResourceVersion == first.ResourceVersion || second.Spec.VNI != 6 {
		t.Errorf("after the update: resourceVersion %s (was %s), vni %d", second.ResourceVersion, first.ResourceVersion, second.Spec.VNI)
	}
	if second.UID != first.UID || !second.CreationTimestamp.Equal(&first.CreationTimestamp) {
		t.Error("the update changed uid or creationTimestamp")
	}
	stale := first.DeepCopy()
	stale.Spec.VNI = 7
	_, err := h.Store.Update(t.Context(), stale)
	must(t, "update from a stale version", err, apierrors.IsConflict, "Conflict")
	if got := get(t, h.Store, first).Spec.VNI; got != 6 {
		t.Errorf("vni %d after a refused update, want 6", got)
	}
}

func testUpdateRefuses(t *testing.T, h Harness) {
	_, err := h.Store.Update(t.Context(), withVersion(netns("gone", 5), "1"))
	must(t, "update a missing object", err, apierrors.IsNotFound, "NotFound")
	first := create(t, h.Store, netns("web", 5))
	_, err = h.Store.Update(t.Context(), withVersion(first.DeepCopy(), ""))
	must(t, "update without resourceVersion", err, apierrors.IsInvalid, "Invalid")
	bad := first.DeepCopy()
	bad.Spec.VNI = 1 << 24
	_, err = h.Store.Update(t.Context(), bad)
	must(t, "update to a bad value", err, apierrors.IsInvalid, "Invalid")
	other := first.DeepCopy()
	other.UID, other.Spec.VNI = "another", 8
	_, err = h.Store.Update(t.Context(), other)
	must(t, "update under another uid", err, apierrors.IsConflict, "Conflict")

	sn := create(t, h.Store, subnet("pods", "10.128.0.0/14", "fd00:10::/64"))
	for field, change := range map[string]func(*v1alpha1.SubnetSpec){
		"spec.vpc":          func(s *v1alpha1.SubnetSpec) { s.VPC = "red" },
		"spec.transport":    func(s *v1alpha1.SubnetSpec) { s.Transport, s.Encapsulation = "Routed", "None" },
		"spec.blockSize.v4": func(s *v1alpha1.SubnetSpec) { s.BlockSize.V4 = 28 },
		"spec.cidrs":        func(s *v1alpha1.SubnetSpec) { s.CIDRs = s.CIDRs[:1] },
	} {
		edit := sn.DeepCopy()
		change(&edit.Spec)
		_, err := h.Store.Update(t.Context(), edit)
		must(t, "change "+field, err, apierrors.IsInvalid, "Invalid")
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the refusal does not name %s: %v", field, err)
		}
	}
	grow := sn.DeepCopy()
	grow.Spec.CIDRs = append(grow.Spec.CIDRs, "10.200.0.0/16")
	update(t, h.Store, grow)
}

func withVersion(n *v1alpha1.NetNamespace, rv string) *v1alpha1.NetNamespace {
	n.ResourceVersion = rv
	return n
}

func testNoChange(t *testing.T, h Harness) {
	// No pod: an API server marks those as deleted before it removes them.
	// And one that has a status already: to write an empty one for the first time may change it.
	made, err := h.Store.UpdateStatus(t.Context(), create(t, h.Store, subnet("pods", "10.128.0.0/14")))
	if err != nil {
		t.Fatalf("update the status: %v", err)
	}
	first := made.(*v1alpha1.Subnet)
	w := watch(t, h.Store, datastore.KindSubnet, first.ResourceVersion)
	if again := update(t, h.Store, first.DeepCopy()); again.ResourceVersion != first.ResourceVersion {
		t.Errorf("an update without a change went from %s to %s", first.ResourceVersion, again.ResourceVersion)
	}
	out, err := h.Store.UpdateStatus(t.Context(), first.DeepCopy())
	if err != nil || out.GetResourceVersion() != first.ResourceVersion {
		t.Errorf("a status update without a change: %v, %v", out, err)
	}
	remove(t, h.Store, first)
	if e := next(t, w); e.Type != datastore.Deleted {
		t.Errorf("first event is %s, want the deletion", describe(e))
	}
}

func testStatus(t *testing.T, h Harness) {
	made := create(t, h.Store, pod("web", "a"))
	edit := made.DeepCopy()
	edit.Status.PodIP = "10.0.0.1"
	edit.Labels = map[string]string{"app": "web"}
	edit.Spec.Containers[0].Image = "example.com/main:2"
	out, err := h.Store.UpdateStatus(t.Context(), edit)
	if err != nil {
		t.Fatalf("update the status: %v", err)
	}
	p := out.(*corev1.Pod)
	if p.Status.PodIP != "10.0.0.1" || len(p.Labels) > 0 || p.Spec.Containers[0].Image != "example.com/main:1" || p.Generation != 1 {
		t.Errorf("UpdateStatus wrote %+v, labels %v, image %q, generation %d; want the status alone", p.Status, p.Labels, p.Spec.Containers[0].Image, p.Generation)
	}
	// The image is one of the few things of a pod that every datastore lets be changed.
	change := p.DeepCopy()
	change.Status = corev1.PodStatus{}
	change.Spec.Containers[0].Image = "example.com/main:3"
	changed := update(t, h.Store, change)
	if changed.Status.PodIP != "10.0.0.1" || changed.Spec.Containers[0].Image != "example.com/main:3" {
		t.Errorf("Update wrote image %q and status %+v; want the image and the old status", changed.Spec.Containers[0].Image, changed.Status)
	}
	_, err = h.Store.UpdateStatus(t.Context(), edit)
	must(t, "status from a stale version", err, apierrors.IsConflict, "Conflict")
	n := create(t, h.Store, netns("web", 5))
	_, err = h.Store.UpdateStatus(t.Context(), n)
	must(t, "status of a kind without", err, apierrors.IsBadRequest, "BadRequest")
}

func testGeneration(t *testing.T, h Harness) {
	o := create(t, h.Store, netns("web", 5))
	o.Annotations = map[string]string{"note": "x"}
	o = update(t, h.Store, o)
	if o.Generation != 1 {
		t.Errorf("generation %d after a change of metadata, want 1", o.Generation)
	}
	o.Spec.VNI = 6
	o.Generation = 40
	o = update(t, h.Store, o)
	if o.Generation != 2 {
		t.Errorf("generation %d after a change of the spec, want 2", o.Generation)
	}
}

func testDeletePreconditions(t *testing.T, h Harness) {
	first := create(t, h.Store, netns("web", 5))
	key := datastore.KeyOf(first)
	err := h.Store.Delete(t.Context(), datastore.KindNetNamespace, key, datastore.Preconditions{UID: "another"})
	must(t, "delete under another uid", err, apierrors.IsConflict, "Conflict")
	edit := first.DeepCopy()
	edit.Spec.VNI = 6
	second := update(t, h.Store, edit)
	err = h.Store.Delete(t.Context(), datastore.KindNetNamespace, key, datastore.Preconditions{ResourceVersion: first.ResourceVersion})
	must(t, "delete a stale version", err, apierrors.IsConflict, "Conflict")
	if err := h.Store.Delete(t.Context(), datastore.KindNetNamespace, key, datastore.Preconditions{UID: second.UID, ResourceVersion: second.ResourceVersion}); err != nil {
		t.Errorf("delete under true preconditions: %v", err)
	}
}

func testAdmissionAgainstOthers(t *testing.T, h Harness) {
	create(t, h.Store, &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1alpha1.NodeNetworkSpec{Addresses: []string{"172.30.0.11/24"}}})
	create(t, h.Store, subnet("pods", "10.128.0.0/14"))
	_, err := h.Store.Create(t.Context(), subnet("more", "10.4.0.0/16", "10.130.0.0/16"))
	must(t, "create an overlapping Subnet", err, apierrors.IsInvalid, "Invalid")
	if err == nil || !strings.Contains(err.Error(), "spec.cidrs[1]") || !strings.Contains(err.Error(), "pods") {
		t.Errorf("the refusal names neither the field nor the other Subnet: %v", err)
	}
	_, err = h.Store.Create(t.Context(), subnet("nodes", "172.30.0.0/16"))
	must(t, "create a Subnet over a node's network", err, apierrors.IsInvalid, "Invalid")
	elsewhere := subnet("red", "10.128.0.0/14")
	elsewhere.Spec.VPC = "red" // another VPC may overlap, as far as the API is concerned
	create(t, h.Store, elsewhere)
	more := create(t, h.Store, subnet("more", "10.4.0.0/16"))
	more.Spec.CIDRs = append(more.Spec.CIDRs, "10.131.0.0/16")
	_, err = h.Store.Update(t.Context(), more)
	must(t, "add an overlapping CIDR", err, apierrors.IsInvalid, "Invalid")
}

// testEveryKind stores one object of each kind as its zero value allows, or sees
// it refused as Invalid: nothing else may happen.
func testEveryKind(t *testing.T, h Harness) {
	for _, kind := range datastore.Kinds() {
		r, err := datastore.Lookup(kind)
		if err != nil {
			t.Fatal(err)
		}
		o := r.New()
		o.SetName("x")
		if r.Namespaced {
			o.SetNamespace("web")
		}
		if _, err := h.Store.Create(t.Context(), o); err != nil && !apierrors.IsInvalid(err) {
			t.Errorf("create an empty %s: %v, want success or Invalid", kind, err)
		}
		for _, item := range list(t, h.Store, kind).Items {
			if got, _ := datastore.KindOf(item); got != kind {
				t.Errorf("list of %s holds a %s", kind, got)
			}
		}
	}
}

func testBadKeys(t *testing.T, h Harness) {
	for _, key := range []datastore.Key{{}, {Name: "a"}, {Namespace: "web"}, {Namespace: "web", Name: "a/b"}, {Namespace: "we/b", Name: "a"}} {
		_, err := h.Store.Get(t.Context(), datastore.KindPod, key)
		must(t, fmt.Sprintf("get pod %q", key), err, apierrors.IsBadRequest, "BadRequest")
		err = h.Store.Delete(t.Context(), datastore.KindPod, key, datastore.Preconditions{})
		must(t, fmt.Sprintf("delete pod %q", key), err, apierrors.IsBadRequest, "BadRequest")
	}
	_, err := h.Store.Get(t.Context(), "Unicorn", datastore.Key{Name: "a"})
	must(t, "get an unknown kind", err, apierrors.IsBadRequest, "BadRequest")
	_, err = h.Store.List(t.Context(), "Unicorn")
	must(t, "list an unknown kind", err, apierrors.IsBadRequest, "BadRequest")
	_, err = h.Store.Watch(t.Context(), "Unicorn", "1")
	must(t, "watch an unknown kind", err, apierrors.IsBadRequest, "BadRequest")
	for _, rv := range []string{"", "0", "x", "-1"} {
		_, err = h.Store.Watch(t.Context(), datastore.KindPod, rv)
		must(t, fmt.Sprintf("watch from %q", rv), err, apierrors.IsBadRequest, "BadRequest")
	}
	_, err = h.Store.Create(t.Context(), nil)
	must(t, "create nothing", err, apierrors.IsBadRequest, "BadRequest")
	_, err = h.Store.Create(t.Context(), (*corev1.Pod)(nil))
	must(t, "create a nil pod", err, apierrors.IsBadRequest, "BadRequest")
	_, err = h.Store.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}})
	must(t, "update an unknown type", err, apierrors.IsBadRequest, "BadRequest")
}

func testListSorted(t *testing.T, h Harness) {
	var want []string
	for _, namespace := range []string{"a", "a-b", "a0"} {
		for _, name := range []string{"x", "x-1", "x.1", "x1"} {
			want = append(want, namespace+"/"+name)
		}
	}
	for i := range want {
		namespace, name, _ := strings.Cut(want[len(want)-1-i], "/")
		create(t, h.Store, pod(namespace, name))
	}
	got := list(t, h.Store, datastore.KindPod)
	var keys []string
	for _, o := range got.Items {
		keys = append(keys, datastore.KeyOf(o).String())
	}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if got.ResourceVersion == "" {
		t.Error("the list has no resourceVersion")
	}
}

func testCreateRace(t *testing.T, h Harness) {
	const racers = 16
	var mu sync.Mutex
	var won []types.UID
	var wg sync.WaitGroup
	for range racers {
		wg.Go(func() {
			out, err := h.Store.Create(t.Context(), netns("web", 5))
			if apierrors.IsAlreadyExists(err) {
				return
			}
			if err != nil {
				t.Errorf("create: %v, want success or AlreadyExists", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			won = append(won, out.GetUID())
		})
	}
	wg.Wait()
	if len(won) != 1 || get(t, h.Store, netns("web", 5)).UID != won[0] {
		t.Errorf("%d creations succeeded, want one, and that one stored", len(won))
	}
}

func testUpdateRace(t *testing.T, h Harness) {
	const writers, rounds = 8, 20
	create(t, h.Store, netns("web", 1))
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < rounds; {
				o, err := h.Store.Get(t.Context(), datastore.KindNetNamespace, datastore.Key{Name: "web"})
				if err != nil {
					t.Errorf("get: %v", err)
					return
				}
				o.(*v1alpha1.NetNamespace).Spec.VNI++
				_, err = h.Store.Update(t.Context(), o)
				switch {
				case err == nil:
					done++
				case !apierrors.IsConflict(err):
					t.Errorf("update: %v, want success or Conflict", err)
					return
				}
			}
		})
	}
	wg.Wait()
	got := get(t, h.Store, netns("web", 0))
	if want := int32(1 + writers*rounds); got.Spec.VNI != want || got.Generation != int64(want) {
		t.Errorf("counter %d, generation %d; want both %d", got.Spec.VNI, got.Generation, want)
	}
}
