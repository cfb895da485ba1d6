package status

import (
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"time"
)

// Health is what a health probe is answered from.
type Health struct {
	// Healthy says that no change has been pending for too long.
	Healthy bool
	// LastUpdated is when the data path was last brought up to date; zero if it never was.
	LastUpdated time.Time
	// Families are the address families that are served, "IPv4" and "IPv6".
	Families []string
	// NodeEligible says that load balancers may send new connections to this node.
	NodeEligible bool
	// Wrong is what is rejected, ignored or leads nowhere, in words; for clients of this host alone.
	Wrong []string
	// Serving says that the first Services are applied and the program is not
	// stopping. kube-proxy has no such state.
	Serving bool
}

// proxyHealth is the payload, in kube-proxy's order.
type proxyHealth struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyHealth `json:"status,omitempty"`
	Conditions   []string                `json:"conditions,omitempty"` // kube-proxy has none
}

// familyHealth is the state of one address family.
type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// HealthHandler answers health probes: /livez with 200 while what get returns is
// healthy, so that a kubelet restarts only what hangs; /healthz with 200 while,
// besides, the node is eligible and the program serving, so that load balancers
// drain a node before it is deleted. Otherwise they answer 503. answered is called with
// each answer.
func HealthHandler(get func() Health, answered func(path string, code int)) http.Handler {
	answer := func(w http.ResponseWriter, r *http.Request) {
		h, now := get(), time.Now()
		ok := h.Healthy
		body := proxyHealth{LastUpdated: h.LastUpdated, CurrentTime: now, Healthy: ok}
		if !h.LastUpdated.IsZero() {
			body.Status = make(map[string]familyHealth)
			for _, f := range h.Families {
				body.Status[f] = familyHealth{h.LastUpdated, h.Healthy}
			}
		}
		if client, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && client.Addr().Unmap().IsLoopback() {
			body.Conditions = h.Wrong
		}
		if r.URL.Path == "/healthz" {
			body.NodeEligible = &h.NodeEligible
			body.Healthy = h.Healthy && h.Serving
			ok = body.Healthy && h.NodeEligible
		}
		code := http.StatusServiceUnavailable
		if ok {
			// As up to date as can be: before 1.28 this was the time of the last run of
			// a loop, and probes were written that look at its age.
			code, body.LastUpdated = http.StatusOK, now
		}
		answered(r.URL.Path, code)
		writeJSON(w, code, body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer)
	mux.HandleFunc("GET /livez", answer)
	return mux
}

// writeJSON answers with v, without a line end, as kube-proxy does.
func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	write(w, code, "application/json", string(body))
}

// write answers with text of a type that the client is not to guess.
func write(w http.ResponseWriter, code int, contentType, text string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // an error means that the client has gone
}
