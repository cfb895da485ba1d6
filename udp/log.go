package udp

import (
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
)

// logging is what is noted of a flow that is logged when it ends (lb.Policies.AccessLog).
type logging struct {
	errors    bool // only if it has not ended as it should
	end       lb.End
	service   lb.ID
	backend   netip.AddrPort
	why       lb.Why
	firstByte time.Duration // below 0: it has not come
}

// begin notes a flow that has just been given its choice, if it is to be logged.
func (f *flow) begin() {
	sh, p := f.ln.shard, f.choice.Policies()
	some, onlyErrors := p.Logs()
	if sh.server.Log == nil || !some {
		return
	}
	f.log = &logging{errors: onlyErrors || !sh.sample.Next(sh.server.LogSample), service: f.choice.Service(),
		backend: f.choice.Backend(), why: f.ln.shard.why, firstByte: -1}
}

// because notes why the flow ends next. The first reason holds.
func (f *flow) because(end lb.End) {
	if f.log != nil && f.log.end == lb.Normal {
		f.log.end = end
	}
}

// end logs the flow.
func (f *flow) end() {
	n := f.log
	if n == nil {
		return
	}
	if n.errors && n.end == lb.Normal {
		return
	}
	e := look.Ended{Info: f.info(eventloop.Now()), End: n.end, Wait: -1, Connect: -1, FirstByte: n.firstByte,
		Why: n.why}
	e.Service, e.Backend, e.Loop = n.service, n.backend, f.ln.shard.index
	if f.choice.Valid() {
		e.Backend = f.choice.Backend() // another may have taken its place
	}
	if f.tried != nil {
		e.Tried = f.tried.Backends()
	}
	f.ln.shard.server.Log(&e)
}

// info says what there is of a flow now.
func (f *flow) info(now int64) look.Info {
	i := look.Info{Protocol: lb.UDP, Client: f.key.client, Asked: f.destination(), Service: f.choice.Service(),
		Backend: f.choice.Backend(), State: look.Unreplied, Age: time.Duration(now - f.born),
		Idle: time.Duration(now - f.active), Known: true, Failed: f.attempts}
	i.In, i.Out = f.meter.Total()
	switch {
	case f.leaving != 0:
		i.State = look.Leaving
	case f.replied:
		i.State = look.Established
	}
	return i
}
