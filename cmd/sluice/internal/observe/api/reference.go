package api

import "net/http"

// Resource is a route as documents show it.
type Resource struct {
	Method, Path, Means string
	Params              []string
	Answer              any // a value of the type that is answered
}

// Resources returns all routes. Those that change something are served at the socket only.
func Resources() []Resource {
	base := "/" + Version
	all := []Resource{{http.MethodGet, base, "The names of the resources.", nil, Index{}}}
	for _, r := range resources {
		all = append(all, Resource{http.MethodGet, base + "/" + r.name, r.means, r.params, r.answer})
	}
	return append(all,
		Resource{http.MethodPost, base + "/drains", "Drain endpoints.", drainParams, Drain{}},
		Resource{http.MethodDelete, base + "/drains", "Undo a drain.", undrainParams, Drain{}})
}

// Param is a parameter of requests.
type Param struct{ Name, Means string }

// Params says what parameters mean.
var Params = []Param{
	{"namespace", "only this namespace"},
	{"name", "only the Service of this name; needs `namespace` where a single Service is asked for"},
	{"port", "only ports of this name or number"},
	{"limit", "how many items at most; a list of pages has up to 1,000 a page, 500 by default"},
	{"continue", "the next page: the field `continue` of the page before"},
	{"unhealthy", "only endpoints that are not `ready`; the value does not matter"},
	{"client", "only clients with this address or in this range; for `explain`, the client that asks"},
	{"endpoint", "only this endpoint, with or without a port; for `drains` also `node/NAME`"},
	{"address", "the address and port that the client asks"},
	{"protocol", "only `tcp`, `udp` or `sctp`"},
	{"state", "only connections in this state"},
	{"sort", "order by `connections` or `bytes`"},
	{"after", "only events after the one of this number"},
	{"wait", "wait this long for an event after `after`, at most 10s"},
	{"deadline", "reset the connections that are open after this time, at most 720h"},
	{"force", "`true` drains the last endpoint of a Service, or an endpoint that does not exist yet"},
}
