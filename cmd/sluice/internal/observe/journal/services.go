package journal

// The reasons of entries, beside those of Events and conditions.
const (
	Serving          = "Serving"
	TookOver         = "TookOver"
	HandOverFailed   = "HandOverFailed"
	APIServerTrouble = "APIServerTrouble"
	APIServerAnswers = "APIServerAnswers"
	ServiceAdded     = "ServiceAdded"
	ServiceRemoved   = "ServiceRemoved"
	ServiceChanged   = "ServiceChanged"
	ServicesChanged  = "ServicesChanged"
	EndpointsChanged = "EndpointsChanged"
	NoEndpoints      = "NoEndpoints"
	Drained          = "Drained"
	DrainUndone      = "DrainUndone"
)

// Reasons says of each, in the order of the reference, what it means.
var Reasons = []struct{ Reason, Means string }{
	{Serving, "The process serves."},
	{TookOver, "The process has taken over from another one."},
	{HandOverFailed, "Another process was started to take over, and did not."},
	{APIServerTrouble, "The API server cannot be read. The last known Services are served."},
	{APIServerAnswers, "The API server can be read again."},
	{ServiceAdded, "A Service is served."},
	{ServiceRemoved, "A Service is no longer served."},
	{ServiceChanged, "The ports, addresses or policies of a Service changed."},
	{EndpointsChanged, "The endpoints of a Service changed."},
	{NoEndpoints,
		"A Service has no ready endpoint any more. This is no warning if the Service is removed within seconds."},
	{Drained, "An operator drained endpoints."},
	{DrainUndone, "An operator undid a drain."},
	{ServicesChanged, "Many Services changed. The note counts them."},
}

// summary counts changes that are not written one by one.
type summary struct{ count, added, removed, changed, endpoints, lost int }

func (s *summary) add(c *Change) {
	s.count++
	switch c.Reason {
	case ServiceAdded:
		s.added++
	case ServiceRemoved:
		s.removed++
	case ServiceChanged:
		s.changed++
	case NoEndpoints:
		s.lost++
	default:
		s.endpoints++
	}
}

// details returns the counts that are not 0.
func (s *summary) details() (out []Detail) {
	for _, d := range []struct {
		key string
		n   int
	}{{"added", s.added}, {"removed", s.removed}, {"changed", s.changed}, {"endpoints_changed", s.endpoints},
		{"without_endpoints", s.lost}} {
		if d.n > 0 {
			out = append(out, Detail{d.key, d.n})
		}
	}
	return out
}
