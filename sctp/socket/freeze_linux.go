package socket

import (
	"errors"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

// Restore adds the counters of another engine.
func (e *Engine) Restore(from engine.Stats) { e.hubs[0].count.Restore(from) }

// Hold adds the sockets of the engine to h.
func (e *Engine) Hold(h *engine.Holding) {
	for f, g := range e.gates {
		l := engine.Listening{Frontend: f, Addr: g.addr}
		for a, d := range g.doors {
			l.Doors = append(l.Doors, engine.Door{Addr: a, FD: d.fd})
		}
		h.Listening = append(h.Listening, l)
	}
}

// Freeze passes every association to visit, on halted loops.
func (e *Engine) Freeze(visit func(*engine.Frozen) error) error {
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

func (p *pair) freeze() engine.Frozen {
	p.shared = true
	if p.choice.Valid() {
		p.meter.Tell(p.choice)
	}
	f := engine.Frozen{Service: p.choice.Service(), Addr: p.choice.Backend(), Sockets: &engine.Sockets{
		Client: p.client.fd, Backend: p.backend.fd,
		ToBackend: frozenWay(&p.client, &p.backend), ToClient: frozenWay(&p.backend, &p.client),
	}}
	if d := p.dial; d != nil {
		f.Left = p.hub.loop.Left(&d.timer)
		f.Dial = &engine.Dialling{Frontend: d.flow.Frontend, Client: d.flow.Client, Tried: d.tried.Backends(), Attempt: d.attempt,
			Shortages: d.shortages, In: d.streams.In, Out: d.streams.Out}
	} else {
		f.Idle = time.Duration(eventloop.Now() - p.active)
	}
	return f
}

// frozenWay returns what there is to know of the direction from one end to the other.
func frozenWay(from, to *end) engine.Way {
	return engine.Way{EOF: from.eof, Shut: to.shut, Partial: from.partial,
		Whole: to.whole, Stream: to.with.Stream, Flags: to.with.Flags, PPID: to.with.PPID}
}

// Adopt goes on with what another engine has held and frozen.
func (e *Engine) Adopt(h *engine.Holding, assocs []engine.Frozen, thawed func()) error {
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
func (h *hub) thaw(f *engine.Frozen) {
	if h.cfg.Descriptors != nil {
		h.cfg.Descriptors.Adopt(2)
	}
	s := f.Sockets
	p := h.newPair(s.Client)
	p.shared = true // the process before may not have ended yet
	p.choice = h.cfg.Resume(f)
	p.backend.fd = s.Backend
	thawWay(&s.ToBackend, &p.client, &p.backend)
	thawWay(&s.ToClient, &p.backend, &p.client)
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
			h.count.Shortages.Add(1)
			p.abort()
			return
		}
	}
}

func thawWay(w *engine.Way, from, to *end) {
	from.eof, to.shut, from.partial = w.EOF, w.Shut, w.Partial
	if len(w.Whole) > 0 {
		to.whole, to.with = w.Whole, kernel.Info{Stream: w.Stream, Flags: w.Flags, PPID: w.PPID}
	}
}

// thawDial goes on with an attempt, or with the wait for one.
func (p *pair) thawDial(f *engine.Frozen) {
	h := p.hub
	d := &redial{p: p, attempt: f.Dial.Attempt, shortages: f.Dial.Shortages, streams: kernel.Status{In: f.Dial.In, Out: f.Dial.Out}}
	d.flow, d.tried = h.cfg.ResumeFlow(f, eventloop.Now())
	d.flow.Tried = &d.tried
	p.dial = d
	h.count.Dialling.Add(1)
	h.loop.After(&d.timer, d, f.Left)
}
