package lb

// Which backends new connections may go to. This is the one place that decides it,
// by the rules of kube-proxy (CategorizeEndpoints in its topology.go, 1.36).

// Set is one of the two sets of eligible backends of a service port.
type Set uint8

// The sets.
const (
	ClusterSet Set = iota // for policy Cluster: those of any node
	LocalSet              // for policy Local: those of this node
	Sets                  // how many there are
)

// Eligible returns the backends that new connections to an address with policy
// Cluster may go to, in the order of s.Backends, as a fresh slice: the
// ready ones, narrowed by hints for this node, else by hints for this zone, if each has one and
// one is for here. If none is ready they are those that still serve while they
// terminate, so that a rolling update does not refuse connections (KEP-1669). One in maintenance
// or drained is none of them, even if there is no other, as with HAProxy and ipvs.
func (s *Service) Eligible() []Backend { return s.eligible(ClusterSet) }

// EligibleLocal returns the same for an address with policy Local: of this
// node only, whatever the hints.
func (s *Service) EligibleLocal() []Backend { return s.eligible(LocalSet) }

func (s *Service) eligible(in Set) []Backend {
	var eligible []Backend
	sel := Select(s.Backends)
	for i := range s.Backends {
		if sel.Has(in, &s.Backends[i]) {
			eligible = append(eligible, s.Backends[i])
		}
	}
	return eligible
}

// hints says how far hints narrow the ready backends of the cluster set.
type hints uint8

const (
	noHints hints = iota
	hintsNode
	hintsZone
)

// Selection is what has to be known of all backends of a service to say of one
// whether it is eligible.
type Selection struct {
	ready      bool // there is a ready one
	localReady bool // there is one on this node
	hinted     bool // there is one with a hint
	hints      hints
}

// Select looks at all backends of a service.
func Select(backends []Backend) Selection {
	var s Selection
	var nodeHere, nodeMissing, zoneHere, zoneMissing bool
	for i := range backends {
		b := &backends[i]
		if !b.ready() {
			continue // its hints do not count
		}
		s.ready = true
		s.localReady = s.localReady || b.Local
		s.hinted = s.hinted || b.NodeHint != NoHint || b.ZoneHint != NoHint
		nodeHere = nodeHere || b.NodeHint == HintHere
		nodeMissing = nodeMissing || b.NodeHint == NoHint
		zoneHere = zoneHere || b.ZoneHint == HintHere
		zoneMissing = zoneMissing || b.ZoneHint == NoHint
	}
	switch {
	case nodeHere && !nodeMissing:
		s.hints = hintsNode
	case zoneHere && !zoneMissing:
		s.hints = hintsZone
	}
	return s
}

// Has reports whether b, one of the backends that s was made from, is in a set.
func (s Selection) Has(in Set, b *Backend) bool {
	if in == LocalSet {
		return b.Local && (b.ready() || !s.localReady && b.servingTerminating())
	}
	return b.ready() && s.hintsAllow(b) || !s.ready && b.servingTerminating()
}

// hintsAllow reports whether hints let b take connections from here.
func (s Selection) hintsAllow(b *Backend) bool {
	switch s.hints {
	case hintsNode:
		return b.NodeHint == HintHere
	case hintsZone:
		return b.ZoneHint == HintHere
	}
	return true
}

// ready reports whether b takes connections.
func (b *Backend) ready() bool { return b.Ready && !b.out() }

// servingTerminating reports whether b takes connections as long as there is none better.
func (b *Backend) servingTerminating() bool {
	return b.Serving && b.Terminating && !b.out()
}

// out reports whether b is to get no connections, whatever else is said of it.
func (b *Backend) out() bool { return b.Loop || b.Maintenance || b.Drained }

// TakesNew reports whether b takes connections where there are only ready ones.
func (b *Backend) TakesNew() bool { return b.ready() }

// Live reports whether flows that are at b already may stay there.
func (b *Backend) Live() bool { return (b.Ready || b.Serving) && !b.Loop }

// NoHints says why hints do not count in a set, to a human; empty: there are none, or they do.
func (s Selection) NoHints(in Set) string {
	switch {
	case s.hinted && in == LocalSet:
		return "hints do not count with policy Local"
	case s.hinted && s.hints == noHints:
		return "hints do not count: a ready endpoint has none, or none is for here"
	}
	return ""
}

// Why explains what Has says, to a human.
func (s Selection) Why(in Set, b *Backend) string {
	switch {
	case b.Loop:
		return "it leads back to Sluice"
	case b.Drained:
		return "drained by an operator"
	case b.Maintenance:
		return "in maintenance, as its weight is 0"
	}
	if in == LocalSet && !b.Local {
		return "on another node"
	}
	better, of := s.ready, ""
	if in == LocalSet {
		better, of = s.localReady, " of this node"
	}
	switch {
	case b.Ready && in == ClusterSet && s.hints != noHints:
		return s.whyHinted(b)
	case b.Ready:
		return "ready"
	case b.servingTerminating() && better:
		return "terminating, and others" + of + " are ready"
	case b.servingTerminating():
		return "terminating, but still serving and no other" + of + " is ready"
	case b.Terminating:
		return "terminating, and no longer serving"
	}
	return "not ready"
}

func (s Selection) whyHinted(b *Backend) string {
	place := "zone"
	if s.hints == hintsNode {
		place = "node"
	}
	if s.hintsAllow(b) {
		return "ready, hinted for this " + place
	}
	return "ready, but hinted for another " + place
}

// Stays reports whether connections that are at b may stay there.
func (b *Backend) Stays() bool { return b.Ready || b.Serving || !b.Terminating }
