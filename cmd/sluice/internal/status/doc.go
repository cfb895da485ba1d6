// Package status serves what probes, scrapers and people ask the running program:
// /healthz and /livez on one address, /metrics and what explains it on another, and
// the health-check node ports of Services. Paths, codes and payloads are those of
// kube-proxy 1.36.
//
// Goroutines: one for each address, joined by Server.Close, and net/http's one for
// each connection.
package status
