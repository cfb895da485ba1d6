package manifest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// FuzzLoad loads arbitrary files: no panic, no hang, each problem on a line of
// the file, and the same answer again from the documents that are remembered.
func FuzzLoad(f *testing.F) {
	testbed.Sequential(f)
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
