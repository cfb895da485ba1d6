package kube

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-lb/sluice/lb"
)

func TestConvertZero(t *testing.T) {
	if got := describe(convert(flat{}, Options{})); got != "nothing" {
		t.Errorf("Convert of nothing = %s", got)
	}
}

// TestConvertDuplicates holds that an ID is there once even if a source has two
// Services of one name.
func TestConvertDuplicates(t *testing.T) {
	o := many(3, 10)
	o.Services = append(o.Services, o.Services[1], o.Services[0])
	if got := convert(o, Options{}); got.Services.Len() != 3 {
		t.Errorf("%d services, want 3:\n%s", got.Services.Len(), describe(got))
	}
}

// TestAnnotations: what a Service requests reaches each of its ports; what is of no use requests nothing, is reported
// once and counted until it is gone, and concerns nothing else.
func TestAnnotations(t *testing.T) {
	for _, c := range []struct {
		annotations map[string]string
		want        *lb.Policies
		reported    string
	}{
		{nil, nil, ""},
		{map[string]string{"sluice.io/data-path": "ipvs", "sluice.io/scheduler": "wlc"}, &lb.Policies{DataPath: "ipvs",
			Scheduler: "wlc"}, ""},
		{map[string]string{"sluice.io/slow-start": "0"}, &lb.Policies{SlowStart: -1}, ""},
		{map[string]string{"sluice.io/slow-start": "slow", "sluice.io/udp-responses": "1"},
			&lb.Policies{UDPResponses: 1},
			`sluice.io/slow-start "slow": give a duration up to 1h, or 0 for none`},
		{map[string]string{"sluice.io/slowStart": "30s"}, nil, "did you mean sluice.io/slow-start?"},
	} {
		o := many(2, 1)
		o.Services[0].Annotations = c.annotations
		o.Services[0] = TrimService(o.Services[0])
		var k Converter
		r := k.Convert(o.lists(), Options{})
		if s := r.Services.AppendTo(nil)[0]; !s.Equal(&lb.Service{ID: s.ID, Addresses: s.Addresses, Backends: s.Backends,
			Created: s.Created, Policies: c.want}) ||
			(s.Policies == nil) != (c.want == nil) || r.Services.AppendTo(nil)[1].Policies != nil {
			t.Errorf("%v: %+v, want %+v", c.annotations, s.Policies, c.want)
		}
		checkReported(t, &k, o, r, c.reported)
		o.Services = slices.Clone(o.Services)
		o.Services[0] = o.Services[0].DeepCopy()
		o.Services[0].Annotations = nil
		if r := k.Convert(o.lists(), Options{}); len(findings(r)) > 0 {
			t.Errorf("%v: without annotations %v", c.annotations, r.Findings)
		}
	}
}

// checkReported: r reports one annotation with these words, or none, and not again if its Service changes otherwise.
func checkReported(t *testing.T, k *Converter, o flat, r Result, want string) {
	t.Helper()
	text, many := "", 0
	if want != "" {
		many = 1
	}
	for _, f := range findings(r) {
		text += strings.TrimPrefix(f.Text, "annotation ")
	}
	text = strings.Replace(text, " is ignored:", "", 1)
	if len(findings(r)) != many || !strings.Contains(text, want) {
		t.Errorf("reported %q, want %q", text, want)
	}
	o.Services = slices.Clone(o.Services)
	o.Services[0] = o.Services[0].DeepCopy()
	if again := k.Convert(o.lists(), Options{}); again.Findings != nil {
		t.Errorf("reported again: %v", again.Findings)
	}
}

// findings are those of all Services that have some.
func findings(r Result) (out []Finding) {
	for _, f := range r.Findings {
		out = append(out, f.List...)
	}
	return out
}

