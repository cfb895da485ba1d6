package journal

// The reasons of changes.
const (
	ServiceAdded     = "ServiceAdded"
	ServiceRemoved   = "ServiceRemoved"
	ServiceChanged   = "ServiceChanged"
	EndpointsChanged = "EndpointsChanged"
	NoEndpoints      = "NoEndpoints"
)

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
