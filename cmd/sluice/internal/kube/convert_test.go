package kube

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/lb"
)

// objects decodes YAML documents; only the fields that matter are written.
func objects(t *testing.T, text string) Objects {
	t.Helper()
	var o Objects
	decode := func(doc string, into any) {
		if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
			t.Fatalf("decode %s: %v", doc, err)
		}
	}
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var meta metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			t.Fatalf("decode %s: %v", doc, err)
		}
		switch meta.Kind {
		case "Service":
			svc := new(corev1.Service)
			decode(doc, svc)
			o.Services = append(o.Services, svc)
		case "EndpointSlice":
			slice := new(discoveryv1.EndpointSlice)
			decode(doc, slice)
			o.Slices = append(o.Slices, slice)
		case "Endpoints":
			endpoints := new(corev1.Endpoints)
			decode(doc, endpoints)
			o.Endpoints = append(o.Endpoints, endpoints)
		default:
			t.Fatalf("kind %q in %s", meta.Kind, doc)
		}
	}
	return o
}

// describe writes services one a line, with the conditions of each backend as
// r(eady), s(erving), t(erminating).
func describe(services []lb.Service) string {
	var b strings.Builder
	for _, s := range services {
		family := "IPv4"
		if s.IPv6 {
			family = "IPv6"
		}
		fmt.Fprintf(&b, "%s %s %s %v", s.ID, s.Protocol, family, s.Frontends)
		if s.AffinityTimeout != 0 {
			fmt.Fprintf(&b, " affinity %ds", s.AffinityTimeout/1e9)
		}
		b.WriteString(" ->")
		for _, e := range s.Backends {
			fmt.Fprintf(&b, " %s/", e.Addr)
			for _, c := range []struct {
				on     bool
				letter string
			}{{e.Ready, "r"}, {e.Serving, "s"}, {e.Terminating, "t"}} {
				if c.on {
					b.WriteString(c.letter)
				}
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

const oneSlice = `
---
kind: EndpointSlice
metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.0.0.1]}]`

//house:allow-long one table of short cases; a split would hide which row of the rules is missing
func TestConvert(t *testing.T) {
	tests := map[string]struct {
		in   string
		want string
	}{
		"one port": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 80, protocol: TCP}]}` + oneSlice,
			want: "default/web TCP IPv4 [10.96.0.1:80] -> 10.0.0.1:8080/rs\n",
		},
		"clusterIPs absent: clusterIP is used": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}` + oneSlice,
			want: "default/web TCP IPv4 [10.96.0.1:80] -> 10.0.0.1:8080/rs\n",
		},
		"no endpoints: still a service": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}`,
			want: "default/web TCP IPv4 [10.96.0.1:80] ->\n",
		},
		"headless, ExternalName and unallocated are skipped": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: None, clusterIPs: [None], ports: [{port: 80}]}
---
kind: Service
metadata: {namespace: default, name: name}
spec: {type: ExternalName, externalName: example.com, clusterIP: 10.96.0.9, ports: [{port: 80}]}
---
kind: Service
metadata: {namespace: default, name: young}
spec: {ports: [{port: 80}]}` + oneSlice,
			want: "",
		},
		"dual stack: each family its own service, endpoints and frontends": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: "fd00::1", clusterIPs: ["fd00::1", 10.96.0.1], ports: [{port: 80}]}
---
kind: EndpointSlice
metadata: {namespace: default, name: web-6, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: "", port: 8080}]
endpoints: [{addresses: ["fd01::1"]}]
---
kind: EndpointSlice
metadata: {namespace: default, name: web-f, labels: {kubernetes.io/service-name: web}}
addressType: FQDN
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [web.example.com]}]` + oneSlice,
			want: "default/web TCP IPv4 [10.96.0.1:80] -> 10.0.0.1:8080/rs\n" +
				"default/web TCP IPv6 [[fd00::1]:80] -> [fd01::1]:8080/rs\n",
		},
		"ports match by name and protocol, each slice with its own number": {
			in: `
kind: Service
metadata: {namespace: default, name: dns}
spec:
  clusterIP: 10.96.0.10
  ports:
  - {name: dns, port: 53, protocol: UDP, targetPort: dns}
  - {name: dns-tcp, port: 53, protocol: TCP, targetPort: dns-tcp}
  - {name: ctl, port: 132, protocol: SCTP}