// TestWeights: two slices of one Service divide by their weights, each endpoint of a slice has that of the slice, and
// what is no weight is reported once and counts as 1.
func TestWeights(t *testing.T) {
	for _, c := range []struct {
		weights  [2]string
		want     [2]lb.Backend // Weight and Maintenance of each slice's endpoints
		reported string
	}{
		{weights: [2]string{"70", "30"}, want: [2]lb.Backend{{Weight: 70}, {Weight: 30}}},
		{weights: [2]string{"65535", "0"}, want: [2]lb.Backend{{Weight: 65535}, {Maintenance: true}}},
		{weights: [2]string{"", "2"}, want: [2]lb.Backend{{}, {Weight: 2}}},
		{weights: [2]string{"1", "heavy"}, want: [2]lb.Backend{{Weight: 1}, {}},
			reported: `EndpointSlice svc-0-10: "heavy"`},
		{weights: [2]string{"-1", "1"}, want: [2]lb.Backend{{}, {Weight: 1}}, reported: `EndpointSlice svc-0-0: "-1"`},
		{weights: [2]string{"65536", "1"}, want: [2]lb.Backend{{}, {Weight: 1}},
			reported: `"65536": it is not a number from 0 to 65535`},
	} {
		o := many(1, 20)
		for i := range o.Slices[1].Endpoints { // others than those of the first slice, and after them
			o.Slices[1].Endpoints[i].Addresses = []string{fmt.Sprintf("10.254.0.%d", i)}
		}
		for i, text := range c.weights {
			if text != "" {
				o.Slices[i].Annotations = map[string]string{"sluice.io/weight": text}
			}
			o.Slices[i] = TrimSlice(o.Slices[i])
		}
		var k Converter
		r := k.Convert(o.lists(), Options{})
		backends := r.Services.AppendTo(nil)[0].Backends
		for i, b := range backends {
			if want := c.want[i/10]; len(backends) != 20 || b.Weight != want.Weight || b.Maintenance != want.Maintenance {
				t.Errorf("%v: endpoint %d of %d: weight %d, maintenance %t; want %+v", c.weights, i, len(backends), b.Weight, b.Maintenance, want)
			}
		}
		checkReported(t, &k, o, r, c.reported)
	}
}

// TestMaintenanceCountsAsUnhealthy: a load balancer is not to send connections to a node for endpoints that take none.
func TestMaintenanceCountsAsUnhealthy(t *testing.T) {
	for weight, want := range map[string]int{"1": 1, "0": 0} {
		o := many(1, 10)
		spec := &o.Services[0].Spec
		spec.Type, spec.ExternalTrafficPolicy, spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, 30000
		o.Slices[0].Annotations = map[string]string{"sluice.io/weight": weight}
		r := convert(o, Options{Facts: Facts{NodeName: "node-3"}})
		if len(r.HealthChecks) != 1 || r.HealthChecks[0].LocalEndpoints(noneOut) != want {
			t.Errorf("weight %s: %+v, want %d endpoints", weight, r.HealthChecks, want)
		}
	}
}

// noneOut says that no endpoint is out.
func noneOut(lb.ID, netip.AddrPort) bool { return false }

// TestLocalEndpoints: IPs are counted once, and not where an operator has drained each of their ports.
func TestLocalEndpoints(t *testing.T) {
	one, two := lb.ID{Namespace: "default", Name: "web", Port: "a"}, lb.ID{Namespace: "default", Name: "web", Port: "b"}
	at := netip.MustParseAddrPort
	h := HealthCheck{Local: []LocalEndpoint{{one, at("10.0.0.1:80")}, {two, at("10.0.0.1:90")}, {one, at("10.0.0.2:80")},
		{two, at("10.0.0.2:90")}, {one, at("10.0.0.3:80")}}}
	for _, c := range []struct {
		drained []string
		want    int
	}{
		{nil, 3}, {[]string{"10.0.0.1:80"}, 3}, {[]string{"10.0.0.1:90"}, 3},
		{[]string{"10.0.0.1:80", "10.0.0.1:90"}, 2}, {[]string{"10.0.0.3:80", "10.0.0.2:80"}, 2},
		{[]string{"10.0.0.1:80", "10.0.0.1:90", "10.0.0.2:80", "10.0.0.2:90", "10.0.0.3:80"}, 0},
	} {
		out := func(_ lb.ID, addr netip.AddrPort) bool { return slices.Contains(c.drained, addr.String()) }
		if n := h.LocalEndpoints(out); n != c.want {
			t.Errorf("with %v drained there are %d, want %d", c.drained, n, c.want)
		}
	}
}

// many returns n Services of one port, each with a slice for each ten endpoints.
func many(n, endpoints int) flat {
	var o flat
	for i := range n {
		name := fmt.Sprintf("svc-%d", i)
		o.Services = append(o.Services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{
				ClusterIP:  fmt.Sprintf("10.96.%d.%d", i/250, i%250+1),
				ClusterIPs: []string{fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)},
				Ports:      []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
			},
		})
		for first := 0; first < endpoints; first += 10 {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default",
					Name:      fmt.Sprintf("%s-%d", name, first),
					Labels: map[string]string{
						discoveryv1.LabelServiceName: name,
						discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
					},
				},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
			}
			for e := range min(10, endpoints-first) {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", e+1, i/250, i%250+1)},
					Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
					NodeName:   new(fmt.Sprintf("node-%d", e)),
					Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: fmt.Sprintf("zone-%d", e%3)}}},
				})
			}
			o.Slices = append(o.Slices, slice)
		}
	}
	return o
}

