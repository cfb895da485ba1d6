package kube

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/lb"
)

// AnnotationWeight of an EndpointSlice is the weight of each of its endpoints, 0 to 65535: 0 is maintenance, and 1 what
// there is without it, as with service.cilium.io/weight of Cilium.
const AnnotationWeight = ownAnnotations + "weight"

// maxSlowStart bounds what a Service can request.
const maxSlowStart = time.Hour

// slowStart returns what a Service has for lb.Service.SlowStart: sluice.io/slow-start is a duration like 30s, at most
// an hour, and 0 is none. What is no duration counts as not given.
func slowStart(svc *corev1.Service) int64 {
	d, err := time.ParseDuration(svc.Annotations[ownAnnotations+"slow-start"])
	switch {
	case err != nil || d < 0:
		return 0
	case d == 0:
		return -1
	}
	return int64(min(d, maxSlowStart))
}

// BadWeight is an EndpointSlice whose weight is none, and counts as not given.
type BadWeight struct {
	Namespace, Name string // of the Service
	Slice, Weight   string
}

// Err returns `EndpointSlice web-abc has "heavy", ...`.
func (b BadWeight) Err() error {
	return fmt.Errorf("EndpointSlice %s has %q, which is not a number from 0 to 65535: its endpoints have weight 1",
		b.Slice, b.Weight)
}

// weigh gives endpoints of a slice their weight.
func (c *converter) weigh(slice *discoveryv1.EndpointSlice, endpoints []lb.Backend) {
	text, ok := slice.Annotations[AnnotationWeight]
	if !ok {
		return
	}
	weight, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		if c.badWeight.Slice == "" || slice.Name < c.badWeight.Slice {
			c.badWeight = BadWeight{Namespace: c.namespace, Name: c.name, Slice: slice.Name, Weight: text}
		}
		return
	}
	for i := range endpoints {
		endpoints[i].Weight, endpoints[i].Maintenance = uint16(weight), weight == 0
	}
}
