package tcp

import (
	"time"

	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

// Look passes to visit connections of a loop that are looked for, from a descriptor on, and returns the one to go on
// with, look.End if there are no more. It keeps the loop for look.Budget at the most. A Server without loops, and a
// loop that there is not, have none.
func (s *Server) Look(loop, from int, q *look.Query, visit func(look.Info) (more bool)) (next int, err error) {
	next = look.End
	s.mu.Lock()
	shards := s.shards
	s.mu.Unlock()
	if loop < len(shards) {
		sh := shards[loop]
		err = sh.Loop.Do(func() { next = sh.Look(from, lb.TCP, q, visit) })
	}
	return next, err
}

// Describe adds what the kernel knows of a client's socket: what it has asked for, and what TCP has measured
// (session.Owner).
func (c *conn) Describe(i *look.Info) {
	fd := c.client.FD()
	if ask := c.sh.OriginalDst; ask != nil && !i.Asked.IsValid() {
		i.Asked, _ = ask(fd)
	}
	if !i.Asked.IsValid() { // it has not been steered
		i.Asked, _ = socket.Local(fd)
	}
	t, err := socket.TCP(fd)
	if err != nil {
		return
	}
	i.RTT = time.Duration(t.Rtt) * time.Microsecond
	i.Retransmits = t.Total_retrans
	i.Idle, i.Known = time.Duration(min(t.Last_data_recv, t.Last_data_sent))*time.Millisecond, true
}
