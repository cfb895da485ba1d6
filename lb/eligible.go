package lb

import "slices"

// Which backends new connections may go to. This is the one place that decides
// it; traffic policies and topology hints belong here as well.

// Eligible returns the backends that new connections may go to, in the order of
// s.Backends, as a fresh slice: those that are ready, or if there is none, those
// that still serve while they terminate, which keeps a rolling update from
// refusing connections when all old endpoints leave at once (KEP-1669).
func (s *Service) Eligible() []Backend {
	var eligible []Backend
	ready := anyReady(s.Backends)
	for i := range s.Backends {
		if s.Backends[i].eligible(ready) {
			eligible = append(eligible, s.Backends[i])
		}
	}
	return eligible
}

// HasEligible reports whether Eligible would return any.
func (s *Service) HasEligible() bool {
	ready := anyReady(s.Backends)
	return slices.ContainsFunc(s.Backends, func(b Backend) bool { return b.eligible(ready) })
}

func anyReady(backends []Backend) bool {
	for i := range backends {
		if backends[i].Ready {
			return true
		}
	}
	return false
}

// eligible reports whether new connections may go to b, given whether any
// backend of its service is ready.
func (b *Backend) eligible(anyReady bool) bool {
	if anyReady {
		return b.Ready
	}
	return b.Serving && b.Terminating
}

// live reports whether flows that are at b already may stay there.
func (b *Backend) live() bool { return b.Ready || b.Serving }

// why explains what eligible says, to a human.
func (b *Backend) why(anyReady bool) string {
	switch {
	case b.Ready:
		return "ready"
	case b.Serving && b.Terminating && anyReady:
		return "terminating, and others are ready"
	case b.Serving && b.Terminating:
		return "terminating, but still serving and no other is ready"
	case b.Terminating:
		return "terminating, and no longer serving"
	}
	return "not ready"
}
