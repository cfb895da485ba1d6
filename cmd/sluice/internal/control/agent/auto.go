package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/lb"
)

// Auto is no path but a request: for the cheapest path that has all that a Service requests, by annotations, or by
// flags that are given for all.
const Auto = pathCount

// costs are the paths that Auto takes, the cheapest first: the kernel chooses, or this process for each flow, or it
// relays. IPTables has what NFTables has, so that it is for hosts without that. IPVS is not among them: it takes no
// clients with affinity from another path, and needs iptables beside it.
var costs = []Path{NFTables, IPTables, Queue, Userspace}

// everything is a host that has all paths.
var everything abilities

// cheapest decides the path of a Service that is on Auto. given is what is given for all Services.
func cheapest(s *lb.Service, can *abilities, given *lb.Policies) Choice {
	asked := asking(s, given)
	c := Choice{auto: true, Reason: ByCost, Why: "auto: it has all that is requested, and none costs less"}
	ideal, needs := bestOf(asked, &everything)
	path, _ := bestOf(asked, can)
	switch c.Path = path; {
	case path == None:
		return c
	case path != ideal:
		c.Reason, c.Why = ByHost, fmt.Sprintf("auto: data path %s is not available: %v", ideal, can[ideal])
	case needs != "":
		c.Reason, c.Why = ByPolicy, fmt.Sprintf("auto: the cheapest that has %s", origin(needs, s))
	}
	return c
}

// bestOf returns the cheapest of the available paths that lack least of what a Service requests, and the policy that a
// cheaper one lacks; empty: none does. What endpoints have to hear binds more than others.
func bestOf(s *lb.Service, can *abilities) (best Path, needs string) {
	if binds := policies.NeedsUserspace(s); binds != nil && can[Userspace] == nil {
		return Userspace, binds.Word
	}
	var lacks []policies.Shortfall
	for _, path := range costs {
		if can[path] != nil {
			continue
		}
		missing := policies.Shortfalls(s, path.String())
		if best != None && len(missing) >= len(lacks) {
			continue
		}
		for _, m := range lacks {
			if !slices.ContainsFunc(missing, func(n policies.Shortfall) bool { return n.Policy == m.Policy }) {
				needs = m.Policy
				break
			}
		}
		if best, lacks = path, missing; len(missing) == 0 {
			break
		}
	}
	return best, needs
}

// asking returns a Service that requests also what is given for all.
func asking(s *lb.Service, given *lb.Policies) *lb.Service {
	if *given == (lb.Policies{}) {
		return s
	}
	asked := *s
	asked.Policies = s.Requests().Or(given)
	return &asked
}

// origin says what requests a policy.
func origin(word string, s *lb.Service) string {
	p := policies.Find(word)
	switch {
	case p == nil:
		return "weights, as its endpoints have them"
	case p.Get(s.Requests()) != "":
		return fmt.Sprintf("%s (annotation %s)", word, p.Annotation())
	default:
		return fmt.Sprintf("%s (%s)", word, p.ForAll())
	}
}

// settling is how Auto keeps a Service from moving with each of many changes. Where it requests more it moves at once;
// to a cheaper path it moves when less has been requested for a while, as the HorizontalPodAutoscaler does.
type settling struct {
	window time.Duration
	now    func() int64 // the clock of balancer.Flow, in nanoseconds
}

// steady returns the choice that holds for a Service that had one and would have another: the one it had, if that is to
// last for longer. It is never kept on a path that this host has not, or that lacks more.
func (w *settling) steady(s *lb.Service, was, would Choice, env *environment) Choice {
	if w.window == 0 || !was.auto || !would.auto || would.Offloaded || was.Reason == ByHost ||
		slices.Index(costs, would.Path) < 0 || slices.Index(costs, would.Path) >= slices.Index(costs, was.Path) {
		return would
	}
	asked := asking(s, &env.given)
	lacks := func(path Path) int { return len(policies.Shortfalls(asked, path.String())) }
	if can := env.available(s); can[was.Path] != nil || lacks(was.Path) > lacks(would.Path) {
		return would
	}
	now, until := w.now(), was.until
	switch {
	case until == 0:
		until = now + int64(w.window)
	case now >= until:
		return would
	}
	return Choice{Path: was.Path, Reason: BySettling, auto: true, until: until,
		Why: fmt.Sprintf("auto: until nothing has requested it for %s (--auto-stabilization); then data path %s",
			w.window, would.Path)}
}

// Kept is a Service port that Auto serves in user space, because it requests what no cheaper path has.
type Kept struct {
	Service lb.ID
	Why     string
}

// kept reports whether Auto has user space serve a piece from this change on, because of a policy.
func (c *change) kept() bool {
	is := func(x *Choice) bool { return x.auto && x.Path == Userspace && x.Reason == ByPolicy }
	return is(&c.now.choice) && (!is(&c.old.choice) || c.now.choice.Why != c.old.choice.Why)
}

// settles returns when the first Service that waits may move; 0: none waits.
func (p *planner) settles() (first int64) {
	for _, x := range p.dirty {
		if until := x.piece.choice.until; until != 0 && (first == 0 || until < first) {
			first = until
		}
	}
	return first
}
