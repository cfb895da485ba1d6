package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// parseText parses the text of a file of the given name.
func parseText(name, text string) *version {
	return (&file{path: name}).parse([]byte(text))
}

// titles lists the objects of a version as "line title".
func titles(v *version) []string {
	var out []string
	for _, o := range v.objects {
		out = append(out, fmt.Sprintf("%d %s", o.line(), o.title))
	}
	return out
}

// reported lists problems or warnings as "line: reason".
func reported(r reports) []string {
	var out []string
	for _, e := range r {
		out = append(out, fmt.Sprintf("%d: %s", e.Line, e.Reason))
	}
	return out
}

const serviceJSON = `{
  "apiVersion": "v1",
  "kind": "Service",
  "metadata": {"name": "web", "annotations": {"smile": "\ud83d\ude00"}},
  "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}
}
`

func TestFormats(t *testing.T) {
	tests := map[string]struct {
		file, text string
		want       []string
	}{
		"one document":                {"a.yaml", service("web", "10.96.0.1"), []string{"1 Service default/web"}},
		"empty":                       {"a.yaml", "", nil},
		"nothing, and then something": {"a.yaml", "---\n# nothing\n---\n" + service("a", "10.96.0.1"), []string{"4 Service default/a"}},
		"words of YAML 1.1": {"a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: \"yes\", resourceVersion: 'off'}\nspec: {clusterIP: None, publishNotReadyAddresses: Yes}\n",
			[]string{"1 Service default/yes"}},
		"numbers": {"a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: \"1\", creationTimestamp: 2026-01-02T03:04:05Z}\nspec: {clusterIP: None, ports: [{port: 0x50, targetPort: 0o120}]}\n",
			[]string{"1 Service default/1"}},
		"comments and nothing":  {"a.yaml", "# nothing\n---\n---\n# here\n---\nnull\n", nil},
		"empty JSON":            {"a.json", " \n", nil},
		"several documents":     {"a.yaml", service("a", "10.96.0.1") + "---\n" + slice("a", "10.0.0.1") + "--- # more\n" + service("b", "10.96.0.2"), []string{"1 Service default/a", "11 EndpointSlice default/a-1", "23 Service default/b"}},
		"document end marks":    {"a.yaml", service("a", "10.96.0.1") + "...\n---\n" + service("b", "10.96.0.2") + "...\n", []string{"1 Service default/a", "12 Service default/b"}},
		"directive and comment": {"a.yaml", "# c\n%YAML 1.1\n---\n" + service("a", "10.96.0.1"), []string{"4 Service default/a"}},
		"CRLF and BOM": {"a.yaml", "\ufeff" + strings.ReplaceAll(service("a", "10.96.0.1")+"---\n"+service("b", "10.96.0.2"), "\n", "\r\n"),
			[]string{"1 Service default/a", "11 Service default/b"}},
		"--- inside a text": {"a.yaml", strings.Replace(service("a", "10.96.0.1"), "  name: a\n", "  name: a\n  annotations:\n    text: |\n      x\n      ---\n      y\n", 1), []string{"1 Service default/a"}},
		"JSON":              {"a.json", serviceJSON, []string{"1 Service default/web"}},
		"JSON in sequence":  {"a.json", serviceJSON + strings.ReplaceAll(strings.ReplaceAll(serviceJSON, "web", "api"), "96.0.1", "96.0.2"), []string{"1 Service default/web", "7 Service default/api"}},
		"JSON in .yaml":     {"a.yaml", strings.Replace(serviceJSON, `\ud83d\ude00`, "", 1), []string{"1 Service default/web"}},
		"JSON by its look":  {"services", "\n" + serviceJSON, []string{"2 Service default/web"}},
		"YAML by its look":  {"services", service("web", "10.96.0.1"), []string{"1 Service default/web"}},
		"List": {"a.yaml", `apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- {apiVersion: v1, kind: Service, metadata: {name: a, namespace: x}, spec: {clusterIP: None}}
- apiVersion: v1
  kind: List
  items:
  - {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a, labels: {kubernetes.io/service-name: a}}, addressType: IPv6}
`, []string{"1 Service x/a", "1 EndpointSlice default/a"}},
		"typed lists, items without type": {"a.yaml", `apiVersion: v1
kind: ServiceList
items:
- metadata: {name: a}
  spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSliceList
items:
- metadata: {name: a, labels: {kubernetes.io/service-name: a}}
  addressType: IPv4
---
apiVersion: v1
kind: EndpointsList
items:
- metadata: {name: a}
---
apiVersion: v1
kind: EndpointsList
items: null
---
apiVersion: v1
kind: NodeList
items:
- metadata: {name: a}
`, []string{"1 Service default/a", "7 EndpointSlice default/a", "13 Endpoints default/a", "22 Node a"}},
		"Node": {"a.yaml", node("a", "10.1.0.0/24", "10.0.0.1"), []string{"1 Node a"}},
		"JSON list": {"a.json", `{"apiVersion":"v1","kind":"ServiceList","items":[
{"metadata":{"name":"a"},"spec":{"clusterIP":"None"}},
{"metadata":{"name":"b"},"spec":{"clusterIP":"None"}}]}`, []string{"1 Service default/a", "1 Service default/b"}},
		"anchors, aliases and merges": {"a.yaml", `apiVersion: v1
kind: Service
metadata: {name: a, labels: &labels {app: a, tier: x}}
spec:
  clusterIP: 10.96.0.1
  selector:
    <<: *labels
    tier: z
  ports:
  - &port {name: a, port: 1}
  - {<<: [*port, {port: 9, protocol: UDP}], name: b}
  - {<<: *port, port: 3, name: c}
`, []string{"1 Service default/a"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := parseText(test.file, test.text)
			empty := strings.HasPrefix(name, "empty") // which is said
			if len(v.problems) > 0 || len(v.warnings) > 0 != empty ||
				empty && !strings.HasSuffix(v.warnings[0].Error(), ":1: the file has no objects") {
				t.Errorf("problems %v, warnings %v", v.problems, v.warnings)
			}
			if diff := cmp.Diff(test.want, titles(v)); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if name == "anchors, aliases and merges" {
				spec := v.objects[0].value.(*corev1.Service).Spec
				if p := spec.Ports[1]; p.Name != "b" || p.Port != 1 || p.Protocol != "UDP" {
					t.Errorf("port of two merges: %+v", p)
				}
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	v := parseText("a.yaml", `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIPs: ["fd00::1", 10.96.0.1], type: NodePort, sessionAffinity: ClientIP, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}, {name: any}]
endpoints: [{addresses: [127.0.0.1]}]
---
apiVersion: v1
kind: Endpoints
metadata: {name: web}
subsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 8080}]}]
`)
	if len(v.problems) > 0 || len(v.objects) != 3 {
		t.Fatalf("problems %v, objects %v", v.problems, titles(v))
	}
	svc := v.objects[0].value.(*corev1.Service)
	seconds, cluster := int32(10_800), corev1.ServiceInternalTrafficPolicyCluster
	want := corev1.ServiceSpec{
		Type:                  corev1.ServiceTypeNodePort,
		ClusterIP:             "fd00::1",
		ClusterIPs:            []string{"fd00::1", "10.96.0.1"},
		SessionAffinity:       corev1.ServiceAffinityClientIP,
		SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}},
		InternalTrafficPolicy: &cluster,
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		Ports:                 []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}
	if diff := cmp.Diff(want, svc.Spec); diff != "" {
		t.Errorf("Service (-want +got):\n%s", diff)
	}
	if svc.Namespace != "default" {
		t.Errorf("namespace %q", svc.Namespace)
	}
	ports := v.objects[1].value.(*discoveryv1.EndpointSlice).Ports
	if *ports[0].Name != "" || *ports[0].Protocol != corev1.ProtocolTCP || ports[1].Port != nil {
		t.Errorf("ports of the slice: %v", ports)
	}
	if p := v.objects[2].value.(*corev1.Endpoints).Subsets[0].Ports[0].Protocol; p != corev1.ProtocolTCP {
		t.Errorf("protocol of the Endpoints: %q", p)
	}
}

// TestDefaultsOfExternalTraffic: what an API server fills in beside that, and
// for Nodes.
func TestDefaultsOfExternalTraffic(t *testing.T) {
	v := parseText("a.yaml", `apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {clusterIP: 10.96.0.1, type: LoadBalancer, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {ip: 203.0.113.2, ipMode: Proxy}, {hostname: web.example.com}]}}
---
apiVersion: v1
kind: Service
metadata: {name: external}
spec: {clusterIP: 10.96.0.2, externalIPs: [198.51.100.1], ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: internal}
spec: {clusterIP: 10.96.0.3, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere}
spec: {type: ExternalName, externalName: web.example.com, externalIPs: [198.51.100.1]}
---
apiVersion: v1
kind: Node
metadata: {name: old}
spec: {podCIDR: 10.1.0.0/24}
---
apiVersion: v1
kind: Node
metadata: {name: new}
spec: {podCIDRs: ["fd00::/64", 10.2.0.0/24]}
---
apiVersion: v1
kind: Node
metadata: {name: both}
spec: {podCIDR: 10.3.0.0/24, podCIDRs: [10.3.0.0/24]}
---
apiVersion: v1
kind: Node
metadata: {name: none}
`)
	if len(v.problems) > 0 || len(v.objects) != 8 {
		t.Fatalf("problems %v, objects %v", v.problems, titles(v))
	}
	modes := ""
	for _, ingress := range v.objects[0].value.(*corev1.Service).Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil {
			modes += "none "
		} else {
			modes += string(*ingress.IPMode) + " "
		}
	}
	if modes != "VIP Proxy none " {
		t.Errorf("modes of the ingress: %s", modes)
	}
	for i, want := range []corev1.ServiceExternalTrafficPolicy{"Cluster", "Cluster", "", ""} {
		if got := v.objects[i].value.(*corev1.Service).Spec.ExternalTrafficPolicy; got != want {
			t.Errorf("%s: externalTrafficPolicy %q, want %q", v.objects[i].title, got, want)
		}
	}
	for i, want := range []corev1.NodeSpec{
		{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24"}},
		{PodCIDR: "fd00::/64", PodCIDRs: []string{"fd00::/64", "10.2.0.0/24"}},
		{PodCIDR: "10.3.0.0/24", PodCIDRs: []string{"10.3.0.0/24"}},
		{},
	} {
		node := v.objects[4+i].value.(*corev1.Node)
		if diff := cmp.Diff(want, node.Spec); diff != "" || node.Namespace != "" {
			t.Errorf("%s: namespace %q, spec (-want +got):\n%s", v.objects[4+i].title, node.Namespace, diff)
		}
	}
}

func TestWarnings(t *testing.T) {
	v := parseText("a.yaml", `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {anything: goes, here: [1, two]}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: fn}
---
apiVersion: v1
kind: ConfigMapList
items: []
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  ports: [{port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, labels: {kubernetes.io/service-name: web}}
addressType: FQDN
endpoints: [{addresses: [web.example.com]}]
---
apiVersion: v1
kind: Service
metadata: {name: api}
spec:
  type: NodePort
  clusterIP: 10.96.0.1
  ports:
  - {name: a, port: 80, nodePort: 30080}
  - name: b
    port: 81
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {type: LoadBalancer, clusterIP: 10.96.0.2, ports: [{port: 80}]}
`)
	const only = "ignored: only v1 Service, v1 Endpoints, v1 Node, discovery.k8s.io/v1 EndpointSlice and networking.k8s.io/v1 ServiceCIDR are read, not "
	want := []string{
		"1: Deployment shop/web: " + only + "apps/v1 Deployment",
		"6: Service fn: " + only + "serving.knative.dev/v1 Service",
		"10: ConfigMapList: " + only + "v1 ConfigMapList",
		"17: Service default/web: spec.clusterIP is missing and is not allocated here, so the Service cannot be reached; write it, or externalIPs, or None if that is meant",
		"23: EndpointSlice default/web: ignored: addressType is FQDN, and only IP addresses can be served",
		"34: Service default/api: spec.ports[1].nodePort is missing and is not allocated here, so nodes do not serve this port; write a number",
	}
	if diff := cmp.Diff(want, reported(v.warnings)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if len(v.problems) > 0 {
		t.Errorf("problems: %v", v.problems)
	}
}

// TestHostileFiles feeds what is made to exhaust a parser; each must be refused
// with a reason. The bounds make these quick; without them the test would not
// end.
func TestHostileFiles(t *testing.T) {
	testbed.Sequential(t)
	var bomb strings.Builder
	bomb.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: x, managedFields: [{fieldsV1: {a: &a0 [x]")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&bomb, ", b%d: &a%d [*a%d, *a%d, *a%d]", i, i, i-1, i-1, i-1)
	}
	bomb.WriteString("}}]}\n")
	var merges strings.Builder
	merges.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: x, annotations: {a: &a0 {x: y}")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&merges, ", b%d: &a%d {<<: [*a%d, *a%d, *a%d]}", i, i, i-1, i-1, i-1)
	}
	merges.WriteString("}}\n")
	var documents strings.Builder
	for i := range maxDocuments + 1 {
		fmt.Fprintf(&documents, "---\n{apiVersion: v1, kind: K%d}\n", i)
	}
	tests := map[string]struct {
		file, text string
		want       string
	}{
		"nested merges":   {"a.yaml", merges.String(), "excessive aliasing"},
		"alias bomb":      {"a.yaml", bomb.String(), "aliases expand"},
		"list of aliases": {"a.yaml", "apiVersion: v1\nkind: List\nitems:\n- &a {apiVersion: v1, kind: Service, metadata: {name: x}, spec: {clusterIP: None, selector: {a: b, c: d}}}\n" + strings.Repeat("- *a\n", 50_000), "already defined"},
		"merge bomb":      {"a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: x, annotations: &m {a: " + strings.Repeat("x", 1<<12) + "}}\nspec: {ports: [" + strings.Repeat("{<<: *m},", 60_000) + "]}\n", "aliases expand"},
		"cycle":           {"a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: x, managedFields: [{fieldsV1: &a {b: *a}}]}\n", "aliases expand"},
		"cyclic merge":    {"a.yaml", "apiVersion: v1\nkind: Service\nmetadata: &a {<<: *a, name: x}\n", "contains itself"},
		"deep YAML":       {"a.yaml", strings.Repeat("[", 1<<20), "depth"},
		"deep JSON":       {"a.json", strings.Repeat("[", 1<<20), "depth"},
		"values":          {"a.yaml", "a: [" + strings.Repeat("1,", maxValues+1) + "]", "more than 4000000 values"},
		"documents":       {"a.yaml", documents.String(), "more than 100000 documents"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := parseText(test.file, test.text)
			for _, e := range v.problems {
				if strings.Contains(e.Reason, test.want) {
					return
				}
			}
			t.Errorf("%d problems, none with %q: %v", len(v.problems), test.want, v.problems[:min(3, len(v.problems))])
		})
	}
}

// TestQuantities: those of a Node are not read, since the library takes hours for
// some of them.
func TestQuantities(t *testing.T) {
	testbed.Sequential(t)
	for _, text := range []string{"1e-2000000000", strings.Repeat("1", 10<<20), "four"} {
		v := parseText("a.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: x}\nstatus: {capacity: {cpu: \""+text+"\"}, allocatable: {cpu: \""+text+"\"}}\n")
		if len(v.problems) > 0 || len(v.objects) != 1 {
			t.Errorf("%.20s: problems %v", text, v.problems)
		}
	}
}

func TestReportsAreBounded(t *testing.T) {
	testbed.Sequential(t)
	var text strings.Builder
	for i := range 3 * maxReports {
		fmt.Fprintf(&text, "---\nnot an object %d\n", i)
	}
	v := parseText("a.yaml", text.String())
	if len(v.problems) != maxReports+1 {
		t.Fatalf("%d problems", len(v.problems))
	}
	if last := v.problems[maxReports]; last.Line != 2*(maxReports+1) || !strings.Contains(last.Reason, "there is more") {
		t.Errorf("the last one: %v", last)
	}
}

// TestChunks holds that cutting loses no byte and no line.
func TestChunks(t *testing.T) {
	for _, text := range []string{
		"", "\n", "---", "---\n", "a\n---\nb", "a\n---b\nc\n", "# x\n\n---\na\n---\n---\nb\n--- c\n----\n", "\r\n---\r\na: b\r\n---\t\r\n",
		"a: |\n  ---\n---\nb\n---",
	} {
		var all strings.Builder
		for c := range yamlChunks([]byte(text)) {
			if c.base != strings.Count(all.String(), "\n") {
				t.Errorf("%q: chunk %q begins after %d lines", text, c.text, c.base)
			}
			all.Write(c.text)
		}
		if all.String() != text {
			t.Errorf("%q was cut into %q", text, all.String())
		}
	}
}