// TestConvertMany holds what is promised of the order of a result.
func TestConvertMany(t *testing.T) {
	o := many(300, 10)
	shuffle(rand.New(rand.NewPCG(1, 2)), o)
	got := convert(o, Options{Facts: Facts{NodeName: "node-3", Zone: "zone-1"}})
	if !slices.IsSortedFunc(got.Services.AppendTo(nil), func(a, b *lb.Service) int { return a.ID.Compare(b.ID) }) {
		t.Error("services are not in the order of their IDs")
	}
	if got.Services.Len() != 300 {
		t.Fatalf("%d services, want 300", got.Services.Len())
	}
	for s := range got.Services.All() {
		if len(s.Addresses) != 1 || len(s.Backends) != 10 {
			t.Fatalf("%s has %d addresses and %d backends, want 1 and 10", s.ID, len(s.Addresses), len(s.Backends))
		}
		for i, b := range s.Backends {
			if b.Addr.Port() != 8080 || b.Local != (i == 3) || (b.ZoneHint == lb.HintHere) != (i%3 == 1) {
				t.Fatalf("%s has backend %d: %+v", s.ID, i, b)
			}
		}
	}
}

func TestClusterIPs(t *testing.T) {
	for name, test := range map[string]struct {
		spec corev1.ServiceSpec
		want string
	}{
		"the first named first": {corev1.ServiceSpec{ClusterIP: "fd00::1", ClusterIPs: []string{"fd00::1", "10.96.0.1"}}, "fd00::1,10.96.0.1"},
		"one of each family":    {corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.2", "10.96.0.1", "fd00::2", "fd00::1"}}, "10.96.0.2,fd00::2"},
		"clusterIP alone":       {corev1.ServiceSpec{ClusterIP: "10.96.0.1"}, "10.96.0.1"},
		"not an IP":             {corev1.ServiceSpec{ClusterIP: "10.96.0", ClusterIPs: []string{"10.96.0", "", "0.0.0.0", "::"}}, ""},
		"none yet":              {corev1.ServiceSpec{}, ""},
		"headless":              {corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}}, ""},
		"headless all the same": {corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{"10.96.0.1"}}, ""},
		"ExternalName":          {corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ClusterIP: "10.96.0.1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := words(ClusterIPs(&corev1.Service{Spec: test.spec})); got != test.want {
				t.Errorf("ClusterIPs = %s, want %s", got, test.want)
			}
		})
	}
}

// parses holds what a function makes of texts; nothing of those that are wrong.
func parses[T fmt.Stringer](t *testing.T, parse func(string) (T, bool), of map[string]string) {
	t.Helper()
	for text, want := range of {
		got, ok := parse(text)
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("parse %q: %v, %v; want %q", text, got, ok, want)
		}
	}
}

func TestParseAddr(t *testing.T) {
	parses(t, parseAddr, map[string]string{
		"10.0.0.1":            "10.0.0.1",
		"010.000.0.08":        "10.0.0.8",
		"1.2.3.004":           "1.2.3.4",
		"0.0.0.0":             "",
		"::ffff:0.0.0.0":      "",
		"FD00:0::0001":        "fd00::1",
		"::ffff:10.0.0.1":     "10.0.0.1",
		"::ffff:0a00:1":       "10.0.0.1",
		"::ffff:010.0.00.01":  "10.0.0.1",
		"64:ff9b::192.0.2.33": "64:ff9b::c000:221",
		"":                    "",
		"None":                "",
		"10.0.0":              "",
		"10.0.0.0.1":          "",
		"10.0..1":             "",
		"10.0.0.256":          "",
		"010.0.0.0256":        "",
		" 10.0.0.1":           "",
		"10.0.0.1/32":         "",
		"fe80::1%eth0":        "",
		"::1::":               "",
		"web.example.com":     "",
	})
}

func TestParsePrefix(t *testing.T) {
	parses(t, parsePrefix, map[string]string{
		"10.0.0.0/8":              "10.0.0.0/8",
		"10.1.2.3/8":              "10.0.0.0/8",
		" 10.1.2.0/28\t":          "10.1.2.0/28",
		"203.0.113.000/025":       "203.0.113.0/25",
		"0.0.0.0/0":               "0.0.0.0/0",
		"::/0":                    "::/0",
		"::/128":                  "::/128",
		"2001:db8::1/32":          "2001:db8::/32",
		"::ffff:10.0.0.0/104":     "10.0.0.0/8",
		"::ffff:10.0.0.0/96":      "0.0.0.0/0",
		"::ffff:10.0.0.0/80":      "::/80",
		"":                        "",
		"/":                       "",
		"10.0.0.0":                "",
		"10.0.0.0/":               "",
		"10.0.0.0/33":             "",
		"10.0.0.0/-1":             "",
		"10.0.0.0/+8":             "",
		"10.0.0.0/8/8":            "",
		"2001:db8::/129":          "",
		"2001:db8::/300":          "",
		"fe80::%eth0/64":          "",
		"10.0.0.0/255.0.0.0":      "",
		"example.com/24":          "",
		"10.0.0.0/99999999999999": "",
	})
}

