package packet

import (
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
)

// lookEvery is how many associations are looked at between two looks at the clock.
const lookEvery = 64

// look passes associations to visit (engine.Part). The position is that in all.
func (sh *shard) look(from int, q *look.Query, visit func(look.Info) (more bool)) (next int) {
	now := eventloop.Now()
	for at := max(from, 0); at < len(sh.all); at++ {
		if a := sh.all[at]; a.phase != ended {
			if i := a.info(now); q.Has(&i) && !visit(i) {
				return at + 1
			}
		}
		if at%lookEvery == lookEvery-1 && eventloop.Now()-now >= look.Budget {
			return at + 1
		}
	}
	return look.End
}

func (a *assoc) info(now int64) look.Info {
	i := look.Info{Protocol: lb.SCTP, Client: a.client.peer(), Service: a.choice.Service(), Backend: a.choice.Backend(),
		State: look.Established, Age: time.Duration(now - a.born), Idle: time.Duration(now - a.active), Known: true}
	i.In, i.Out = a.meter.Total()
	switch {
	case a.phase < established:
		i.State = look.Dialling
	case a.phase > established:
		i.State = look.Closing
	}
	if d := a.dial; d != nil {
		i.Asked = d.Flow().Frontend.Addr
	} else {
		i.Asked = a.sh.asked(&a.client).Addr
	}
	return i
}

// asked returns the frontend that a client's packets come to; not valid: it is none any more.
func (sh *shard) asked(client *side) (f lb.Frontend) {
	local := client.local()
	for _, key := range []frontendKey{{local, client.key.localPort, client.ipv6}, {port: client.key.localPort,
		ipv6: client.ipv6}} {
		if f, ok := sh.listeners[key]; ok {
			return f
		}
	}
	return f
}
