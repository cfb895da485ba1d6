package kubeapi

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// service is a Service as a server sends it, with a version and things of no interest.
func service(name, clusterIP, version string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: version, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP, Selector: map[string]string{"app": name}},
	}
}

// newCollection returns one of Services, and the number of its changes.
func newCollection() (c *collection[*corev1.Service], changes *int) {
	changes = new(int)
	return &collection[*corev1.Service]{trim: kube.TrimService, changed: func() { *changes++ }}, changes
}

var check = testbed.Check

func content(c *collection[*corev1.Service]) (names []string) {
	all, _ := c.all()
	for svc := range all.All() {
		names = append(names, svc.Name+"="+svc.Spec.ClusterIP)
	}
	return names
}

func TestCollection(t *testing.T) {
	c, changes := newCollection()
	expect := func(step string, wantChanges int, want ...string) {
		t.Helper()
		if got := content(c); !slices.Equal(got, want) || *changes != wantChanges {
			t.Errorf("%s: got %v after %d changes, want %v after %d", step, got, *changes, want, wantChanges)
		}
	}
	if _, synced := c.all(); synced {
		t.Error("complete before the first list")
	}
	check(t, c.Replace([]any{service("b", "10.0.0.2", "1"), service("a", "10.0.0.1", "2")}, "2"))
	expect("list", 1, "a=10.0.0.1", "b=10.0.0.2")
	if _, synced := c.all(); !synced {
		t.Error("not complete after the first list")
	}
	given, _ := c.all()
	before := slices.Collect(given.All())
	if before[0].Spec.Selector != nil || before[0].ManagedFields != nil || before[0].ResourceVersion != "" {
		t.Errorf("not trimmed: %v", before[0])
	}

	check(t, c.Add(service("c", "10.0.0.3", "3")))
	expect("add", 2, "a=10.0.0.1", "b=10.0.0.2", "c=10.0.0.3")
	check(t, c.Update(service("a", "10.0.0.1", "4")))
	expect("update of what is trimmed away", 2, "a=10.0.0.1", "b=10.0.0.2", "c=10.0.0.3")
	check(t, c.Update(service("a", "10.0.0.9", "5")))
	expect("update", 3, "a=10.0.0.9", "b=10.0.0.2", "c=10.0.0.3")
	check(t, c.Delete(service("b", "", "6")))
	expect("delete", 4, "a=10.0.0.9", "c=10.0.0.3")
	check(t, c.Delete(service("b", "", "6")))
	expect("delete again", 4, "a=10.0.0.9", "c=10.0.0.3")
	check(t, c.Replace([]any{service("c", "10.0.0.3", "7"), service("a", "10.0.0.9", "8")}, "8"))
	expect("the same list", 4, "a=10.0.0.9", "c=10.0.0.3")
	check(t, c.Replace([]any{service("d", "10.0.0.4", "9"), service("c", "10.0.0.3", "9")}, "9"))
	expect("another list", 5, "c=10.0.0.3", "d=10.0.0.4")
	check(t, c.Replace(nil, "10"))
	expect("an empty list", 6)
	if before = slices.Collect(given.All()); before[0].Name != "a" || before[0].Spec.ClusterIP != "10.0.0.1" || before[1].Name != "b" {
		t.Errorf("what was handed out before has changed: %v", before)
	}
	if c.Add(&corev1.Node{}) == nil || c.Delete(&corev1.Node{}) == nil || c.Replace([]any{&corev1.Node{}}, "") == nil {
		t.Error("a Node was taken for a Service")
	}
}

// TestCollectionKeepsObjects holds what an incremental conversion lives on: what is
// the same stays the same object, through lists too.
func TestCollectionKeepsObjects(t *testing.T) {
	c, _ := newCollection()
	random := rand.New(rand.NewPCG(1, 2))
	list := func(version string) (list []any) {
		for i := range 500 {
			list = append(list, service(fmt.Sprintf("s-%03d", i), fmt.Sprintf("10.0.1.%d", i%250), version))
		}
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		return list
	}
	check(t, c.Replace(list("1"), "1"))
	all, _ := c.all()
	before := slices.Collect(all.All())
	check(t, c.Replace(list("2"), "2"))
	check(t, c.Update(service("s-100", "10.0.1.100", "3")))
	check(t, c.Update(service("s-200", "10.0.9.9", "3")))
	all, _ = c.all()
	after := slices.Collect(all.All())
	for i := range before {
		if same, want := before[i] == after[i], before[i].Name != "s-200"; same != want {
			t.Errorf("%s is the same object: %v, want %v", before[i].Name, same, want)
		}
	}
}
