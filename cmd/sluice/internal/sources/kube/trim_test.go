package kube

import (
	"reflect"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestTrimSlice: endpoints that share memory say what they said alone.
func TestTrimSlice(t *testing.T) {
	yes, no, node := true, false, "node-1"
	endpoints := func() []discoveryv1.Endpoint {
		return []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1", "10.0.0.22"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &no}},
			{Addresses: nil, NodeName: &node},
			{Addresses: []string{"fd00::1"}, Conditions: discoveryv1.EndpointConditions{Ready: &no, Terminating: &yes},
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}},
		}
	}
	slice := TrimSlice(&discoveryv1.EndpointSlice{Endpoints: endpoints()})
	for i, want := range endpoints() {
		got := slice.Endpoints[i]
		if len(got.Addresses)+len(want.Addresses) == 0 {
			got.Addresses = nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("endpoint %d is\n%+v\nwant\n%+v", i, got, want)
		}
		if cap(got.Addresses) != len(got.Addresses) {
			t.Errorf("endpoint %d: to append to its addresses is to write to those of the next", i)
		}
	}
}
