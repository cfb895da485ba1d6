package socket

import (
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

// look passes associations to visit (engine.Part).
func (sh *shard) look(from int, q *look.Query, visit func(look.Info) (more bool)) (next int) {
	return sh.Look(from, lb.SCTP, q, visit)
}

// Describe adds what the client has asked for, or the address that it has its association with (session.Owner).
func (a *assoc) Describe(i *look.Info) {
	if i.Asked.IsValid() {
		return
	}
	if ask := a.sh.OriginalDst; ask != nil {
		i.Asked, _ = ask(a.client.FD())
	}
	if !i.Asked.IsValid() {
		i.Asked, _ = socket.Local(a.client.FD())
	}
}
