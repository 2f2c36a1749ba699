package kube_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// The server picks the Events of one source; the others do not travel.
func TestListWhereReal(t *testing.T) {
	s := realServer(t)
	s.defineOurs(t)
	s.empty(t)
	defer s.empty(t)
	store := open(t, s.config())
	for name, source := range map[string]string{"ours": "fairlead-controller", "theirs": "kubelet", "late": "fairlead-controller"} {
		e := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: name},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p", APIVersion: "v1"},
			Reason:         "R", Type: corev1.EventTypeWarning, Source: corev1.EventSource{Component: source},
		}
		if _, err := store.Create(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	list, err := store.ListWhere(t.Context(), datastore.KindEvent, "source", "fairlead-controller")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range list.Items {
		names = append(names, o.GetName())
	}
	if len(names) != 2 || names[0] != "late" || names[1] != "ours" || list.ResourceVersion == "" {
		t.Errorf("listed %v at %q", names, list.ResourceVersion)
	}
}
