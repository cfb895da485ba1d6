package report

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/look"
)

const (
	// partSize is how many connections are kept for the next pages of a list. The kernel is asked for all entries for
	// each part.
	partSize = 16384

	// partAge is how long a part is of use.
	partAge = 2 * time.Second
)

// part is what is open, in the order of the numbers that the kernel gives entries, from one on.
type part struct {
	query look.Query
	from  int
	next  int // where the next part begins; look.End: this is the last
	all   []numbered
	at    time.Time
}

type numbered struct {
	id int
	look.Info
}

// Look passes what is open to visit, from a position on, until that wants no more, and returns where to go on, or
// look.End. Only the first loop has anything: it is not a loop of ours that is asked.
func (f *Flows) Look(loop, from int, q *look.Query, visit func(look.Info) (more bool)) (next int, err error) {
	if loop > 0 || !f.InUse() {
		return look.End, nil
	}
	f.looking.Lock()
	defer f.looking.Unlock()
	p := &f.part
	if p.query != *q || from < p.from || p.next != look.End && from >= p.next || time.Since(p.at) > partAge {
		if *p, err = f.list(from, q); err != nil {
			return 0, err
		}
	}
	first, _ := slices.BinarySearchFunc(p.all, from, func(n numbered, id int) int { return cmp.Compare(n.id, id) })
	for i := first; i < len(p.all); i++ {
		n := &p.all[i]
		same := i+1 < len(p.all) && p.all[i+1].id == n.id // pages begin between numbers
		if !visit(n.Info) && !same {
			if i+1 < len(p.all) || p.next != look.End {
				return n.id + 1, nil
			}
			break
		}
	}
	next = p.next
	if next == look.End {
		*p = part{} // that was all
	}
	return next, nil
}

// list asks the kernel.
func (f *Flows) list(from int, q *look.Query) (p part, err error) {
	h, err := f.lookAround()
	if err != nil {
		return p, err
	}
	families := []bool{false, true}
	if q.Client.IsValid() {
		families = []bool{q.Client.Addr().Is6() && !q.Client.Addr().Is4In6()}
	} else if q.Backend.Addr().IsValid() {
		families = []bool{q.Backend.Addr().Is6()}
	}
	now, limit := time.Now(), look.End // no part has more than the limit, if there is one
	p = part{query: *q, from: from, next: look.End, at: now}
	for _, ipv6 := range families {
		var some []numbered
		before := limit
		err := flows.Each(nil, ipv6, func() { some, limit = some[:0], before }, func(e *flows.Entry) {
			if id := int(e.ID); id >= from && (limit == look.End || id < limit) {
				if i, ok := f.open(e, h, q, now); ok {
					some = append(some, numbered{id, i})
				}
			}
			if len(some) >= 2*partSize {
				some, limit = cut(some)
			}
		})
		if err != nil {
			return p, err
		}
		p.all = append(p.all, some...)
	}
	if limit != look.End { // the first family may have more
		p.all = slices.DeleteFunc(p.all, func(n numbered) bool { return n.id >= limit })
	}
	if slices.SortFunc(p.all, byID); len(p.all) > partSize {
		p.all, limit = cut(p.all)
	}
	p.next = limit
	return p, nil
}

func byID(a, b numbered) int { return cmp.Compare(a.id, b.id) }

// cut keeps those with the lowest numbers, and returns the number from which on there are others.
func cut(all []numbered) ([]numbered, int) {
	slices.SortFunc(all, byID)
	limit := all[partSize].id
	n, _ := slices.BinarySearchFunc(all, limit, func(n numbered, id int) int { return cmp.Compare(n.id, id) })
	return slices.Delete(all, n, len(all)), limit
}

// open says what an entry is, if it is open, and looked for.
func (f *Flows) open(e *flows.Entry, h *here, q *look.Query, now time.Time) (i look.Info, ok bool) {
	if q.ByProtocol && e.Protocol != q.Protocol || q.Client.IsValid() && !q.Client.Contains(e.Src.Addr().Unmap()) {
		return i, false
	}
	if i, _, ok = f.info(e, h); !ok || i.State == "" || !q.Has(&i) {
		return i, false
	}
	if !e.Begun.IsZero() {
		i.Age = max(now.Sub(e.Begun), 0)
	}
	return i, true
}
