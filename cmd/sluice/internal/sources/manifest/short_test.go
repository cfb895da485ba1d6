package manifest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestShort: a short form is read as the objects that it stands for.
func TestShort(t *testing.T) {
	for name, test := range map[string]struct{ short, objects string }{
		"an address": {`
listen: tcp://192.0.2.10:5432
endpoints: [192.0.2.11:5432, 192.0.2.12:5432, 192.0.2.13:5433]
policies: {scheduler: lc, access-log: off, max-endpoint-connections: 20}
`, `
apiVersion: v1
kind: Service
metadata:
  name: tcp-192-0-2-10-5432
  annotations: {sluice.io/scheduler: lc, sluice.io/access-log: "off", sluice.io/max-endpoint-connections: "20"}
spec: {externalIPs: [192.0.2.10], ports: [{port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: tcp-192-0-2-10-5432-1, labels: {kubernetes.io/service-name: tcp-192-0-2-10-5432}}
addressType: IPv4
ports: [{port: 5432}]
endpoints: [{addresses: [192.0.2.11]}, {addresses: [192.0.2.12]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: tcp-192-0-2-10-5432-2, labels: {kubernetes.io/service-name: tcp-192-0-2-10-5432}}
addressType: IPv4
ports: [{port: 5433}]
endpoints: [{addresses: [192.0.2.13]}]
`},
		"all addresses, both families": {`
name: dns
listen: udp://:53
endpoints:
- 192.0.2.11:5353
- "[2001:db8::11]:5353"
`, `
apiVersion: v1
kind: Service
metadata: {name: dns}
spec: {type: NodePort, ipFamilies: [IPv4, IPv6], ports: [{port: 53, protocol: UDP, nodePort: 53}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-1, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{port: 5353, protocol: UDP}]
endpoints: [{addresses: [192.0.2.11]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-2, labels: {kubernetes.io/service-name: dns}}
addressType: IPv6
ports: [{port: 5353, protocol: UDP}]
endpoints: [{addresses: ["2001:db8::11"]}]
`},
		"JSON that is no YAML": {"{\n\t\"listen\": \"tcp://:80\",\n\t\"endpoints\": [],\n" +
			"\t\"policies\": {\"scheduler\": \"lc\", \"max-endpoint-connections\": 3}\n}", `
apiVersion: v1
kind: Service
metadata:
  name: tcp-80
  annotations: {sluice.io/scheduler: lc, sluice.io/max-endpoint-connections: "3"}
spec: {type: NodePort, ipFamilies: [IPv4], ports: [{port: 80, nodePort: 80}]}
`},
		"IPv6 and SCTP, without endpoints": {`{"listen": "sctp://[2001:db8::10]:3868", "endpoints": []}`, `
apiVersion: v1
kind: Service
metadata: {name: sctp-2001-db8--10-3868}
spec: {externalIPs: ["2001:db8::10"], ports: [{port: 3868, protocol: SCTP}]}
`},
	} {
		short, want := parseText("a.yaml", test.short), parseText("a.yaml", test.objects)
		if len(short.problems)+len(short.warnings)+len(want.problems)+len(want.warnings) > 0 {
			t.Errorf("%s: %q, %q, %q", name, reported(short.problems), reported(short.warnings), reported(want.problems))
		}
		if diff := cmp.Diff(want.values, short.values, cmp.AllowUnexported(values{})); diff != "" {
			t.Errorf("%s (-objects +short form):\n%s", name, diff)
		}
	}
}
