package socket

import (
	"errors"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

// Hold adds the sockets of the engine to h.
func (e *Engine) Hold(h *engine.Holding) {
	for f, front := range e.frontends {
		l := engine.Listening{Frontend: f, Addr: front.addr}
		for a, member := range front.listeners {
			l.Sockets = append(l.Sockets, engine.ListeningSocket{Addr: a, FD: member.FD})
		}
		h.Listening = append(h.Listening, l)
	}
}

// Freeze passes every association to visit, on halted loops.
func (e *Engine) Freeze(visit func(*engine.Frozen) error) error {
	for _, sh := range e.shards {
		sh.servePosted() // what is on its way from one loop to another is served, to be frozen like the rest
		for a := range sh.All() {
			f := a.freeze()
			if err := visit(&f); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *assoc) freeze() engine.Frozen {
	kept := a.sh.FreezeKept(a)
	a.Shared = true
	a.Meter.Flush(a.Choice)
	f := engine.Frozen{Service: a.Choice.Service(), Addr: a.Choice.Backend(), Kept: kept, Sockets: &engine.Sockets{
		Asked: a.asked, Client: a.client.FD(), Backend: a.backend.FD(),
		ToBackend: frozenWay(&a.client, &a.backend), ToClient: frozenWay(&a.backend, &a.client),
	}}
	if d := a.sh.FreezeDial(a); d != nil {
		f.Left = d.Left
		f.Dial = &engine.Dialling{Dialling: *d, In: a.streams.In, Out: a.streams.Out}
	}
	return f
}

// frozenWay returns what there is to know of the direction from one side to the other.
func frozenWay(from, to *side) engine.Way {
	return engine.Way{EOF: from.EOF, Shut: to.Shut, Partial: from.partial,
		Whole: to.whole, Stream: to.with.Stream, Flags: to.with.Flags, PPID: to.with.PPID}
}

// Adopt goes on with what another engine has held and frozen.
func (e *Engine) Adopt(h *engine.Holding, assocs []engine.Frozen, thawed func()) error {
	ours := session.NewSources(nil)
	for i := range assocs {
		if s := assocs[i].Sockets; s != nil {
			ours.Add(s.Backend, assocs[i].Addr)
		}
	}
	errs := []error{e.cfg.Loops.Each(func(i int) {
		for j := i; j < len(assocs); j += len(e.shards) {
			if assocs[j].Sockets != nil {
				e.shards[i].thaw(&assocs[j], ours)
				thawed()
			}
		}
	})}
	for _, l := range h.Listening {
		front := e.newFrontend(l.Frontend, l.Addr)
		e.frontends[l.Frontend] = front
		for _, at := range l.Sockets {
			member := front.listener(at.FD)
			front.listeners[at.Addr] = member
			e.cfg.Descriptors.Listening(1)
			errs = append(errs, member.Start())
		}
	}
	return errors.Join(errs...)
}

// thaw makes an association of f.
func (sh *shard) thaw(f *engine.Frozen, ours *session.Sources) {
	s := f.Sockets
	a := sh.newAssoc(s.Client, s.Backend)
	a.asked = s.Asked
	thawWay(&s.ToBackend, &a.client, &a.backend)
	thawWay(&s.ToClient, &a.backend, &a.client)
	if len(s.ToClient.Partial)+len(s.ToClient.Whole) > 0 {
		a.HasSpoken()
	}
	var dial *session.Dialling
	if d := f.Dial; d != nil {
		a.streams = kernel.Status{In: d.In, Out: d.Out}
		dial = &d.Dialling
		dial.Left = f.Left
	}
	sh.Thaw(a, f.Service, f.Addr, dial, f.Kept, [...]eventloop.Handler{&a.client, &a.backend}, ours)
}

func thawWay(w *engine.Way, from, to *side) {
	from.EOF, to.Shut, from.partial = w.EOF, w.Shut, w.Partial
	if len(w.Whole) > 0 {
		to.whole, to.with = w.Whole, kernel.Info{Stream: w.Stream, Flags: w.Flags, PPID: w.PPID}
	}
}
