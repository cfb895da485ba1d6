// Package status is the HTTP server of the running program: /healthz and /livez on one
// address, /metrics, /proxyMode and /configz on another, and the health-check node
// ports of Services. Paths, codes and payloads are those of kube-proxy 1.36. Beside
// /metrics are the page and the API, for this host only unless that is asked for.
//
// Goroutines: one for each address, joined by Server.Close, and net/http's one for
// each connection.
package status
