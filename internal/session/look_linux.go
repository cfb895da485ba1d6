package session

import (
	"net/netip"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

// lookEvery is how many descriptors are looked at between two looks at the clock.
const lookEvery = 16

// Look passes the connections that are looked for to visit, until that returns false, in the order of their clients'
// descriptors, of which from is the first, for look.Budget at the most. It returns the descriptor to go on with, or
// look.End. One whose Service has not had its turn to dial yet is not found.
func (sh *Shard[C]) Look(from int, protocol lb.Protocol, q *look.Query, visit func(look.Info) (more bool)) (next int) {
	now, seen := eventloop.Now(), 0
	return sh.Loop.Walk(from, func(fd int, h eventloop.Handler) bool {
		// Else it is a listener, or another server's.
		if s, ok := h.(interface{ Owner() C }); ok && !sh.lookAt(s.Owner(), fd, protocol, q, visit, now) {
			return false
		}
		seen++
		return seen%lookEvery != 0 || eventloop.Now()-now < look.Budget
	})
}

// lookAt looks at a connection, unless fd is its backend's descriptor. False: visit wants no more.
func (sh *Shard[C]) lookAt(c C, fd int, protocol lb.Protocol, q *look.Query, visit func(look.Info) bool,
	now int64) bool {
	if _, client, _ := c.Parts(); client.FD() != fd {
		return true
	}
	i := look.Info{Protocol: protocol}
	if sh.describe(c, &i, now); !q.Has(&i) {
		return true
	}
	finish(c, &i)
	return visit(i)
}

// describe says of c what costs no system call, by which it may be looked for.
func (sh *Shard[C]) describe(c C, i *look.Info, now int64) {
	conn := c.Base()
	_, client, backend := c.Parts()
	i.Service, i.Backend, i.Age = conn.Choice.Service(), conn.Choice.Backend(), conn.born.Age(now)
	i.Client = netip.AddrPortFrom(conn.Claim.Client(), 0)
	i.In, i.Out = conn.Meter.Total()
	d := conn.dial
	switch {
	case d == nil && (client.EOF || backend.EOF):
		i.State = look.HalfClosed
	case d == nil:
		i.State = look.Established
	case d.held.Valid():
		i.State = look.Held
	case d.queued():
		i.State = look.Queued
	default:
		i.State = look.Dialling
	}
	if d == nil {
		return
	}
	i.Failed, i.Asked = d.ladder.attempt, d.ladder.flow.Frontend.Addr
	if owner := sh.LB.Table().Owner(d.ladder.flow.Frontend); owner != nil {
		i.Service = *owner
	}
}

// finish adds what costs system calls.
func finish[C Owner[C]](c C, i *look.Info) {
	_, client, _ := c.Parts()
	if peer, err := socket.Peer(client.FD()); err == nil { // else the client has gone
		i.Client = peer
	}
	c.Describe(i)
}
