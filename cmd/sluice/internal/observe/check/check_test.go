package check

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestMistakes: mistakes of a tired person, each named with its place and what to do. Folders are those of testdata.
func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		folder, want string // none: there is no mistake
		refused      bool   // a start would reject it
	}{
		{"good", "", false},
		{"port-name", "web.yaml:16: warning: EndpointSlice default/web-1: port htpp (TCP) is none of Service default/web, " +
			"so its endpoints are not used: did you mean http?", false},
		{"service-name", "web.yaml:13: warning: EndpointSlice default/web-1: its endpoints are not used: there is no " +
			"Service default/wbe: did you mean web?", false},
		{"no-slice", "web.yaml:1: warning: Service default/web: it has no endpoints: write an " +
			"EndpointSlice with the label kubernetes.io/service-name: web", false},
		{"loopback", "web.yaml:9: warning: EndpointSlice default/web-1: endpoint 127.0.0.1 is a loopback address", false},
		{"misnamed", "warning: no manifest in this folder, so nothing of it is served: put files *.yaml, *.yml or *.json " +
			"into it; not read: web.yml.txt", false},
		{"tab", "web.yaml:5: not valid YAML: found character that cannot start any token; indent by spaces, not by tabs",
			true},
		{"port-range", "web.yaml:7: Service default/web: spec.ports[0].port: Invalid value: 80800: must be between 1 and " +
			"65535, inclusive", true},
		{"unknown-field", `web.yaml:5: Service web: unknown field "spec.clusterIp"`, true},
		{"annotation", `web.yaml:6: warning: Service default/web: annotation sluice.io/schedular is ignored: "lc": there ` +
			"is no such policy: did you mean sluice.io/scheduler?", false},
		{"policy", "web.yaml:7: warning: Service default/web: idle-timeout 5m0s has no effect", false},
		{"conflict", "b.yaml:1: Service default/other: TCP 10.96.0.80:80 already belongs to Service default/web", true},
	} {
		t.Run(c.folder, func(t *testing.T) {
			var out strings.Builder
			err := Run([]string{"--manifests", filepath.Join("testdata", c.folder)}, &out)
			if (err != nil) != c.refused || !strings.Contains(out.String(), c.want) {
				t.Errorf("%v:\n%s\nwant %q", err, &out, c.want)
			}
			strict := Run([]string{filepath.Join("testdata", c.folder), "--strict"}, &out)
			if (strict != nil) != (c.want != "") {
				t.Errorf("with --strict: %v", strict)
			}
		})
	}
}

// TestConfiguration: all mistakes of flags and of the file are found in one run, beside those of manifests.
func TestConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	testbed.Check(t, os.WriteFile(file, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"+
		"kind: KubeProxyConfiguration\nmode: userspace\nudpIdelTimeout: 1s\n"), 0o600))
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--config", file, "--manifests", "testdata/good"}, []string{"warning: ", `unknown field "udpIdelTimeout"`}},
		{[]string{"--manifests", "testdata/tab", "--udp-timeout=-1s", "--max-client-share=700"},
			[]string{"--max-client-share", "udp-timeout", "tab/web.yaml:5"}},
		{[]string{"--manifest", "testdata/good"}, []string{"did you mean --manifests?"}},
		{[]string{"--manifests", "testdata/none"}, []string{"testdata/none: cannot be read: no such file or directory"}},
		{[]string{"--kubeconfig", file + ".none"}, []string{file + ".none"}},
	} {
		var out strings.Builder
		_ = Run(c.args, &out)
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q: %s\nwant %q", c.args, &out, want)
			}
		}
	}
}

// TestJSON: the answer for programs.
func TestJSON(t *testing.T) {
	var out strings.Builder
	if err := Run([]string{"testdata/port-range", "-o", "json"}, &out); err == nil || err.Error() != "1 error, 0 warnings" {
		t.Errorf("the error is %v", err)
	}
	var r Report
	testbed.Check(t, json.Unmarshal([]byte(out.String()), &r))
	if r.Errors != 1 || len(r.Mistakes) != 1 || r.Mistakes[0].Line != 7 || r.Mistakes[0].Field != "spec.ports[0].port" ||
		r.Mistakes[0].Warning {
		t.Errorf("the report is %+v", r)
	}
	for _, args := range [][]string{{"-o"}, {"-o", "xml"}} {
		if Run(args, &out) == nil {
			t.Errorf("%q is taken", args)
		}
	}
}
