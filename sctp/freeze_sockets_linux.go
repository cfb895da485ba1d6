package sctp

import (
	"errors"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

func (e *sockets) restore(from Stats) { e.hubs[0].count.restore(from) }

func (e *sockets) hold(h *Holding) {
	for f, g := range e.gates {
		l := Listening{Frontend: f, Addr: g.addr}
		for a, d := range g.doors {
			l.Doors = append(l.Doors, Door{Addr: a, FD: d.fd})
		}
		h.Listening = append(h.Listening, l)
	}
}

func (e *sockets) freeze(visit func(*Frozen) error) error {
	for _, h := range e.hubs {
		h.takeIn() // what is on its way from one loop to another is served, to be frozen like the rest
		for p := h.pairs.next; p != &h.pairs; p = p.next {
			f := p.freeze()
			if err := visit(&f); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pair) freeze() Frozen {
	p.shared = true
	if p.choice.Valid() {
		p.meter.Tell(p.choice)
	}
	f := Frozen{Service: p.choice.Service(), Addr: p.choice.Backend(), Sockets: &Sockets{
		Client: p.client.fd, Backend: p.backend.fd,
		ToBackend: frozenWay(&p.client, &p.backend), ToClient: frozenWay(&p.backend, &p.client),
	}}
	if d := p.dial; d != nil {
		f.Left = p.hub.loop.Left(&d.timer)
		f.Dial = &Dialling{Frontend: d.flow.Frontend, Client: d.flow.Client, Tried: d.tried.Backends(), Attempt: d.attempt,
			Shortages: d.shortages, In: d.streams.in, Out: d.streams.out}
	} else {
		f.Idle = time.Duration(eventloop.Now() - p.active)
	}
	return f
}

// frozenWay returns what there is to know of the direction from one end to the other.
func frozenWay(from, to *end) Way {
	return Way{EOF: from.eof, Shut: to.shut, Partial: from.partial,
		Whole: to.whole, Stream: to.with.stream, Flags: to.with.flags, PPID: to.with.ppid}
}

func (e *sockets) adopt(h *Holding, assocs []Frozen, thawed func()) error {
	var errs []error
	for i, hub := range e.hubs {
		errs = append(errs, hub.loop.Do(func() {
			for j := i; j < len(assocs); j += len(e.hubs) {
				if assocs[j].Sockets != nil {
					hub.thaw(&assocs[j])
					thawed()
				}
			}
		}))
	}
	for _, l := range h.Listening {
		g := e.newGate(l.Frontend, l.Addr)
		e.gates[l.Frontend] = g
		for _, at := range l.Doors {
			d := &door{hub: g.hub, fd: at.FD, frontend: l.Frontend}
			g.doors[at.Addr] = d
			var started error
			errs = append(errs, g.hub.loop.Do(func() { started = d.start() }), started)
		}
	}
	return errors.Join(errs...)
}

// thaw makes a pair of f.
func (h *hub) thaw(f *Frozen) {
	if h.srv.Descriptors != nil {
		h.srv.Descriptors.Adopt(2)
	}
	s := f.Sockets
	p := h.newPair(s.Client)
	p.shared = true // the process before may not have ended yet
	p.choice = h.srv.resume(f)
	p.backend.fd = s.Backend
	s.ToBackend.thaw(&p.client, &p.backend)
	s.ToClient.thaw(&p.backend, &p.client)
	if f.Dial != nil {
		p.thawDial(f)
	} else {
		p.active = eventloop.Now() - int64(f.Idle)
		p.watch()
	}
	// What the sockets are ready for is reported as soon as they are watched.
	for _, e := range [...]*end{&p.client, &p.backend} {
		if e.fd < 0 {
			continue
		}
		if err := h.loop.Add(e.fd, e); err != nil {
			h.count.shortages.Add(1)
			p.abort()
			return
		}
	}
}

func (w *Way) thaw(from, to *end) {
	from.eof, to.shut, from.partial = w.EOF, w.Shut, w.Partial
	if len(w.Whole) > 0 {
		to.whole, to.with = w.Whole, info{stream: w.Stream, flags: w.Flags, ppid: w.PPID}
	}
}

// thawDial goes on with an attempt, or with the wait for one.
func (p *pair) thawDial(f *Frozen) {
	h := p.hub
	d := &redial{p: p, attempt: f.Dial.Attempt, shortages: f.Dial.Shortages, streams: status{in: f.Dial.In, out: f.Dial.Out}}
	d.flow, d.tried = h.srv.resumeFlow(f, eventloop.Now())
	d.flow.Tried = &d.tried
	p.dial = d
	h.count.dialling.Add(1)
	h.loop.After(&d.timer, d, f.Left)
}
