package agent

import (
	"slices"
	"unsafe"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// turnPorts is how many service ports one turn adds, changes and removes at the most, so that it takes some
// 50 ms; a Service may have 65,535. Each turn looks at all Services, so that smaller ones take longer together.
const turnPorts = 4096

// turns divides a change that is too large for one turn, so that what others change meanwhile comes in between.
// A Service that needs several turns gets to what it was to become before it turns to what it is to be by then:
// else one that changes all the time would never be done.
type turns struct {
	started bool
	have    []*lb.Service    // as of the last turn
	goal    []*lb.Service    // what that turn led to
	behind  map[lb.Name]bool // the Services of which have is not what goal is
	left    []*part          // what they have to go, in the order of goal
	more    bool             // have is not what was wanted
	going   bool             // the last turn was carried out, and more: the next one follows at once
	done    func()           // what Config.Large has returned; nil: it was not called

	rooms [3][]*lb.Service // what flat has returned: one is neither have nor goal, and those that are not are empty
}

// note calls large when a change needs another turn, and what that has returned when one needs none.
func (t *turns) note(large func() (done func())) {
	switch {
	case !t.more:
		t.end()
	case t.done == nil && large != nil:
		t.done = large()
	}
}

func (t *turns) end() {
	if t.done != nil {
		t.done()
		t.done = nil
	}
}

// flat returns what is wanted as a slice, for take, in memory that no turn has any more: else each change of 100,000
// Services would leave 0.8 MB to the collector.
func (t *turns) flat(wanted lists.List[*lb.Service]) []*lb.Service {
	room := &t.rooms[slices.IndexFunc(t.rooms[:], func(room []*lb.Service) bool { return !t.has(room) })]
	*room = wanted.AppendTo((*room)[:0])
	return *room
}

// has reports whether a room is have or goal.
func (t *turns) has(room []*lb.Service) bool {
	data := unsafe.SliceData(room)
	return cap(room) > 0 && (data == unsafe.SliceData(t.have) || data == unsafe.SliceData(t.goal))
}

// empty keeps no Service in memory that is in neither have nor goal.
func (t *turns) empty() {
	for _, room := range t.rooms {
		if !t.has(room) {
			clear(room[:cap(room)])
		}
	}
}

// take returns what the next turn is to make of what is wanted, for which it has room for some changes. The first
// turn makes all of it: nothing is served before, or what has been taken over must not go for a moment.
func (t *turns) take(wanted []*lb.Service, room int) []*lb.Service {
	if !t.started {
		t.started, t.have, t.goal = true, wanted, wanted
		return wanted
	}
	goal, parts := wanted, t.left
	if len(t.behind) > 0 && !slices.Equal(t.goal, wanted) {
		goal = make([]*lb.Service, 0, len(wanted))
		keep := func(same []*lb.Service) { goal = append(goal, same...) }
		merge(t.goal, wanted, keep, func(was, is *lb.Service) {
			goal = pick(goal, was, is, !t.behind[nameOf(was, is)])
		})
		parts = nil
	}
	if len(parts) == 0 {
		parts = partsOf(t.have, goal)
	}
	total := 0
	for _, p := range parts {
		total += p.size
	}
	now := goal
	t.behind, t.left = nil, nil
	if total > turnPorts {
		now = t.divide(goal, parts, room)
	}
	t.have, t.goal, t.more = now, goal, !slices.Equal(now, wanted)
	t.empty()
	return now
}

// part is what one Service has of a change, and what a turn makes of that.
type part struct {
	of         lb.Name
	size, turn int // service ports
}

// partsOf returns what the Services have that are not the same in two lists, in the order of these.
func partsOf(have, want []*lb.Service) (parts []*part) {
	merge(have, want, func([]*lb.Service) {}, func(was, is *lb.Service) {
		name := nameOf(was, is)
		if n := len(parts); n == 0 || parts[n-1].of != name {
			parts = append(parts, &part{of: name})
		}
		parts[len(parts)-1].size++
	})
	return parts
}

// shareOut divides room among Services: those that need the least get all, and the others equal parts, of one at
// the least.
func shareOut(parts []*part, room int) {
	parts = slices.SortedFunc(slices.Values(parts), func(a, b *part) int { return a.size - b.size })
	for i, p := range parts {
		p.turn = min(p.size, max(1, room/(len(parts)-i)))
		room -= p.turn
	}
}

// divide returns have with a part of what leads to goal.
func (t *turns) divide(goal []*lb.Service, parts []*part, room int) []*lb.Service {
	shareOut(parts, room)
	t.behind = make(map[lb.Name]bool)
	for _, p := range parts {
		if p.size -= p.turn; p.size > 0 {
			t.behind[p.of] = true
			t.left = append(t.left, p)
		}
	}
	now := make([]*lb.Service, 0, max(len(t.have), len(goal)))
	merge(t.have, goal, func(same []*lb.Service) { now = append(now, same...) }, func(was, is *lb.Service) {
		for name := nameOf(was, is); parts[0].of != name; {
			parts = parts[1:]
		}
		parts[0].turn--
		now = pick(now, was, is, parts[0].turn >= 0)
	})
	return now
}

// merge compares two lists of service ports that are ordered by ID. It calls stay with those that follow each other in
// both, and change with each other one, as it was and as it is; nil: it is in one of them only.
func merge(have, want []*lb.Service, stay func([]*lb.Service), change func(was, is *lb.Service)) {
	for {
		same := 0
		for same < min(len(have), len(want)) && have[same] == want[same] {
			same++
		}
		stay(have[:same])
		if have, want = have[same:], want[same:]; len(have) == 0 || len(want) == 0 {
			break
		}
		gone, come := 0, 0
		switch order := have[0].ID.Compare(want[0].ID); {
		case order < 0:
			gone = countBelow(have, want[0].ID)
		case order > 0:
			come = countBelow(want, have[0].ID)
		default:
			change(have[0], want[0])
			have, want = have[1:], want[1:]
		}
		for _, s := range have[:gone] {
			change(s, nil)
		}
		for _, s := range want[:come] {
			change(nil, s)
		}
		have, want = have[gone:], want[come:]
	}
	for _, s := range have {
		change(s, nil)
	}
	for _, s := range want {
		change(nil, s)
	}
}

// countBelow returns how many service ports of an ordered list, whose first is below an ID, are. It costs the logarithm
// of that number.
func countBelow(list []*lb.Service, id lb.ID) int {
	low, high := 1, 2
	for high < len(list) && list[high].ID.Compare(id) < 0 {
		low, high = high, 2*high
	}
	more, _ := slices.BinarySearchFunc(list[low:min(high, len(list))], id, func(s *lb.Service, id lb.ID) int {
		return s.ID.Compare(id)
	})
	return low + more
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
