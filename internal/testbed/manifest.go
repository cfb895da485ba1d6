package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Where Sluice serves its health and its metrics by default, on its own host.
const (
	HealthURL  = "http://127.0.0.1:10256/healthz"
	MetricsURL = "http://127.0.0.1:10249/metrics"
)

// ServiceManifest returns a Service with one port. The address is that of its cluster IP
// with the port, an IPv6 address in brackets; more is appended, indented as the fields
// of spec are.
func ServiceManifest(name, address, protocol, more string) string {
	i := strings.LastIndexByte(address, ':')
	ip, port := strings.Trim(address[:i], "[]"), address[i+1:]
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  clusterIP: %s\n"+
		"  ports:\n  - port: %s\n    protocol: %s\n%s", name, ip, port, protocol, more)
}

// Annotated returns a manifest of [ServiceManifest] or [SliceManifest] with annotations in flow style, as "a: b, c: d".
func Annotated(manifest, annotations string) string {
	if annotations == "" {
		return manifest
	}
	return strings.Replace(manifest, "\nmetadata:\n", "\nmetadata:\n  annotations: {"+annotations+"}\n", 1)
}

// SliceManifest returns EndpointSlice number n of a Service, whose endpoints are ready.
func SliceManifest(service string, n, port int, protocol string, addrs ...string) string {
	family := "IPv4"
	if len(addrs) > 0 && strings.Contains(addrs[0], ":") {
		family = "IPv6"
	}
	s := fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s-%d\n  labels:\n"+
		"    kubernetes.io/service-name: %s\naddressType: %s\nports:\n- port: %d\n  protocol: %s\nendpoints:",
		service, n, service, family, port, protocol)
	if len(addrs) == 0 {
		return s + " []\n"
	}
	for _, a := range addrs {
		s += fmt.Sprintf("\n- addresses: [%s]", a)
	}
	return s + "\n"
}

// ManyPorts returns a Service with ports 1 to n, p1 and so on, all of which lead to one port of an endpoint, and its
// EndpointSlice.
func ManyPorts(name, ip, protocol string, n, target int, endpoint string) (service, slice string) {
	var ports, targets strings.Builder
	for p := 1; p <= n; p++ {
		fmt.Fprintf(&ports, "  - {name: p%d, port: %d, protocol: %s}\n", p, p, protocol)
		fmt.Fprintf(&targets, "- {name: p%d, port: %d, protocol: %s}\n", p, target, protocol)
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  clusterIP: %s\n  ports:\n%s",
			name, ip, ports.String()),
		fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s-1\n"+
			"  labels: {kubernetes.io/service-name: %s}\naddressType: IPv4\nports:\n%sendpoints:\n- addresses: [%s]\n",
			name, name, targets.String(), endpoint)
}

// WriteManifest replaces a file of a folder of manifests by one of these documents, at
// once, as an editor does: a reader never sees half of it.
func WriteManifest(dir, name string, documents ...string) error {
	next := filepath.Join(dir, "."+name)
	if err := os.WriteFile(next, []byte(strings.Join(documents, "---\n")), 0o644); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(dir, name))
}
