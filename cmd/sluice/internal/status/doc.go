// Package status serves what probes, scrapers and people ask the running program:
// /healthz and /livez on one address, /metrics, /proxyMode and /healthz on another.
// Paths, codes and payloads are kube-proxy's.
//
// Goroutines: one for each address, joined by Server.Close.
package status
