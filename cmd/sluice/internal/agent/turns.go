package agent

import (
	"maps"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// turnPorts is how many service ports one turn adds, changes and removes at the most, so that it takes some
// 20 ms; a Service may have 65,535.
const turnPorts = 2048

// turns divides a change that is too large for one turn, so that what others change meanwhile comes in between.
// A Service that needs several turns gets to what it was to become before it turns to what it is to be by then:
// else one that changes all the time would never be done.
type turns struct {
	started bool
	have    []*lb.Service    // as of the last turn
	goal    []*lb.Service    // what that turn led to
	behind  map[lb.Name]bool // the Services of which have is not what goal is
	more    bool             // have is not what was wanted
	going   bool             // the last turn was carried out, and more: the next one need not wait
}

// take returns what the next turn is to make of what is wanted, for which it has room for some changes. The first
// turn makes all of it: nothing is served before, or what has been taken over must not go for a moment.
func (t *turns) take(wanted []*lb.Service, room int) []*lb.Service {
	if !t.started {
		t.started, t.have, t.goal = true, wanted, wanted
		return wanted
	}
	goal := wanted
	if len(t.behind) > 0 {
		goal = make([]*lb.Service, 0, len(wanted))
		merge(t.goal, wanted, func(was, is *lb.Service) { goal = pick(goal, was, is, !t.behind[nameOf(was, is)]) })
	}
	sizes, total := make(map[lb.Name]int), 0
	merge(t.have, goal, func(was, is *lb.Service) {
		if was != is {
			sizes[nameOf(was, is)]++
			total++
		}
	})
	now := goal
	t.behind = nil
	if total > turnPorts {
		left := shareOut(sizes, room)
		t.behind = make(map[lb.Name]bool)
		now = make([]*lb.Service, 0, len(goal))
		merge(t.have, goal, func(was, is *lb.Service) {
			if was == is {
				now = append(now, is)
				return
			}
			name := nameOf(was, is)
			if left[name]--; left[name] < 0 {
				t.behind[name] = true
			}
			now = pick(now, was, is, left[name] >= 0)
		})
	}
	t.have, t.goal, t.more = now, goal, !slices.Equal(now, wanted)
	return now
}

// shareOut divides room among Services that need some: those that need the least get all, and the others equal
// parts, of one at the least.
func shareOut(sizes map[lb.Name]int, room int) map[lb.Name]int {
	names := slices.SortedFunc(maps.Keys(sizes), func(a, b lb.Name) int { return sizes[a] - sizes[b] })
	out := make(map[lb.Name]int, len(names))
	for i, name := range names {
		part := min(sizes[name], max(1, room/(len(names)-i)))
		room -= part
		out[name] = part
	}
	return out
}

// merge calls visit with each service port of two lists that are ordered by ID, as it was and as it is; nil: it is
// in one of them only.
func merge(have, want []*lb.Service, visit func(was, is *lb.Service)) {
	for len(have) > 0 || len(want) > 0 {
		order := 0
		switch {
		case len(have) == 0:
			order = 1
		case len(want) == 0:
			order = -1
		case have[0] != want[0]:
			order = have[0].ID.Compare(want[0].ID)
		}
		var was, is *lb.Service
		if order <= 0 {
			was, have = have[0], have[1:]
		}
		if order >= 0 {
			is, want = want[0], want[1:]
		}
		visit(was, is)
	}
}

// pick appends a service port as it is, or as it was, if it is there.
func pick(list []*lb.Service, was, is *lb.Service, changed bool) []*lb.Service {
	if !changed {
		is = was
	}
	if is == nil {
		return list
	}
	return append(list, is)
}

func nameOf(was, is *lb.Service) lb.Name {
	if is != nil {
		return is.ID.Service()
	}
	return was.ID.Service()
}
