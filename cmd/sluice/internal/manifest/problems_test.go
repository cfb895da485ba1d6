package manifest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestProblems holds the line and the wording of what users will meet.
func TestProblems(t *testing.T) {
	const head = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
	const sliceHead = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\n"
	const endpointsHead = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\n"
	const ok = "spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n"
	tests := map[string]struct {
		text string
		want []string
	}{
		"indentation":     {"a:\n  b: 1\n c: 2\n", []string{"3: not valid YAML: did not find expected key; check the indentation, quotes and brackets here"}},
		"tab":             {"---\n# c\n---\na:\n\tb: 1\n", []string{"5: not valid YAML: found character that cannot start any token; check the indentation, quotes and brackets here"}},
		"open bracket":    {"a: 1\nb: 2\nc: [1, 2\n", []string{"3: not valid YAML: did not find expected ',' or ']'; check the indentation, quotes and brackets here"}},
		"wrong bracket":   {"a: 1\nc: [1,\n2,\n3}\nd: 4\n", []string{"4: not valid YAML: did not find expected ',' or ']'; check the indentation, quotes and brackets here"}},
		"open quote":      {"a: 1\nb: \"x\nc: y\n", []string{"2: not valid YAML: found unexpected end of stream; check the indentation, quotes and brackets here"}},
		"unknown anchor":  {"a: 1\nb:\n- *x\nc: 3\n", []string{"3: not valid YAML: unknown anchor 'x' referenced; check the indentation, quotes and brackets here"}},
		"not an object":   {"---\n- a\n---\ntext\n", []string{"2: a list stands where an object should; a manifest is a mapping with apiVersion, kind and metadata", `4: "text" stands where an object should; a manifest is a mapping with apiVersion, kind and metadata`}},
		"no kind":         {"---\nmetadata: {name: web}\n", []string{"2: the object has no apiVersion or no kind; write both"}},
		"old slice":       {strings.Replace(sliceHead, "/v1", "/v1beta1", 1), []string{"1: EndpointSlice web-1: apiVersion discovery.k8s.io/v1beta1 is no longer served; write discovery.k8s.io/v1"}},
		"list of nothing": {"apiVersion: v1\nkind: List\nitems:\n- null\n- text\nitem: 1\n", []string{"6: List: item is not a field; correct its spelling or its indentation, or remove it", "4: \"null\" stands where an object should; a manifest is a mapping with apiVersion, kind and metadata", "5: \"text\" stands where an object should; a manifest is a mapping with apiVersion, kind and metadata"}},
		"items":           {"apiVersion: v1\nkind: List\nitems: {}\n", []string{"3: List: items is a mapping; it must be a list of objects"}},

		"unknown and misspelt fields": {head + "spec:\n  clusterip: 10.96.0.1\n  ports:\n  - port: 80\n    prot: TCP\n  clusterIP: 10.96.0.1\n", []string{
			`5: Service web: spec.clusterip is not a field; write "clusterIP"`,
			"8: Service web: spec.ports[0].prot is not a field; correct its spelling or its indentation, or remove it",
		}},
		"field twice": {head + "spec:\n  clusterIP: 10.96.0.1\n  ports: []\n  clusterIP: 10.96.0.1\n", []string{"7: Service web: spec.clusterIP is set twice; keep one of the two"}},
		"types": {head + "spec:\n  clusterIP: 1\n  ports:\n  - port: \"80\"\n    name: 8\n    targetPort: true\n  - {port: 80.5}\n  - {port: 99999999999}\n  - text\n  publishNotReadyAddresses: maybe\n  selector: []\n  externalIPs: 10.0.0.1\n", []string{
			"5: Service web: spec.clusterIP is 1; it must be text, so put it in quotes if it is meant",
			`7: Service web: spec.ports[0].port is "80"; it must be a whole number, without quotes`,
			"8: Service web: spec.ports[0].name is 8; it must be text, so put it in quotes if it is meant",
			"9: Service web: spec.ports[0].targetPort is true; it must be a port number or the name of a port",
			"10: Service web: spec.ports[1].port is 80.5; it must be a whole number, without quotes",
			"11: Service web: spec.ports[2].port is 99999999999, which is out of range; it must be a whole number of 32 bits",
			`12: Service web: spec.ports[3] is "text"; it must be a mapping of fields to values`,
			`13: Service web: spec.publishNotReadyAddresses is "maybe"; it must be true or false`,
			"14: Service web: spec.selector is a list; it must be a mapping of names to values",
			`15: Service web: spec.externalIPs is "10.0.0.1"; it must be a list`,
		}},
		"time": {"apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  creationTimestamp: yesterday\n  1: x\n" + ok, []string{
			"6: Service web: metadata has 1 for a name; a name must be text, so put it in quotes if it is meant",
			`5: Service web: metadata.creationTimestamp is "yesterday"; it must be a time such as "2006-01-02T15:04:05Z"`,
		}},

		"names": {"apiVersion: v1\nkind: Service\nmetadata:\n  namespace: A_B\n" + ok, []string{
			`4: Service: metadata.namespace is "A_B", which is no DNS label; use lower-case letters, digits and '-', a letter or digit at each end, at most 63 characters`,
			"3: Service: metadata.name is missing; give the object a name",
		}},
		"dotted name of a Service": {"apiVersion: v1\nkind: Service\nmetadata: {name: a.b}\n" + ok, []string{`3: Service default/a.b: metadata.name is "a.b", which is no DNS label; use lower-case letters, digits and '-', a letter or digit at each end, at most 63 characters`}},
		"name of a slice":          {strings.Replace(sliceHead, "web-1", "web..1", 1) + "addressType: IPv4\n", []string{`3: EndpointSlice default/web..1: metadata.name is "web..1", which is no DNS name; use DNS labels with dots between them, at most 253 characters`}},

		"no ports": {head + "spec: {clusterIP: 10.96.0.1}\n", []string{"4: Service default/web: spec.ports is empty; a Service needs at least one port"}},
		"ports": {head + "spec:\n  clusterIP: 10.96.0.1\n  ports:\n  - {name: a, port: 0}\n  - {name: b, port: 65536}\n  - {name: B, port: 80, protocol: tcp}\n  - port: 81\n    protocol: UDP\n  - {name: a, port: 81, protocol: UDP}\n  - {name: c, port: 82, targetPort: 70000, nodePort: -1}\n  - {name: d, port: 83, targetPort: \"80\"}\n", []string{
			"7: Service default/web: spec.ports[0].port is 0; a port is a number from 1 to 65535",
			"8: Service default/web: spec.ports[1].port is 65536; a port is a number from 1 to 65535",
			`9: Service default/web: spec.ports[2].name is "B", which is no DNS label; use lower-case letters, digits and '-', a letter or digit at each end, at most 63 characters`,
			`9: Service default/web: spec.ports[2].protocol is "tcp"; write TCP, UDP or SCTP`,
			"10: Service default/web: spec.ports[3].name is missing; a port needs a name where there are several",
			`12: Service default/web: spec.ports[4].name is "a", as that of another port; give each port a name of its own`,
			"12: Service default/web: spec.ports[4].port is 81/UDP, as that of another port of the Service; change one of the two",
			"13: Service default/web: spec.ports[5].targetPort is 70000; a port is a number from 1 to 65535",
			"13: Service default/web: spec.ports[5].nodePort is -1; a port is a number from 1 to 65535",
			`14: Service default/web: spec.ports[6].targetPort is "80"; write a port number without quotes, or the name of a port (at most 15 lower-case letters, digits and '-')`,
		}},
		"words": {head + "spec:\n  type: Cluster\n  clusterIP: 10.96.0.1\n  ports: [{port: 80}]\n  internalTrafficPolicy: Node\n  externalTrafficPolicy: Node\n  sessionAffinity: Cookie\n", []string{
			`5: Service default/web: spec.type is "Cluster"; write ClusterIP, NodePort, LoadBalancer or ExternalName`,
			`8: Service default/web: spec.internalTrafficPolicy is "Node"; write Cluster or Local`,
			`9: Service default/web: spec.externalTrafficPolicy is "Node"; write Cluster or Local`,
			`10: Service default/web: spec.sessionAffinity is "Cookie"; write None or ClientIP`,
		}},
		"affinity timeout":      {head + "spec:\n  clusterIP: None\n  sessionAffinity: ClientIP\n  sessionAffinityConfig:\n    clientIP:\n      timeoutSeconds: 86401\n", []string{"9: Service default/web: spec.sessionAffinityConfig.clientIP.timeoutSeconds is 86401; write 1 to 86400 seconds"}},
		"affinity without":      {head + "spec:\n  clusterIP: None\n  sessionAffinityConfig: {}\n", []string{"6: Service default/web: spec.sessionAffinityConfig is set, but spec.sessionAffinity is not ClientIP; set that, or remove this"}},
		"bad cluster IP":        {head + "spec:\n  ports: [{port: 80}]\n  clusterIP: 10.96.01.1\n", []string{`6: Service default/web: spec.clusterIP is "10.96.01.1", which is no IP address; write one like 10.0.0.1 (no leading zeros) or fd00::1`}},
		"cluster IP of no host": {head + "spec:\n  ports: [{port: 80}]\n  clusterIP: 0.0.0.0\n", []string{"6: Service default/web: spec.clusterIP is 0.0.0.0, which is no address of a single host; write a unicast address"}},
		"mapped cluster IP":     {head + "spec:\n  ports: [{port: 80}]\n  clusterIPs:\n  - ::ffff:10.0.0.1\n", []string{`7: Service default/web: spec.clusterIPs[0] is "::ffff:10.0.0.1"; write it as IPv4, 10.0.0.1`}},
		"cluster IPs disagree":  {head + "spec:\n  ports: [{port: 80}]\n  clusterIP: 10.0.0.1\n  clusterIPs:\n  - 10.0.0.2\n", []string{`8: Service default/web: spec.clusterIPs[0] is "10.0.0.2", but spec.clusterIP is "10.0.0.1"; write the same in both`}},
		"one family twice":      {head + "spec:\n  ports: [{port: 80}]\n  clusterIPs:\n  - 10.0.0.2\n  - 10.0.0.3\n", []string{"8: Service default/web: spec.clusterIPs[1] is 10.0.0.3, the second IPv4 address; write at most one of each family"}},
		"three cluster IPs":     {head + "spec:\n  ports: [{port: 80}]\n  clusterIPs: [a, b, c]\n", []string{"6: Service default/web: spec.clusterIPs has 3 addresses; write at most one of each family"}},
		"None and an address":   {head + "spec:\n  clusterIPs: [10.0.0.1, None]\n", []string{"5: Service default/web: spec.clusterIPs has None beside an address; write either"}},
		"None of a NodePort":    {head + "spec:\n  type: NodePort\n  clusterIPs:\n  - None\n", []string{"7: Service default/web: spec.clusterIPs[0] is None, but the type is NodePort; write an address, or make the type ClusterIP"}},
		"None of a balancer":    {head + "spec:\n  type: LoadBalancer\n  clusterIP: None\n", []string{"6: Service default/web: spec.clusterIP is None, but the type is LoadBalancer; write an address, or make the type ClusterIP"}},
		"families":              {head + "spec:\n  ports: [{port: 80}]\n  clusterIP: 10.0.0.1\n  ipFamilies: [IPv6, IP4]\n", []string{"7: Service default/web: spec.ipFamilies[0] is IPv6, but the cluster IP in that place is not; make spec.ipFamilies and spec.clusterIPs agree", `7: Service default/web: spec.ipFamilies[1] is "IP4"; write IPv4 or IPv6`}},
		"ExternalName":          {head + "spec: {type: ExternalName, externalName: a.example, clusterIP: 10.0.0.1}\n", []string{"4: Service default/web: spec.clusterIP is set, but the type is ExternalName; remove one of the two"}},

		"slice without label": {"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-1\naddressType: IPv4\n", []string{"3: EndpointSlice default/web-1: metadata.labels.kubernetes.io/service-name is missing; set this label to the name of the Service"}},
		"address types":       {sliceHead + "endpoints: []\n---\n" + sliceHead[:len(sliceHead)-1] + "\naddressType: ipv4\n", []string{"1: EndpointSlice default/web-1: addressType is missing; write IPv4 or IPv6", `9: EndpointSlice default/web-1: addressType is "ipv4"; write IPv4 or IPv6`}},
		"slice": {sliceHead + "addressType: IPv4\nports:\n- {name: a, port: 0}\n- {name: a, protocol: ICMP}\nendpoints:\n- addresses: [fd00::1]\n- addresses:\n  - 169.254.0.1\n  - 224.0.0.1\n- conditions: {}\n- addresses: [web]\n", []string{
			"6: EndpointSlice default/web-1: ports[0].port is 0; a port is a number from 1 to 65535",
			`7: EndpointSlice default/web-1: ports[1].name is "a", as that of another port; give each port a name of its own`,
			`7: EndpointSlice default/web-1: ports[1].protocol is "ICMP"; write TCP, UDP or SCTP`,
			"9: EndpointSlice default/web-1: endpoints[0].addresses[0] is fd00::1, which is not IPv4; correct the address or its family",
			"11: EndpointSlice default/web-1: endpoints[1].addresses[0] is 169.254.0.1, which is link-local and cannot be dialled; write another address of the endpoint",
			"12: EndpointSlice default/web-1: endpoints[1].addresses[1] is 224.0.0.1, which is no address of a single host; write a unicast address",
			"13: EndpointSlice default/web-1: endpoints[2].addresses is empty; write the endpoint's address",
			`14: EndpointSlice default/web-1: endpoints[3].addresses[0] is "web", which is no IP address; write one like 10.0.0.1 (no leading zeros) or fd00::1`,
		}},
		"Endpoints": {endpointsHead + "subsets:\n- ports: [{port: 80}]\n- addresses:\n  - {ip: 10.0.0}\n  notReadyAddresses:\n  - ip: fe80::1%eth0\n  ports:\n  - {port: 80}\n  - {name: a, port: -1}\n", []string{
			"5: Endpoints default/web: subsets[0] has neither addresses nor notReadyAddresses; write one, or remove the subset",
			`7: Endpoints default/web: subsets[1].addresses[0].ip is "10.0.0", which is no IP address; write one like 10.0.0.1 (no leading zeros) or fd00::1`,
			`9: Endpoints default/web: subsets[1].notReadyAddresses[0].ip is "fe80::1%eth0"; remove the zone`,
			"11: Endpoints default/web: subsets[1].ports[0].name is missing; a port needs a name where there are several",
			"12: Endpoints default/web: subsets[1].ports[1].port is -1; a port is a number from 1 to 65535",
		}},

		"object twice":    {service("web", "10.96.0.1") + "---\n" + service("web", "10.96.0.2"), []string{"11: Service default/web is already defined at a.yaml:1; remove one of the two"}},
		"address twice":   {service("web", "10.96.0.1") + "---\n" + service("api", "10.96.0.1"), []string{"16: Service default/api: TCP 10.96.0.1:80 already belongs to Service default/web at a.yaml:6; give one of the two another cluster IP or port"}},
		"node port twice": {nodePort("web", "10.96.0.1", 30080) + "---\n" + nodePort("api", "10.96.0.2", 30080), []string{"23: Service default/api: TCP node port 30080 already belongs to Service default/web at a.yaml:11; give one of the two another"}},
		"same text twice": {"---\n" + service("web", "10.96.0.1") + "---\n" + service("web", "10.96.0.1"), []string{
			"12: Service default/web is already defined at a.yaml:2; remove one of the two",
			"17: Service default/web: TCP 10.96.0.1:80 already belongs to Service default/web at a.yaml:7; give one of the two another cluster IP or port",
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, reported(parseText("a.yaml", test.text).problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProblemsOfJSON(t *testing.T) {
	tests := map[string]struct {
		text string
		want []string
	}{
		"syntax":        {"{\n  \"a\": 1,\n  \"b\": x\n}\n", []string{"3: not valid JSON: invalid character 'x' looking for beginning of value; check the commas, quotes and brackets here"}},
		"comma":         {"{\n  \"a\": 1\n  \"b\": 2\n}\n", []string{"3: not valid JSON: invalid character '\"' after object key:value pair; check the commas, quotes and brackets here"}},
		"trailing":      {"{\n  \"a\": [1,\n  ]}\n", []string{"3: not valid JSON: invalid character ']' looking for beginning of value; check the commas, quotes and brackets here"}},
		"cut off":       {"{\n  \"a\": [1,\n", []string{"3: not valid JSON: it ends in the middle of a value; check the commas, quotes and brackets here"}},
		"behind":        {serviceJSON + "x", []string{"7: not valid JSON: invalid character 'x' looking for beginning of value; check the commas, quotes and brackets here"}},
		"repeated key":  {"{\"apiVersion\": \"v1\", \"kind\": \"Service\",\n\"kind\": \"Service\"}", []string{"2: Service: kind is set twice; keep one of the two"}},
		"unknown field": {strings.Replace(serviceJSON, `"clusterIP"`, "\n\"clusterIp\"", 1), []string{`6: Service web: spec.clusterIp is not a field; write "clusterIP"`}},
		"float":         {strings.Replace(serviceJSON, "80", "8e1", 1), []string{"5: Service web: spec.ports[0].port is 8e1; it must be a whole number, without quotes"}},
		"list, a later item": {"{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n" + serviceJSON + ",\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\n\"metadata\":{\"name\":\"api\"},\n\"spec\":{\"clusterIP\":\"10.96.0.2\",\"ports\":[\n{\"port\":-1}]}}]}",
			[]string{
				"12: Service default/api: spec.ports[0].port is -1; a port is a number from 1 to 65535",
			}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, reported(parseText("a.json", test.text).problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
