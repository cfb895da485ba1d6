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

// TestChangeKeepsLists: a change of one file does not copy the lists of all objects: the garbage collector would run
// the more often, and changes wait for it.
func TestChangeKeepsLists(t *testing.T) {
	const count, changes, pointer = 10_000, 20, 8
	var all strings.Builder
	for i := range count {
		all.WriteString("---\n" + service(fmt.Sprint("s", i), fmt.Sprintf("10.%d.%d.%d", 97+i/62500, i/250%250, 1+i%250)))
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), all.String())
	l := Loader{Paths: []string{dir}}
	change := func(i int) {
		write(t, filepath.Join(dir, "b.yaml"), service("changes", fmt.Sprintf("10.96.1.%d", 1+i)))
		if r, changed := l.Load(); !changed || r.Objects.Services.Len() != count+1 {
			t.Fatalf("change %d: %v, %d Services, %v", i, changed, r.Objects.Services.Len(), r.Problems)
		}
	}
	change(0)
	change(1) // from here on there is memory for it
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range changes {
		change(2 + i)
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / changes; each > count*pointer {
		t.Errorf("a change allocates %d bytes, where a list of all Services has %d", each, count*pointer)
	}
}
