package kube

import (
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/probes"
	"github.com/sluice-lb/sluice/lb"
)

// readPolicies reads what the Service requests. What it says of annotations is complete after the slices are read, too.
func (c *converter) readPolicies() {
	c.policies, c.ignored = policies.Read(c.service.Annotations, probes.Check)
	first := ""
	var more []policies.Ignored // of the first slice that has some: others may have the same
	for _, slice := range c.slices {
		if len(slice.Annotations) == 0 || first != "" && slice.Name > first {
			continue
		}
		_, _, err := weightOf(slice)
		if i := policies.ReadSlice("EndpointSlice "+slice.Name, slice.Annotations, err != nil); len(i) > 0 {
			first, more = slice.Name, i
		}
	}
	c.ignored = append(c.ignored, more...)
}

// weightOf returns the weight of the endpoints of a slice, 0 to 65535, if it has one: 0 is maintenance, and 1 what
// there is without it, as with service.cilium.io/weight of Cilium.
func weightOf(slice *discoveryv1.EndpointSlice) (weight uint16, given bool, err error) {
	text, given := slice.Annotations[policies.Weight]
	if !given {
		return 0, false, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil, err
}

// weigh gives endpoints of a slice their weight.
func weigh(slice *discoveryv1.EndpointSlice, endpoints []lb.Backend) {
	weight, given, _ := weightOf(slice)
	if !given {
		return
	}
	for i := range endpoints {
		endpoints[i].Weight, endpoints[i].Maintenance = weight, weight == 0
	}
}