---
kind: EndpointSlice
metadata: {namespace: default, name: dns-1, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports:
- {name: dns, port: 5353, protocol: UDP}
- {name: dns-tcp, port: 5354}
- {name: ctl, port: 9999, protocol: TCP}
- {name: other, port: 1}
endpoints: [{addresses: [10.0.0.1]}]
---
kind: EndpointSlice
metadata: {namespace: default, name: dns-2, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{name: dns, port: 1053, protocol: UDP}]
endpoints: [{addresses: [10.0.0.2]}]`,
			want: "default/dns:ctl SCTP IPv4 [10.96.0.10:132] ->\n" +
				"default/dns:dns UDP IPv4 [10.96.0.10:53] -> 10.0.0.1:5353/rs 10.0.0.2:1053/rs\n" +
				"default/dns:dns-tcp TCP IPv4 [10.96.0.10:53] -> 10.0.0.1:5354/rs\n",
		},
		"conditions, nil and set; only the first address": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
kind: EndpointSlice
metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints:
- {addresses: [10.0.0.1]}
- {addresses: [10.0.0.2], conditions: {ready: false}}
- {addresses: [10.0.0.3], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.0.0.4], conditions: {ready: false, serving: false}}
- {addresses: [10.0.0.5, 10.0.0.6], conditions: {ready: true, serving: true, terminating: false}}
- {addresses: []}`,
			want: "default/web TCP IPv4 [10.96.0.1:80] -> 10.0.0.1:8080/rs 10.0.0.2:8080/s 10.0.0.3:8080/st 10.0.0.4:8080/ 10.0.0.5:8080/rs\n",
		},
		"slice ports without name or number, wrong namespace and missing label are ignored": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
kind: EndpointSlice
metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}, {name: ""}, {name: "", port: 0}, {name: "", port: 70000}]
endpoints: [{addresses: [10.0.0.1]}]
---
kind: EndpointSlice
metadata: {namespace: other, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.0.0.2]}]
---
kind: EndpointSlice
metadata: {namespace: default, name: web-2}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.0.0.3]}]`,
			want: "default/web TCP IPv4 [10.96.0.1:80] ->\n",
		},
		"an address in two slices: the non-terminating one wins": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
kind: EndpointSlice
metadata: {namespace: default, name: web-2, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints:
- {addresses: [10.0.0.1], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.0.0.2], conditions: {ready: false, serving: false, terminating: false}}` + oneSlice + `
---
kind: EndpointSlice
metadata: {namespace: default, name: web-3, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints:
- {addresses: [10.0.0.2], conditions: {ready: false, serving: true, terminating: true}}`,
			want: "default/web TCP IPv4 [10.96.0.1:80] -> 10.0.0.1:8080/rs 10.0.0.2:8080/\n",
		},
		"bad addresses": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 010.096.000.001, ports: [{port: 80}]}
---
kind: Service
metadata: {namespace: default, name: broken}
spec: {clusterIP: 10.96.0, ports: [{port: 80}]}
---
kind: EndpointSlice
metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints:
- {addresses: [010.0.0.08]}
- {addresses: ["::ffff:10.0.0.9"]}
- {addresses: ["fd00::1"]}
- {addresses: [web.example.com]}
- {addresses: [10.0.0..1]}
- {addresses: ["fe80::1%eth0"]}`,
			want: "default/web TCP IPv4 [10.96.0.1:80] -> 10.0.0.8:8080/rs 10.0.0.9:8080/rs\n",
		},
		"session affinity": {
			in: `
