package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// mistake is what a tired person writes, and what check and status say of it.
type mistake struct {
	file, text   string // no file: an empty folder
	reason, want string
}

// mistakes are those of folders by their names, each of a Service of its own.
func mistakes() map[string]mistake {
	service := func(name string) string {
		address := "10.96.60." + map[string]string{"port": "1", "orphan": "2", "ending": "3", "word": "4", "field": "5",
			"value": "6", "loopback": "7", "second": "8", "tab": "9", "none": "10", "path": "11",
			"label": "12", "prefix": "13", "number": "14"}[name] + ":80"
		return testbed.ServiceManifest(name, address, "TCP", "")
	}
	slice := func(name, endpoint string) string { return testbed.SliceManifest(name, 1, 8080, "TCP", endpoint) }
	both := func(name string) string { return service(name) + "---\n" + slice(name, "10.1.0.1") }
	with := func(text, from, to string) string {
		if !strings.Contains(text, from) {
			panic(text + " has no " + from)
		}
		return strings.Replace(text, from, to, 1)
	}
	annotated := func(name, annotations string) string {
		return with(both(name), "\nspec:", "\n  annotations: {"+annotations+"}\nspec:")
	}
	return map[string]mistake{
		"port": {"a.yaml",
			service("port") + "---\n" + with(slice("port", "10.1.0.1"), "- port:", "- name: htpp\n  port:"),
			conditions.EndpointsUnmatched, "port htpp (TCP) is none of Service default/port"},
		"orphan": {"a.yaml", with(both("orphan"), "service-name: orphan", "service-name: orphn"),
			conditions.EndpointsUnmatched, "there is no Service default/orphn: did you mean orphan?"},
		"empty":  {"", "", conditions.ManifestIgnored, "no manifest in this folder, so nothing of it is served"},
		"ending": {"a.yml.txt", both("ending"), conditions.ManifestIgnored, "not read: a.yml.txt"},
		"word": {"a.yaml", annotated("word", "sluice.io/schedular: lc"), conditions.AnnotationIgnored,
			"did you mean sluice.io/scheduler?"},
		"prefix": {"a.yaml", annotated("prefix", "sluice/scheduler: lc"), conditions.AnnotationIgnored,
			"did you mean sluice.io/scheduler?"},
		"label": {"a.yaml", with(both("label"), "\nspec:", "\n  labels: {sluice.io/scheduler: lc}\nspec:"),
			conditions.AnnotationIgnored, "label sluice.io/scheduler is ignored: write it in metadata.annotations"},
		"number": {"a.yaml", annotated("number", "sluice.io/max-connections: 5"), conditions.ManifestRejected,
			"metadata.annotations: Invalid value: number: must be text: put it in quotes"},
		"field": {"a.yaml", with(both("field"), "clusterIP:", "clusterIp:"), conditions.ManifestRejected,
			`unknown field "spec.clusterIp"`},
		"value": {"a.yaml", annotated("value", "sluice.io/idle-timeout: 5 minutes"), conditions.AnnotationIgnored,
			"give a duration"},
		"loopback": {"a.yaml", service("loopback") + "---\n" + slice("loopback", "127.0.0.1"),
			conditions.EndpointsLeftOut, "127.0.0.1 is a loopback address"},
		"second": {"a.yaml", with(both("second"), "10.96.60.8", strings.TrimSuffix(lab.WebAddr, ":80")),
			conditions.ManifestRejected, "already belongs to Service default/web"},
		"tab": {"a.yaml", with(both("tab"), "\nspec:", "\nspec:\n\ttype: ClusterIP"), conditions.ManifestRejected,
			"indent by spaces, not by tabs"},
		"none": {"a.yaml", service("none"), conditions.NoEndpointSlices, "Service default/none: it has no endpoints"},
		"path": {"a.yaml", annotated("path", "sluice.io/data-path: nftables, sluice.io/idle-timeout: 5m"),
			"PolicyUnavailable", "data path nftables does not have it"},
	}
}

// TestMistakes: each mistake of a tired person is named by check, and by status while the process serves all else. Once
// all are mended nothing is wrong.
func TestMistakes(t *testing.T) {
	t.Parallel()
	l := looker{lab.New(t, testbed.Config{Pods: 1}), filepath.Join(t.TempDir(), "run", "api.sock")}
	l.ServeEcho()
	args := []string{"--api-socket", l.socket}
	root := t.TempDir()
	for name, m := range mistakes() {
		folder := filepath.Join(root, name)
		testbed.Check(t, os.Mkdir(folder, 0o700))
		args = append(args, "--manifests", folder)
		if m.file != "" {
			testbed.Check(t, os.WriteFile(filepath.Join(folder, m.file), []byte(m.text), 0o600))
		}
		out, err := l.Command("check", "--manifests", l.Dir, "--manifests", folder).CombinedOutput()
		if !strings.Contains(string(out), m.want) || (err != nil) != (m.reason == conditions.ManifestRejected) {
			t.Errorf("check of %s: %v\n%s\nwant %q", name, err, out, m.want)
		}
	}
	l.Start(args...)
	held := l.Hold()
	held.Works()
	l.Eventually("the API is served", func() bool { _, err := os.Stat(l.socket); return err == nil })
	all, text := read[api.Status](l, "status").Conditions, l.run("status")
	for name, m := range mistakes() {
		if !slices.ContainsFunc(all, func(c conditions.Condition) bool {
			return c.Reason == m.reason && strings.Contains(c.Text, m.want)
		}) || !strings.Contains(text, m.want) {
			t.Errorf("status does not name %s: want %s %q in\n%s", name, m.reason, m.want, text)
		}
	}
	if n := l.Metric(`sluice_conditions{reason="ManifestRejected"}`); n != 4 {
		t.Errorf("the metric has %v files that are rejected, want 4", n)
	}
	for name, m := range mistakes() {
		good := testbed.ServiceManifest(name, "None:80", "TCP", "")
		testbed.Check(t, os.WriteFile(filepath.Join(root, name, "a.yaml"), []byte(good+"---\n"+
			testbed.SliceManifest(name, 1, 8080, "TCP", "10.1.0.1")), 0o600))
		if m.file != "" && m.file != "a.yaml" {
			testbed.Check(t, os.Remove(filepath.Join(root, name, m.file)))
		}
	}
	l.Eventually("nothing is wrong any more", func() bool { return read[api.Status](l, "status").ConditionCount == 0 })
	held.Works()
}
