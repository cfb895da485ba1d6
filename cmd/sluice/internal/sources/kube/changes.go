package kube

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Changes counts the objects that are new, different or gone.
type Changes struct {
	Services  int // that are ours
	Endpoints int // EndpointSlices and Endpoints of any Services

	// Triggers are when the pods behind new and other EndpointSlices changed.
	Triggers []Trigger
}

// Trigger is when an endpoint changed, as the control plane has noted it in its
// EndpointSlice.
type Trigger struct {
	IPv6 bool
	At   time.Time
}

// changed counts the names in two lists, as an object that was replaced is in both.
func changed[T metav1.Object](gone, come []T, counts func(T) bool) int {
	names := make(map[objectKey]struct{}, len(come))
	for _, list := range [][]T{gone, come} {
		for _, o := range list {
			if counts(o) {
				names[objectKey{o.GetNamespace(), o.GetName()}] = struct{}{}
			}
		}
	}
	return len(names)
}

// triggersOf reads the annotation of the EndpointSlice controller. One that is not in
// its format says nothing, as in kube-proxy.
func triggersOf(come []*discoveryv1.EndpointSlice) (triggers []Trigger) {
	for _, slice := range come {
		at, err := time.Parse(time.RFC3339Nano, slice.Annotations[corev1.EndpointsLastChangeTriggerTime])
		if err == nil {
			triggers = append(triggers, Trigger{slice.AddressType == discoveryv1.AddressTypeIPv6, at})
		}
	}
	return triggers
}
