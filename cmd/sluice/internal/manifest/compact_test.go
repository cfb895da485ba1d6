package manifest

import (
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestCompact: endpoints that share memory say what they said alone.
func TestCompact(t *testing.T) {
	yes, no, node := true, false, "node-1"
	endpoints := func() []discoveryv1.Endpoint {
		return []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1", "10.0.0.22"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &no}},
			{Addresses: nil, NodeName: &node},
			{Addresses: []string{"fd00::1"}, Conditions: discoveryv1.EndpointConditions{Ready: &no, Terminating: &yes},
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}},
		}
	}
	slice := &discoveryv1.EndpointSlice{Endpoints: endpoints()}
	compact(slice)
	for i, want := range endpoints() {
		got := slice.Endpoints[i]
		if len(got.Addresses)+len(want.Addresses) == 0 {
			got.Addresses = nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("endpoint %d is\n%+v\nwant\n%+v", i, got, want)
		}
		if cap(got.Addresses) != len(got.Addresses) {
			t.Errorf("endpoint %d: to append to its addresses is to write to those of the next", i)
		}
	}
}

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
	if len(l.result.Objects.Slices) != count {
		t.Fatalf("%d slices, %v", len(l.result.Objects.Slices), l.result.Problems)
	}
}
