// Package status is the HTTP server of the running program: /healthz and /livez on one
// address, /metrics, /proxyMode, /configz, /statusz and /flagz on another, and the health-check
// node ports of Services. Paths, codes and payloads are those of kube-proxy 1.37. Beside
// /metrics are the page and the API, for this host only unless that is asked for.
//
// Goroutines: one for each address, joined by Server.Close, and net/http's one for
// each connection.
package status
