package manifest

import (
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// compact has the endpoints of a slice share memory, and drops what is read of none. Ten
// thousand slices of ten endpoints are half a million objects otherwise, each of which
// the garbage collector looks at each time.
func compact(slice *discoveryv1.EndpointSlice) {
	slice.ManagedFields = nil
	count := 0
	var text strings.Builder
	for i := range slice.Endpoints {
		for _, a := range slice.Endpoints[i].Addresses {
			count++
			text.WriteString(a)
		}
	}
	all, left := make([]string, 0, count), text.String()
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		from := len(all)
		for _, a := range e.Addresses {
			all, left = append(all, left[:len(a)]), left[len(a):]
		}
		e.Addresses = all[from:len(all):len(all)]
		e.Hostname, e.TargetRef, e.DeprecatedTopology = nil, nil, nil
		c := &e.Conditions
		c.Ready, c.Serving, c.Terminating = shared(c.Ready), shared(c.Serving), shared(c.Terminating)
	}
}

var yes, no = true, false

// shared returns what means the same as b, nil included.
func shared(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return &yes
	}
	return &no
}
