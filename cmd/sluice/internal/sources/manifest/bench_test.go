package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func service(name, clusterIP string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: %s
spec:
  clusterIP: %s
  ports:
  - port: 80
    targetPort: 8080
`, name, clusterIP)
}

func slice(service, address string) string {
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %s-1
  labels:
    kubernetes.io/service-name: %s
addressType: IPv4
ports:
- port: 8080
endpoints:
- addresses: [%s]
`, service, service, address)
}

// nodePort is a Service that has one.
func nodePort(name, clusterIP string, port int) string {
	return strings.Replace(service(name, clusterIP), "spec:\n", "spec:\n  type: NodePort\n", 1) + fmt.Sprintf("    nodePort: %d\n", port)
}

func node(name, podCIDR, address string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Node
metadata:
  name: %s
spec:
  podCIDR: %s
status:
  addresses:
  - type: InternalIP
    address: %s
`, name, podCIDR, address)
}

// manyObjects is n Services with a slice each, as documents of one file.
func manyObjects(n, endpoints int) string {
	var b strings.Builder
	for i := range n {
		name := fmt.Sprintf("svc-%d", i)
		b.WriteString("---\n" + service(name, fmt.Sprintf("10.%d.%d.%d", 96+i/62500, i/250%250, i%250+1)))
		b.WriteString("---\n" + slice(name, "10.0.0.1"))
		for k := range endpoints - 1 {
			fmt.Fprintf(&b, "- addresses: [10.0.%d.%d]\n", i%250, k+2)
		}
	}
	return b.String()
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkLoadMany is the first load of a large cluster: the time until the program is
// ready.
func BenchmarkLoadMany(b *testing.B) {
	const services = 10_000
	path := filepath.Join(b.TempDir(), "all.yaml")
	write(b, path, manyObjects(services, 10))
	b.ReportAllocs()
	for b.Loop() {
		l := Loader{Paths: []string{path}}
		r, _ := l.Load()
		if r.Objects.Len() != 2*services || len(r.Problems) != 0 {
			b.Fatal(r.Objects.Len(), r.Problems[0])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*2*services), "ns/document")
}

func BenchmarkReloadOneOfMany(b *testing.B) {
	path := filepath.Join(b.TempDir(), "all.yaml")
	text := manyObjects(10_000, 1)
	write(b, path, text)
	l := Loader{Paths: []string{path}}
	l.Load()
	i := 0
	for b.Loop() {
		i++
		write(b, path, text+"---\n"+service("x", fmt.Sprintf("10.1.0.%d", i%250+1)))
		if r, changed := l.Load(); !changed || len(r.Problems) != 0 {
			b.Fatal(r.Problems)
		}
	}
}

func BenchmarkLoadFolderOfMany(b *testing.B) {
	dir := b.TempDir()
	for i := range 10_000 {
		name := fmt.Sprintf("svc-%d", i)
		write(b, filepath.Join(dir, name+".yaml"), service(name, fmt.Sprintf("10.96.%d.%d", i/250%250, i%250+1))+"---\n"+slice(name, "10.0.0.1"))
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			l := Loader{Paths: []string{dir}}
			l.Load()
		}
	})
	b.Run("again", func(b *testing.B) {
		l := Loader{Paths: []string{dir}}
		l.Load()
		for b.Loop() {
			l.Load()
		}
	})
}
