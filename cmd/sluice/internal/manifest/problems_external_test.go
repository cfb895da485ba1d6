package manifest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestProblemsOfExternalTraffic holds what is said of the fields by which clients
// outside the cluster reach a Service; all are of the same one.
func TestProblemsOfExternalTraffic(t *testing.T) {
	const head = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.96.0.1\n"
	const one = "  ports: [{port: 80}]\n"
	const balancer = "  type: LoadBalancer\n" + one
	const status = balancer + "status:\n  loadBalancer:\n    ingress:\n"
	tests := map[string]struct {
		text string
		want []string
	}{
		"external IPs": {one + "  externalIPs:\n  - 198.51.100.1\n  - web\n  - 0.0.0.0\n  - 127.0.0.2\n  - 169.254.1.1\n  - 224.0.0.1\n  - \"::\"\n  - ::1\n  - fe80::1\n  - ff02::1\n  - ::ffff:198.51.100.1\n  - 198.51.100.01\n  - 2001:db8::1\n", []string{
			`9: spec.externalIPs[1] is "web", which is no IP address; write one like 10.0.0.1 (no leading zeros) or fd00::1`,
			"10: spec.externalIPs[2] is 0.0.0.0, which is no address of a single host; write a unicast address",
			"11: spec.externalIPs[3] is 127.0.0.2, which other hosts cannot send to; write an address that is routed to the node",
			"12: spec.externalIPs[4] is 169.254.1.1, which other hosts cannot send to; write an address that is routed to the node",
			"13: spec.externalIPs[5] is 224.0.0.1, which is no address of a single host; write a unicast address",
			"14: spec.externalIPs[6] is ::, which is no address of a single host; write a unicast address",
			"15: spec.externalIPs[7] is ::1, which other hosts cannot send to; write an address that is routed to the node",
			"16: spec.externalIPs[8] is fe80::1, which other hosts cannot send to; write an address that is routed to the node",
			"17: spec.externalIPs[9] is ff02::1, which is no address of a single host; write a unicast address",
			`18: spec.externalIPs[10] is "::ffff:198.51.100.1"; write it as IPv4, 198.51.100.1`,
			`19: spec.externalIPs[11] is "198.51.100.01", which is no IP address; write one like 10.0.0.1 (no leading zeros) or fd00::1`,
		}},

		"node ports": {"  type: NodePort\n  ports:\n  - {name: a, port: 1, nodePort: 30001}\n  - name: b\n    port: 2\n    nodePort: 65536\n  - {name: c, port: 3, nodePort: -1}\n  - {name: d, port: 4, nodePort: 30001, protocol: UDP}\n  - {name: e, port: 5, nodePort: 30001}\n  - {name: f, port: 6, nodePort: 1}\n  - {name: g, port: 7, nodePort: 65535}\n", []string{
			"11: spec.ports[1].nodePort is 65536; a port is a number from 1 to 65535",
			"12: spec.ports[2].nodePort is -1; a port is a number from 1 to 65535",
			"14: spec.ports[4].nodePort is 30001/TCP, as that of another port of the Service; change one of the two",
		}},
		"node port of a ClusterIP": {"  ports:\n  - port: 80\n    nodePort: 30080\n", []string{"8: spec.ports[0].nodePort is set, but the type is ClusterIP; remove it, or make the type NodePort or LoadBalancer"}},
		"node port of a bad type":  {"  type: Nodeport\n  ports: [{port: 80, nodePort: 30080}]\n", []string{`6: spec.type is "Nodeport"; write ClusterIP, NodePort, LoadBalancer or ExternalName`}},

		"node port of an ExternalName": {"  type: ExternalName\n  externalName: web.example.com\n  ports: [{port: 80, nodePort: 30080}]\n", []string{
			"8: spec.ports[0].nodePort is set, but the type is ExternalName; remove it, or make the type NodePort or LoadBalancer",
			"5: spec.clusterIP is set, but the type is ExternalName; remove one of the two",
		}},

		"external policy of external IPs": {one + "  externalTrafficPolicy: Local\n  externalIPs: [198.51.100.1]\n", nil},
		"external policy of a ClusterIP":  {one + "  externalTrafficPolicy: Local\n", []string{"7: spec.externalTrafficPolicy is set, but the type is ClusterIP; remove it, or make the type NodePort or LoadBalancer"}},
		"traffic distribution":            {one + "  trafficDistribution: PreferSameNode\n", nil},
		"other traffic distribution":      {one + "  trafficDistribution: PreferLocal\n", []string{`7: spec.trafficDistribution is "PreferLocal"; write PreferSameZone, PreferSameNode or PreferClose`}},

		"health check port of a ClusterIP":          {one + "  healthCheckNodePort: 32000\n", []string{"7: spec.healthCheckNodePort is set, but the type is ClusterIP; remove it, or make the type LoadBalancer"}},
		"health check port of a NodePort":           {"  type: NodePort\n  ports: [{port: 80, nodePort: 30080}]\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 32000\n", []string{"9: spec.healthCheckNodePort is set, but the type is NodePort; remove it, or make the type LoadBalancer"}},
		"health check port of the policy Cluster":   {balancer + "  healthCheckNodePort: 32000\n", []string{"8: spec.healthCheckNodePort is set, but spec.externalTrafficPolicy is Cluster; remove it, or make the policy Local"}},
		"health check port out of range":            {balancer + "  externalTrafficPolicy: Local\n  healthCheckNodePort: 65536\n", []string{"9: spec.healthCheckNodePort is 65536; a port is a number from 1 to 65535"}},
		"health check port negative":                {balancer + "  externalTrafficPolicy: Local\n  healthCheckNodePort: -1\n", []string{"9: spec.healthCheckNodePort is -1; a port is a number from 1 to 65535"}},
		"health check port that is also a UDP port": {"  type: LoadBalancer\n  externalTrafficPolicy: Local\n  ports: [{port: 80, nodePort: 30080, protocol: UDP}]\n  healthCheckNodePort: 30080\n", nil},
		"health check port that is also a TCP port": {"  type: LoadBalancer\n  externalTrafficPolicy: Local\n  ports: [{port: 80, nodePort: 30080}]\n  healthCheckNodePort: 30080\n", []string{"9: spec.healthCheckNodePort is 30080, as the node port of a TCP port of the Service; change one of the two"}},

		"source ranges": {balancer + "  loadBalancerSourceRanges:\n  - \" 10.0.0.0/8 \"\n  - 10.0.0.1\n  - 10.0.0.1/8\n  - 10.0.0.0/33\n  - 010.0.0.0/8\n  - ::ffff:10.0.0.0/104\n  - fd00::1/64\n  - \"\"\n  - 0.0.0.0/0\n  - ::/0\n", []string{
			`10: spec.loadBalancerSourceRanges[1] is "10.0.0.1", which is no range of IP addresses; write one like 10.0.0.0/8 (no leading zeros) or fd00::/8`,
			`11: spec.loadBalancerSourceRanges[2] is "10.0.0.1/8", which has bits set beyond its length; write 10.0.0.0/8`,
			`12: spec.loadBalancerSourceRanges[3] is "10.0.0.0/33", which is no range of IP addresses; write one like 10.0.0.0/8 (no leading zeros) or fd00::/8`,
			`13: spec.loadBalancerSourceRanges[4] is "010.0.0.0/8", which is no range of IP addresses; write one like 10.0.0.0/8 (no leading zeros) or fd00::/8`,
			`14: spec.loadBalancerSourceRanges[5] is "::ffff:10.0.0.0/104"; write it as an IPv4 range`,
			`15: spec.loadBalancerSourceRanges[6] is "fd00::1/64", which has bits set beyond its length; write fd00::/64`,
			`16: spec.loadBalancerSourceRanges[7] is "", which is no range of IP addresses; write one like 10.0.0.0/8 (no leading zeros) or fd00::/8`,
		}},
		"source ranges of a ClusterIP": {one + "  loadBalancerSourceRanges: [10.0.0.0]\n", []string{"7: spec.loadBalancerSourceRanges is set, but the type is ClusterIP; remove it, or make the type LoadBalancer"}},

		"ingress": {status + "    - ip: 203.0.113.1\n    - {hostname: web.example.com, ports: [{port: 80, protocol: TCP}]}\n    - {ip: 203.0.113.2, ipMode: VIP}\n    - {ip: 203.0.113.3, ipMode: Proxy}\n    - ip: 203.0.113.256\n    - {ip: 203.0.113.4, ipMode: proxy}\n    - {hostname: web.example.com, ipMode: VIP}\n    - hostname: 203.0.113.5\n    - hostname: web_1\n    - ip: 0.0.0.0\n    - {}\n", []string{
			`15: status.loadBalancer.ingress[4].ip is "203.0.113.256", which is no IP address; write one like 10.0.0.1 (no leading zeros) or fd00::1`,
			`16: status.loadBalancer.ingress[5].ipMode is "proxy"; write VIP or Proxy`,
			"17: status.loadBalancer.ingress[6].ipMode is set, but there is no ip; write one, or remove this",
			"18: status.loadBalancer.ingress[7].hostname is the IP address 203.0.113.5; write it as ip",
			`19: status.loadBalancer.ingress[8].hostname is "web_1", which is no DNS name; use DNS labels with dots between them, at most 253 characters`,
			"20: status.loadBalancer.ingress[9].ip is 0.0.0.0, which is no address of a single host; write a unicast address",
		}},
		"ingress of a NodePort": {"  type: NodePort\n  ports: [{port: 80, nodePort: 30080}]\nstatus: {loadBalancer: {ingress: [{ip: nothing}]}}\n", []string{"8: status.loadBalancer.ingress is set, but the type is NodePort; remove it, or make the type LoadBalancer"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := reported(parseText("a.yaml", head+test.text).problems)
			for i := range got {
				got[i] = strings.Replace(got[i], "Service default/web: ", "", 1)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestProblemsOfNodes does so for Nodes.
func TestProblemsOfNodes(t *testing.T) {
	const head = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n"
	tests := map[string]struct {
		text string
		want []string
	}{
		"no name":   {"apiVersion: v1\nkind: Node\nmetadata: {}\n", []string{"3: Node: metadata.name is missing; give the object a name"}},
		"name":      {"apiVersion: v1\nkind: Node\nmetadata: {name: Node_1}\n", []string{`3: Node Node_1: metadata.name is "Node_1", which is no DNS name; use DNS labels with dots between them, at most 253 characters`}},
		"namespace": {"apiVersion: v1\nkind: Node\nmetadata:\n  name: n1.example.com\n  namespace: default\n", []string{`5: Node default/n1.example.com: metadata.namespace is "default", but a Node is in no namespace; remove it`}},

		"pod CIDR":              {head + "spec:\n  podCIDR: 10.1.0.0\n", []string{`5: Node n1: spec.podCIDR is "10.1.0.0", which is no range of IP addresses; write one like 10.0.0.0/8 (no leading zeros) or fd00::/8`}},
		"pod CIDRs":             {head + "spec:\n  podCIDRs:\n  - 10.1.0.0/255.255.0.0\n  - 10.1.0.1/24\n", []string{`6: Node n1: spec.podCIDRs[0] is "10.1.0.0/255.255.0.0", which is no range of IP addresses; write one like 10.0.0.0/8 (no leading zeros) or fd00::/8`, `7: Node n1: spec.podCIDRs[1] is "10.1.0.1/24", which has bits set beyond its length; write 10.1.0.0/24`}},
		"pod CIDRs of a family": {head + "spec:\n  podCIDRs:\n  - fd00:1::/64\n  - fd00:2::/64\n", []string{"7: Node n1: spec.podCIDRs[1] is fd00:2::/64, the second IPv6 range; write at most one of each family"}},
		"three pod CIDRs":       {head + "spec:\n  podCIDRs: [a, b, c]\n", []string{"5: Node n1: spec.podCIDRs has 3 ranges; write at most one of each family"}},
		"pod CIDRs disagree":    {head + "spec:\n  podCIDR: 10.1.0.0/24\n  podCIDRs:\n  - 10.2.0.0/24\n", []string{`7: Node n1: spec.podCIDRs[0] is "10.2.0.0/24", but spec.podCIDR is "10.1.0.0/24"; write the same in both`}},

		"addresses": {head + "status:\n  addresses:\n  - {type: Hostname, address: n1}\n  - {type: InternalDNS, address: \"\"}\n  - {type: Other, address: x}\n  - {type: InternalIP, address: n1}\n  - type: ExternalIP\n    address: 0.0.0.0\n  - type: ExternalIP\n", []string{
			`9: Node n1: status.addresses[3].address is "n1", which is no IP address; write one like 10.0.0.1 (no leading zeros) or fd00::1`,
			"11: Node n1: status.addresses[4].address is 0.0.0.0, which is no address of a single host; write a unicast address",
			`12: Node n1: status.addresses[5].address is "", which is no IP address; write one like 10.0.0.1 (no leading zeros) or fd00::1`,
		}},
		"quantities": {head + "status:\n  capacity:\n    a: 4\n    b: 500m\n    c: \"1.5Gi\"\n    d: 2e3\n    cpu: four\n    pods: true\n", []string{
			`10: Node n1: status.capacity.cpu is "four"; it must be a quantity such as 4, "500m" or "16Gi"`,
			`11: Node n1: status.capacity.pods is true; it must be a quantity such as 4, "500m" or "16Gi"`,
		}},

		"twice": {node("n1", "10.1.0.0/24", "10.0.0.1") + "---\n" + node("n1", "10.2.0.0/24", "10.0.0.2"), []string{"12: Node n1 is already defined at a.yaml:1; remove one of the two"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, reported(parseText("a.yaml", test.text).problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestProblemsOfPlaces does so for the Nodes and zones that endpoints name.
func TestProblemsOfPlaces(t *testing.T) {
	v := parseText("a.yaml", `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints:
- addresses: [10.0.0.1]
  nodeName: n1.example.com
  zone: here
  hints: {forZones: [{name: here}], forNodes: [{name: n1}]}
- addresses: [10.0.0.2]
  nodeName: ""
  hints:
    forZones:
    - name: here
    - name: ""
    - {}
    - name: h/ere
    forNodes:
    - {name: n1}
    - {name: ""}
    - name: N1
- {addresses: [10.0.0.3], hints: {}}
---
apiVersion: v1
kind: Endpoints
metadata: {name: web}
subsets:
- addresses: [{ip: 10.0.0.1, nodeName: n1}]
  notReadyAddresses:
  - {ip: 10.0.0.2, nodeName: n_1}
- addresses:
  - ip: 10.0.0.3
    nodeName: ""
`)
	const zone = "which is no name of a zone; write what Nodes have as the label topology.kubernetes.io/zone"
	const node = "which is no name of a Node; use DNS labels with dots between them, at most 253 characters"
	want := []string{
		`11: EndpointSlice default/web-1: endpoints[1].nodeName is "", ` + node,
		`15: EndpointSlice default/web-1: endpoints[1].hints.forZones[1].name is "", ` + zone,
		`16: EndpointSlice default/web-1: endpoints[1].hints.forZones[2].name is "", ` + zone,
		`17: EndpointSlice default/web-1: endpoints[1].hints.forZones[3].name is "h/ere", ` + zone,
		`20: EndpointSlice default/web-1: endpoints[1].hints.forNodes[1].name is "", ` + node,
		`21: EndpointSlice default/web-1: endpoints[1].hints.forNodes[2].name is "N1", ` + node,
		`30: Endpoints default/web: subsets[0].notReadyAddresses[0].nodeName is "n_1", ` + node,
		`33: Endpoints default/web: subsets[1].addresses[0].nodeName is "", ` + node,
	}
	if diff := cmp.Diff(want, reported(v.problems)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}
