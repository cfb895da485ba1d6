package manifest

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestObjectsOfSlice holds down how many objects a Service of ten endpoints is in memory:
// the garbage collector looks at each, and changes wait for it.
func TestObjectsOfSlice(t *testing.T) {
	const count, most = 500, 40
	var all strings.Builder
	for i := range count {
		name := fmt.Sprint("s", i)
		all.WriteString("---\n" + service(name, fmt.Sprintf("10.96.%d.%d", 1+i/250, 1+i%250)) +
			"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: " + name + "-1\n  labels:\n    kubernetes.io/service-name: " + name +
			"\naddressType: IPv4\nports:\n- port: 80\n  protocol: TCP\nendpoints:\n")
		for k := range 10 {
			fmt.Fprintf(&all, "- addresses: [10.0.%d.%d]\n  conditions: {ready: true}\n", i%250, k+1)
		}
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), all.String())
	l := Loader{Paths: []string{dir}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	l.Load()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := (after.HeapObjects - before.HeapObjects) / count; n > most {
		t.Errorf("a Service with its slice is %d objects, want at most %d", n, most)
	}
	if l.result.Objects.Slices.Len() != count {
		t.Fatalf("%d slices, %v", l.result.Objects.Slices.Len(), l.result.Problems)
	}
}
