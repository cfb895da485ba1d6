package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/internal/testbed"
)

var helm = flag.String("helm", "../../bin/helm", "`PATH` of the helm to render the chart with")

// chartFolder begins the name of a folder that is a chart. Values to set follow it after a space.
const chartFolder = "helm/sluice"

// helmed returns what helm makes of the chart with values, or its error.
func helmed(t *testing.T, args ...string) (objects []json.RawMessage, err error) {
	t.Helper()
	if _, err := os.Stat(*helm); err != nil {
		testbed.Missing(t, fmt.Sprintf("%v: run make e2e, which gets everything", err))
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), *helm, append([]string{"template", "sluice", "../helm/sluice", "--namespace", "kube-system",
		"--kube-version", "1.36.0"}, args...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "HOME="+t.TempDir()), &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("helm template %v: %w: %s", args, err, stderr.String())
	}
	return documents(t, string(out)), nil
}

// documents returns the documents of a file in YAML, as JSON.
func documents(t *testing.T, text string) (objects []json.RawMessage) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		object, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatalf("%v in %s", err, document)
		}
		if string(object) != "null" {
			objects = append(objects, object)
		}
	}
	return objects
}

// alike returns objects as text, by kind and name, without what differs between the chart and an overlay: labels that
// say who made them; the configuration, which is YAML of another order; and how a change of it rolls out, which is a
// suffix of the ConfigMap's name with an overlay, and an annotation of the pod with the chart.
func alike(t *testing.T, objects []json.RawMessage) map[string]string {
	t.Helper()
	suffix := regexp.MustCompile(`"(sluice(?:-api-server)?)-[a-z0-9]{10}"`)
	all := make(map[string]string)
	for _, o := range objects {
		var u unstructured.Unstructured
		text := suffix.ReplaceAllString(string(o), `"$1"`)
		if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		u.SetLabels(nil)
		if config, ok, _ := unstructured.NestedString(u.Object, "data", "config.conf"); ok {
			var parsed map[string]any
			if err := yaml.Unmarshal([]byte(config), &parsed); err != nil {
				t.Fatal(err)
			}
			_ = unstructured.SetNestedMap(u.Object, asJSON(t, parsed), "data")
		}
		if u.GetKind() == "DaemonSet" {
			forgetRollout(t, u.Object)
		}
		out, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		all[u.GetKind()+" "+u.GetName()] = string(out)
	}
	return all
}

