package udp

import (
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
)

// lookEvery is how many flows are looked at between two looks at the clock.
const lookEvery = 64

// Look passes to visit flows of a loop that are looked for, from a descriptor on, and returns the one to go on with,
// look.End if there are no more. It keeps the loop for look.Budget at the most. A Server without loops, and a loop that
// there is not, have none; nor do clients that are only remembered.
func (s *Server) Look(loop, from int, q *look.Query, visit func(look.Info) (more bool)) (next int, err error) {
	next = look.End
	s.mu.Lock()
	shards := s.shards
	s.mu.Unlock()
	if s.Loops != nil && loop < len(shards) {
		sh := shards[loop]
		err = sh.loop.Do(func() { next = sh.look(from, q, visit) })
	}
	return next, err
}

func (sh *shard) look(from int, q *look.Query, visit func(look.Info) (more bool)) (next int) {
	now, seen := eventloop.Now(), 0
	return sh.loop.Walk(from, func(_ int, h eventloop.Handler) bool {
		if f, ok := h.(*flow); ok && f.ln.shard == sh {
			if i := f.info(now); q.Has(&i) && !visit(i) {
				return false
			}
		}
		seen++
		return seen%lookEvery != 0 || eventloop.Now()-now < look.Budget
	})
}