func TestObjectsLen(t *testing.T) {
	o := many(3, 20)
	o.Nodes = []*corev1.Node{{}}
	//lint:ignore SA1019 see Objects.Endpoints
	o.Endpoints = []*corev1.Endpoints{{}, {}}
	if got, want := o.lists().Len(), 3+6+1+2; got != want {
		t.Errorf("Len = %d, want %d", got, want)
	}
}

// TestConvertLeftOut: an endpoint where the node's own programs are, or nothing can be dialled, is
// left out, and reported once; the rest of its Service is served.
func TestConvertLeftOut(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "127.9.9.9", "169.254.169.254", "224.0.0.1", "0.0.0.0", "::ffff:127.0.0.1"} {
		t.Run(address, func(t *testing.T) {
			var k Converter
			o := many(1, 3)
			o.Slices[0].Endpoints[1].Addresses = []string{address}
			r := k.Convert(o.lists(), Options{})
			if n := len(r.Services.AppendTo(nil)[0].Backends); n != 2 {
				t.Errorf("%d endpoints, want the two others", n)
			}
			f := findings(r)
			if len(f) != 1 || r.Findings[0].Service.Name != "svc-0" || f[0].Name != o.Slices[0].Name ||
				!strings.HasPrefix(f[0].Text, "endpoint "+address+" is ") {
				t.Fatalf("left out: %+v", r.Findings)
			}
			slice := *o.Slices[0]
			slice.Endpoints = slices.Clone(slice.Endpoints)
			slice.Endpoints[0].Addresses = []string{"10.9.9.9"}
			o.Slices = []*discoveryv1.EndpointSlice{&slice}
			if r = k.Convert(o.lists(), Options{}); len(r.Findings) != 0 {
				t.Errorf("reported again: %v", r.Findings)
			}
		})
	}
	for _, address := range []string{"::1", "fe80::1", "ff02::1", "::"} {
		if untrusted(netip.MustParseAddr(address)) == "" {
			t.Errorf("%s is trusted", address)
		}
	}
	//lint:ignore SA1019 see Objects.Endpoints
	old := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "svc-0"}, Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: "127.0.0.1"}, {IP: "10.1.1.1"}},
		Ports:     []corev1.EndpointPort{{Name: "http", Port: 8080}}}}}
	o := many(1, 0)
	o.Endpoints = append(o.Endpoints, old)
	if r := convert(o, Options{}); len(findings(r)) != 1 || len(r.Services.AppendTo(nil)[0].Backends) != 1 {
		t.Errorf("of Endpoints: left out %v, %d endpoints", r.Findings, len(r.Services.AppendTo(nil)[0].Backends))
	}
}

// manyPorts returns a Service of n ports, with slices of at most 20,000, as the API has them.
func manyPorts(n, endpoints int) flat {
	o := many(1, endpoints)
	svc, first := o.Services[0], o.Slices[0]
	svc.Spec.Ports, o.Slices = nil, nil
	for i := range n {
		if i%20_000 == 0 {
			slice := *first
			slice.Name, slice.Ports = fmt.Sprint("slice-", i), nil
			o.Slices = append(o.Slices, &slice)
		}
		name := fmt.Sprint("p", i)
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(i + 1), Protocol: corev1.ProtocolTCP})
		slice := o.Slices[len(o.Slices)-1]
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)})
	}
	return o
}

// TestConvertManyPorts: each port of the largest Service has its endpoints.
func TestConvertManyPorts(t *testing.T) {
	got := convert(manyPorts(maxPorts, 3), Options{})
	if got.Services.Len() != maxPorts {
		t.Fatalf("%d services, want %d", got.Services.Len(), maxPorts)
	}
	for s := range got.Services.All() {
		if len(s.Backends) != 3 {
			t.Fatalf("%s has %d endpoints, want 3", s.ID, len(s.Backends))
		}
	}
}

// BenchmarkConvertPorts is a Service of many ports: the time for each is to stay the same.
func BenchmarkConvertPorts(b *testing.B) {
	for _, n := range []int{1_024, 4_096, maxPorts} {
		o := manyPorts(n, 3)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				convert(o, Options{})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/port")
		})
	}
}

func BenchmarkConvert(b *testing.B) {
	o := many(10_000, 10)
	shuffle(rand.New(rand.NewPCG(1, 2)), o)
	options := Options{Facts: Facts{NodeName: "node-3", Zone: "zone-1"}}
	b.ReportAllocs()
	for b.Loop() {
		convert(o, options)
	}
}