kind: Service
metadata: {namespace: default, name: a}
spec: {clusterIP: 10.96.0.1, sessionAffinity: None, ports: [{port: 80}]}
---
kind: Service
metadata: {namespace: default, name: b}
spec: {clusterIP: 10.96.0.2, sessionAffinity: ClientIP, ports: [{port: 80}]}
---
kind: Service
metadata: {namespace: default, name: c}
spec: {clusterIP: 10.96.0.3, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, ports: [{port: 80}]}`,
			want: "default/a TCP IPv4 [10.96.0.1:80] ->\n" +
				"default/b TCP IPv4 [10.96.0.2:80] affinity 10800s ->\n" +
				"default/c TCP IPv4 [10.96.0.3:80] affinity 60s ->\n",
		},
		"Endpoints speak for a Service without slices": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, "fd00::1"], ports: [{name: http, port: 80}, {name: admin, port: 81}]}
---
kind: Endpoints
metadata: {namespace: default, name: web}
subsets:
- addresses: [{ip: 10.0.0.2}, {ip: 10.0.0.1}, {ip: "fd01::1"}]
  notReadyAddresses: [{ip: 10.0.0.3}]
  ports: [{name: http, port: 8080}]
- addresses: [{ip: 10.0.0.3}]
  ports: [{name: http, port: 8081}, {name: admin, port: 9000, protocol: UDP}]`,
			want: "default/web:admin TCP IPv4 [10.96.0.1:81] ->\n" +
				"default/web:admin TCP IPv6 [[fd00::1]:81] ->\n" +
				"default/web:http TCP IPv4 [10.96.0.1:80] -> 10.0.0.1:8080/rs 10.0.0.2:8080/rs 10.0.0.3:8080/ 10.0.0.3:8081/rs\n" +
				"default/web:http TCP IPv6 [[fd00::1]:80] -> [fd01::1]:8080/rs\n",
		},
		"Endpoints are ignored when there is a slice": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
kind: Endpoints
metadata: {namespace: default, name: web}
subsets: [{addresses: [{ip: 10.0.0.7}], ports: [{port: 8080}]}]` + oneSlice,
			want: "default/web TCP IPv4 [10.96.0.1:80] -> 10.0.0.1:8080/rs\n",
		},
		"ports that cannot be": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, ports: [{name: a, port: 0}, {name: b, port: 65536}, {name: c, port: 80, protocol: DCCP}, {name: d, port: 65535}]}`,
			want: "default/web:d TCP IPv4 [10.96.0.1:65535] ->\n",
		},
		"one ID once, whatever the source holds": {
			in: `
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 10.96.0.2], ports: [{port: 80}, {port: 81}]}` + oneSlice,
			want: "default/web TCP IPv4 [10.96.0.1:80] -> 10.0.0.1:8080/rs\n",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := describe(Convert(objects(t, strings.TrimPrefix(test.in, "\n"))))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("services (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConvertZero(t *testing.T) {
	if got := Convert(Objects{}); len(got) != 0 {
		t.Errorf("Convert of nothing = %v", got)
	}
}

// many returns n Services, each with two ports and two slices that overlap.
func many(n int) Objects {
	var o Objects
	tcp := corev1.ProtocolTCP
	for i := range n {
		name := fmt.Sprintf("svc-%d", i)
		o.Services = append(o.Services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{
				ClusterIP: fmt.Sprintf("10.96.%d.%d", i/250, i%250+1),
				Ports:     []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "admin", Port: 81}},
			},
		})
		for half := range 2 {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default",
					Name:      fmt.Sprintf("%s-%d", name, half),
					Labels:    map[string]string{discoveryv1.LabelServiceName: name},
				},
				AddressType: discoveryv1.AddressTypeIPv4,
			}
			for _, port := range []string{"http", "admin"} {
				number := int32(8080)
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port, Port: &number, Protocol: &tcp})
			}
			for e := range 6 {
				terminating := half == 1
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses:  []string{fmt.Sprintf("10.0.%d.%d", i%250, half*4+e+1)},
					Conditions: discoveryv1.EndpointConditions{Terminating: &terminating},
				})
			}
			o.Slices = append(o.Slices, slice)
		}
	}
	return o
}

// TestConvertOrder holds the promise that the order of the objects is no input.
func TestConvertOrder(t *testing.T) {
	o := many(50)
	want := Convert(o)
	if len(want) != 100 || len(want[0].Backends) != 10 {
		t.Fatalf("%d services, %d backends of the first; want 100 and 10", len(want), len(want[0].Backends))
	}
	if !slices.IsSortedFunc(want, func(a, b lb.Service) int { return compareIDs(a.ID, b.ID) }) {
		t.Error("services are not in the order of their IDs")
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		random.Shuffle(len(o.Services), func(i, j int) { o.Services[i], o.Services[j] = o.Services[j], o.Services[i] })
		random.Shuffle(len(o.Slices), func(i, j int) { o.Slices[i], o.Slices[j] = o.Slices[j], o.Slices[i] })
		if diff := cmp.Diff(describe(want), describe(Convert(o))); diff != "" {
			t.Fatalf("another order of objects gives other services (-first +shuffled):\n%s", diff)
		}
	}
}

func BenchmarkConvert(b *testing.B) {
	o := many(10_000)
	b.ReportAllocs()
	for b.Loop() {
		Convert(o)
	}
}
