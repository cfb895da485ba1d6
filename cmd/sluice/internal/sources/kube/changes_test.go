package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestChanges: each object that is new, another or gone counts once.
func TestChanges(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	service := func(name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}}}
	}
	slice := func(service, name, trigger string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv6, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
			Labels:      map[string]string{discoveryv1.LabelServiceName: service},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: trigger}}}
	}
	web, dns, others := service("web"), service("dns"), service("others")
	others.Labels = map[string]string{labelServiceProxyName: "somebody"}
	one, two := slice("web", "web-1", at.Format(time.RFC3339Nano)), slice("web", "web-2", "yesterday")
	objects := flat{Services: []*corev1.Service{web, dns, others}, Slices: []*discoveryv1.EndpointSlice{one, two, slice("others", "others-1", "")}}

	var c Converter
	step := func(what string, services, endpoints, triggers int, options Options) {
		t.Helper()
		got := c.Convert(objects.lists(), options).Changes
		if got.Services != services || got.Endpoints != endpoints || len(got.Triggers) != triggers {
			t.Errorf("%s: changes %+v, want %d Services, %d Endpoints, %d triggers", what, got, services, endpoints, triggers)
		}
		for _, trigger := range got.Triggers {
			if !trigger.At.Equal(at) || !trigger.IPv6 {
				t.Errorf("%s: trigger %+v, want %v of IPv6", what, trigger, at)
			}
		}
	}
	step("first", 2, 3, 1, Options{})
	step("nothing", 0, 0, 0, Options{})
	step("another node", 0, 0, 0, Options{Facts: Facts{Zone: "a"}})
	objects.Services = []*corev1.Service{service("web"), dns}
	step("another object of a Service, and one gone that was not ours", 1, 0, 0, Options{})
	objects.Slices = []*discoveryv1.EndpointSlice{slice("web", "web-1", at.Format(time.RFC3339Nano))}
	step("another slice, and two gone", 0, 3, 1, Options{})
	objects = flat{Services: []*corev1.Service{dns}}
	step("a Service gone with its slice", 1, 1, 0, Options{})
}

func TestLeavingNode(t *testing.T) {
	now := metav1.Now()
	for what, change := range map[string]func(*corev1.Node){
		"":                        func(*corev1.Node) {},
		"another taint":           func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "dedicated"}} },
		"being deleted":           func(n *corev1.Node) { n.DeletionTimestamp = &now },
		"marked by an autoscaler": func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x"}, {Key: taintToBeDeleted}} },
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		change(node)
		got := convert(flat{Nodes: []*corev1.Node{node}}, Options{Facts: Facts{NodeName: "node-1"}}).Facts
		if want := what != "" && what != "another taint"; !got.Known || got.Leaving != want {
			t.Errorf("node %s: %+v, want leaving %v", what, got, want)
		}
	}
	if got := convert(flat{}, Options{Facts: Facts{NodeName: "node-1"}}).Facts; got.Known || got.Leaving {
		t.Errorf("without a node: %+v", got)
	}
}
