package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/kube"
)

// FuzzLoad loads arbitrary files: no panic, no hang, each problem on a line of
// the file, and the same answer again from the documents that are remembered.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		service("web", "10.96.0.1") + "---\n" + slice("web", "10.0.0.1"),
		"kind: List\napiVersion: v1\nitems: [&a {kind: Service, apiVersion: v1}, *a]\n",
		"a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
		nodePort("web", "10.96.0.1", 30080) + "---\n" + node("n", "10.1.0.0/24", "10.0.0.1"),
		"%YAML 1.2\n---\nkind: Endpoints\napiVersion: v1\nmetadata: {<<: {name: x}}\nsubsets: [{addresses: [{ip: 10.0.0.1}]}]\n...\n",
	} {
		f.Add([]byte(text), false)
	}
	f.Add([]byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","annotations":{"a":"\ud83d\ude00"}},"spec":{"clusterIP":"fd00::1","ports":[{"port":80,"targetPort":"http"}]}} {}`), true)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, asJSON bool) {
		path := filepath.Join(dir, "f.yaml")
		if asJSON {
			path = filepath.Join(dir, "f.json")
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		l := Loader{Paths: []string{path}}
		result, changed := l.Load()
		if spent := time.Since(start); spent > 10*time.Second {
			t.Errorf("%d bytes took %v", len(data), spent)
		}
		if !changed || result.Files != 1 {
			t.Errorf("first load: changed %v, %d files", changed, result.Files)
		}
		lines := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + bytes.Count(data, []byte("\u0085")) +
			bytes.Count(data, []byte("\u2028")) + bytes.Count(data, []byte("\u2029")) + 1
		for _, e := range append(result.Problems, result.Warnings...) {
			if e.Line < 1 || e.Line > lines || e.Reason == "" {
				t.Errorf("of %d lines: %v", lines, e)
			}
		}
		if len(result.Problems) > 0 && result.Objects.Len() > 0 {
			t.Errorf("objects of a broken file are in force: %v", result.Problems)
		}
		var options kube.Options
		if nodes := result.Objects.Nodes; len(nodes) > 0 {
			options.Facts.NodeName = nodes[0].Name
		}
		new(kube.Converter).Convert(result.Objects, options)
		if again, changed := l.Load(); changed {
			t.Errorf("the same file, read again: %s", cmp.Diff(result, again))
		}
	})
}

// otherYAML are words that YAML 1.1, which the reference reads, and 1.2 differ in.
var otherYAML = regexp.MustCompile(`(?i)\b(y|n|yes|no|on|off)\b|0[ob_0-9]|[0-9]_|[0-9]:[0-9]|!|<<|=`)

// FuzzDecode compares the decoder with the one that kubectl uses: what it
// takes, that takes too, and reads the same.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		service("web", "10.96.0.1"),
		slice("web", "10.0.0.1"),
		"apiVersion: v1\nkind: Service\nmetadata: {name: x, creationTimestamp: 2026-01-02T03:04:05Z, labels: {a: b}, managedFields: [{fieldsV1: {f:spec: {}}}]}\nspec: {ports: [{port: 0x50, targetPort: http}], publishNotReadyAddresses: true}\nstatus: {loadBalancer: {ingress: [{ip: 10.0.0.1, ipMode: VIP}]}}\n",
		"apiVersion: v1\nkind: Endpoints\nmetadata: {name: x, deletionGracePeriodSeconds: -5}\nsubsets:\n- addresses: [{ip: 10.0.0.1, targetRef: {kind: Pod}}]\n  ports: [{port: 80}]\n",
		node("n", "10.1.0.0/24", "10.0.0.1") + "  capacity: {cpu: 4, memory: 16Gi, pods: \"110\", x: 1.5e3}\n  nodeInfo: {swap: {capacity: 5}}\n  daemonEndpoints: {kubeletEndpoint: {Port: 10250}}\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if otherYAML.Match(data) {
			return
		}
		roots, err := decodeYAML(data)
		if err != nil || len(roots) != 1 {
			return
		}
		kind := text(roots[0], "kind")
		for _, kinds := range []struct {
			kind      string
			got, want any
		}{
			{"Service", new(corev1.Service), new(corev1.Service)},
			{"Endpoints", new(corev1.Endpoints), new(corev1.Endpoints)},
			{"EndpointSlice", new(discoveryv1.EndpointSlice), new(discoveryv1.EndpointSlice)},
			{"Node", new(corev1.Node), new(corev1.Node)},
		} {
			if kinds.kind != kind {
				continue
			}
			d := &decoder{doc: new(document), budget: aliasBudget}
			if roots[0].ShortTag() != "!!map" || !d.decodeAll(roots[0], kinds.got) {
				return
			}
			if err := yaml.UnmarshalStrict(data, kinds.want); err != nil {
				t.Fatalf("decoded, but the reference says: %v", err)
			}
			normalize := cmp.Transformer("fields", func(f metav1.FieldsV1) string {
				var v any
				if json.Unmarshal(f.GetRawBytes(), &v) != nil {
					return f.GetRawString()
				}
				text, _ := json.Marshal(v)
				return string(text)
			})
			if diff := cmp.Diff(kinds.want, kinds.got, normalize); diff != "" {
				t.Fatalf("decoded otherwise (-reference +here):\n%s", diff)
			}
		}
	})
}