// asJSON returns an object with the types that JSON gives its values.
func asJSON(t *testing.T, object map[string]any) (out map[string]any) {
	t.Helper()
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// forgetRollout takes from a DaemonSet what alike leaves out.
func forgetRollout(t *testing.T, d map[string]any) {
	t.Helper()
	unstructured.RemoveNestedField(d, "spec", "template", "metadata", "annotations")
	labels, _, err := unstructured.NestedStringMap(d, "spec", "template", "metadata", "labels")
	if err != nil {
		t.Fatal(err)
	}
	_ = unstructured.SetNestedStringMap(d, map[string]string{"k8s-app": labels["k8s-app"]}, "spec", "template", "metadata", "labels")
	for _, kind := range []string{"initContainers", "containers"} {
		containers, _, _ := unstructured.NestedSlice(d, "spec", "template", "spec", kind)
		for _, c := range containers {
			for _, m := range c.(map[string]any)["volumeMounts"].([]any) {
				if mount := m.(map[string]any); mount["name"] == "config" {
					delete(mount, "subPath")
					mount["mountPath"] = "/etc/sluice"
				}
			}
		}
		if len(containers) > 0 {
			_ = unstructured.SetNestedSlice(d, containers, "spec", "template", "spec", kind)
		}
	}
}

// TestChartIsOverlay: in each mode the chart renders the objects of the overlay of that name.
func TestChartIsOverlay(t *testing.T) {
	for overlay, args := range map[string][]string{
		"overlays/beside":        nil, // the defaults
		"overlays/whole-cluster": {"--set", "mode=cluster,apiServer.host=192.0.2.1"},
	} {
		objects, err := helmed(t, args...)
		if err != nil {
			t.Error(err)
			continue
		}
		chart, want := alike(t, objects), alike(t, render(t, "../"+overlay))
		for name, text := range want {
			if chart[name] != text {
				t.Errorf("%s: %s of the chart is\n%s\nof the overlay\n%s", overlay, name, chart[name], text)
			}
		}
		for name := range chart {
			if want[name] == "" {
				t.Errorf("%s has no %s, which the chart has", overlay, name)
			}
		}
	}
}

// everyValue sets every value of the chart to another than the default, but for the mode.
const everyValue = `
serviceProxyName: other
image: {repository: registry.example/sluice, tag: v1, digest: "sha256:` + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" + `", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
apiServer: {host: 192.0.2.7, port: 443}
config: {iptables: {syncPeriod: 31s}}
extraArgs: [--default-policy=scheduler=lc]
extraEnv: [{name: EXTRA, value: "1"}]
health: {port: 20256}
metrics: {port: 20249, expose: true}
sysctls: {enabled: false}
capabilities: {sysResource: false}
resources: {requests: {cpu: 1}, limits: {memory: 2Gi}}
priorityClassName: system-cluster-critical
nodeSelector: {role: edge}
tolerations: []
podAnnotations: {a: b}
podLabels: {c: d}
terminationGracePeriodSeconds: 60
podMonitor: {enabled: true, labels: {find: me}, interval: 31s}
prometheusRule: {enabled: true, labels: {find: us}}
networkPolicy: {enabled: true}
namespace: {create: true, labels: {psa: privileged}}
`

// TestChartValues: every value that values.yaml has comes into what the chart renders, and a value that it does not
// have, or that is wrong, is refused.
func TestChartValues(t *testing.T) {
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(everyValue), 0o600); err != nil {
		t.Fatal(err)
	}
	var given, all map[string]any
	defaults, err := os.ReadFile("../helm/sluice/values.yaml")
	if err == nil {
		err = yaml.Unmarshal(defaults, &all)
	}
	if err == nil {
		err = yaml.Unmarshal([]byte(everyValue), &given)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name := range all {
		if _, ok := given[name]; !ok && name != "mode" {
			t.Errorf("the value %s is not tried here", name)
		}
	}
	var text strings.Builder
	for _, mode := range []string{"beside", "cluster"} {
		objects, err := helmed(t, "--values", file, "--set", "mode="+mode)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			text.Write(o)
		}
	}
	for _, want := range []string{`service-proxy-name=other`, `registry.example/sluice@sha256:0123`, `"imagePullPolicy":"Always"`, `"name":"pull"`,
		`192.0.2.7`, `"443"`, `syncPeriod: 31s`, `--default-policy=scheduler=lc`, `EXTRA`, `"port":20256`, `0.0.0.0:20249`, `"value":"1843MiB"`,
		`system-cluster-critical`, `"role":"edge"`, `"a":"b"`, `"c":"d"`, `"terminationGracePeriodSeconds":60`, `"find":"me"`, `"interval":"31s"`,
		`"find":"us"`, `SluiceCondition`, `"kind":"NetworkPolicy"`, `"psa":"privileged"`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("nothing that is rendered has %s:\n%s", want, text.String())
		}
	}
	for _, no := range []string{"SYS_RESOURCE", "init-only", `"tolerations"`} {
		if strings.Contains(text.String(), no) {
			t.Errorf("%s is rendered", no)
		}
	}
	for _, wrong := range []string{"mode=none", "mode=cluster", "image.tga=v1", "metrics.port=70000", "podMonitor.enabled=true",
		"image.digest=sha256:1", "extraArgs={lc}"} {
		if objects, err := helmed(t, "--set", wrong); err == nil {
			t.Errorf("%s is no error, and gives %d objects", wrong, len(objects))
		}
	}
}
