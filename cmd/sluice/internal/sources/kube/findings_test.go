package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestFindings: what leads nowhere is found where all objects are written by hand, and only there.
func TestFindings(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*flat)
		want   string // none: nothing is found
	}{
		{"all is well", func(*flat) {}, ""},
		{"another port name", func(o *flat) { o.Slices[0].Ports[0].Name = new("htpp") },
			"EndpointSlice default/svc-0-0: port htpp (TCP) is none of Service default/svc-0, so its endpoints are not " +
				"used: did you mean http?"},
		{"another protocol", func(o *flat) { o.Slices[0].Ports[0].Protocol = new(corev1.ProtocolUDP) },
			"port http (UDP) is none of Service default/svc-0, so its endpoints are not used: it has port http (TCP)"},
		{"no Service", func(o *flat) { o.Slices[0].Labels = map[string]string{discoveryv1.LabelServiceName: "svc-O"} },
			"there is no Service default/svc-O: did you mean svc-0?"},
		{"no slice", func(o *flat) { o.Slices = nil },
			"Service default/svc-0: it has no endpoints: write an EndpointSlice"},
		{"a port without endpoints", func(o *flat) {
			o.Services[0].Spec.Ports = append(o.Services[0].Spec.Ports, corev1.ServicePort{Name: "admin", Port: 81})
		}, "port admin (TCP) has no endpoints"},
		{"a policy as label", func(o *flat) { o.Services[0].Labels = map[string]string{"sluice.io/scheduler": "lc"} },
			"Service default/svc-0: label sluice.io/scheduler is ignored: write it in metadata.annotations"},
		{"local endpoints without a node", func(o *flat) {
			o.Services[0].Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			for i := range o.Slices[0].Endpoints {
				o.Slices[0].Endpoints[i].NodeName = nil
			}
		}, "and no endpoint has a node: write endpoints[].nodeName"},
		{"another proxy's", func(o *flat) {
			o.Services[0].Labels = map[string]string{labelServiceProxyName: "other"}
		}, ""},
		{"headless", func(o *flat) { o.Services[0].Spec.ClusterIP, o.Services[0].Spec.ClusterIPs = "None", nil }, ""},
	} {
		o := many(1, 2)
		svc, slice := o.Services[0].DeepCopy(), o.Slices[0].DeepCopy()
		o.Services[0], o.Slices[0] = svc, slice
		c.change(&o)
		var k Converter
		text := ""
		for _, f := range findings(k.Convert(o.lists(), Options{Whole: true})) {
			text += f.Describe("default") + "\n"
		}
		if !strings.Contains(text, c.want) || c.want == "" && text != "" {
			t.Errorf("%s: found %q, want %q", c.name, text, c.want)
		}
		if f := findings(convert(o, Options{})); len(f) > 0 {
			t.Errorf("%s: found of an API server's objects: %v", c.name, f)
		}
		good := many(1, 2)
		if r := k.Convert(good.lists(), Options{Whole: true}); c.want != "" && len(r.Findings) == 0 || len(findings(r)) > 0 {
			t.Errorf("%s: once it is mended there is %v", c.name, r.Findings)
		}
	}
}

// TestPortsLeftOut: a Service of more ports than are served of one keeps the first, and says so.
func TestPortsLeftOut(t *testing.T) {
	for _, more := range []int{0, 1} {
		o := many(1, 1)
		svc := o.Services[0].DeepCopy()
		svc.Spec.Ports = nil
		for i := range maxPorts + more {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
		}
		o.Services[0] = svc
		r := convert(o, Options{})
		text := ""
		for _, f := range findings(r) {
			text += f.Describe("default")
		}
		if n := r.Services.Len(); n != maxPorts || strings.Contains(text, "16385 ports, and the first 16384") != (more > 0) {
			t.Errorf("%d more: %d ports are served, found %q", more, n, text)
		}
	}
}
