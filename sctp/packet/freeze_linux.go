package packet

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/sctp/engine"
)

// Hold adds the sockets of the engine to h.
func (e *Engine) Hold(h *engine.Holding) {
	h.Shares = len(e.shards)
	for f, addr := range e.listeners {
		h.Listening = append(h.Listening, engine.Listening{Frontend: f, Addr: addr})
	}
	for i, sh := range e.shards {
		// Only Listen, which waits for Server.mu, opens one for an address family that has
		// none: backends have that of their frontend.
		_ = sh.loop.Do(func() {
			for _, sock := range sh.sockets {
				h.Raw = append(h.Raw, engine.Raw{Share: i, IPv6: sock.ipv6, FD: sock.fd, Router: sock.router})
			}
		})
	}
}

// Freeze passes every association to visit, on halted loops.
func (e *Engine) Freeze(visit func(*engine.Frozen) error) error {
	for _, sh := range e.shards {
		for _, g := range []*assocList{&sh.dialling, &sh.open, &sh.over} {
			for a := range g.all() {
				f := a.freeze()
				if err := visit(&f); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (a *assoc) freeze() engine.Frozen {
	a.meter.Flush(a.choice)
	h := &a.handshake
	p := &engine.Packets{
		Client: a.client.freeze(), Tags: a.tags,
		Asked: h.asked, Offered: h.offered[:], Next: int(h.next), Echoed: h.echoed,
		Phase: int(a.phase), Counted: a.counted, ClientShut: a.clientShut, Asking: h.since,
	}
	if a.backend.a != nil {
		p.Backend = a.backend.freeze()
	}
	f := engine.Frozen{Service: a.choice.Service(), Addr: a.choice.Backend(),
		Kept: session.Kept{Born: a.born, Active: a.active, Counted: a.claim.CountsClient()},
		Left: a.sh.loop.Left(&a.timer), Packets: p}
	f.Kept.In, f.Kept.Out = a.meter.Total()
	if a.note != nil {
		f.Kept.Why = a.note.why
	}
	if d := a.dial; d != nil {
		f.Dial = &engine.Dialling{Init: d.init, Hops: d.hops, Dialling: d.Freeze()}
	}
	return f
}

func (l *side) freeze() engine.Side {
	return engine.Side{Peer: l.peer(), Local: netip.AddrPortFrom(l.local(), l.key.localPort), Scope: l.key.scope}
}

// Adopt goes on with what another engine has held and frozen.
func (e *Engine) Adopt(h *engine.Holding, assocs []engine.Frozen, thawed func()) error {
	for _, l := range h.Listening {
		e.listeners[l.Frontend] = l.Addr
	}
	shares, looping := make([][]*engine.Frozen, len(e.shards)), make([][]*assoc, len(e.shards))
	ours := session.NewSources(nil)
	for i := range assocs {
		if p := assocs[i].Packets; p != nil {
			ours.Note(p.Backend.Local, p.Backend.Peer)
			share := shareOf(p.Client.Peer.Port(), p.Client.Local.Port(), len(e.shards))
			shares[share] = append(shares[share], &assocs[i])
		}
	}
	var errs []error
	for i, sh := range e.shards {
		errs = append(errs, sh.loop.Do(func() {
			for _, f := range shares[i] {
				if a := sh.thaw(f); a != nil && sh.leadsBack(f, ours) {
					looping[i] = append(looping[i], a)
				}
				thawed()
			}
			for f, addr := range e.listeners {
				sh.listeners[keyOf(addr)] = f
			}
		}))
	}
	// Packets are read only now, since one of an association that is not there yet would
	// be answered with an ABORT.
	for _, raw := range h.Raw {
		if raw.Share >= len(e.shards) {
			err := fmt.Errorf("a raw socket of share %d of %d", raw.Share, len(e.shards))
			errs = append(errs, err, closeRaw(raw))
			continue
		}
		sh := e.shards[raw.Share]
		if err := sh.loop.Do(func() { errs = append(errs, sh.adopt(raw)) }); err != nil {
			errs = append(errs, err)
		}
	}
	for i, sh := range e.shards { // there are sockets now by which to tell both sides
		errs = append(errs, sh.loop.Do(func() {
			for _, a := range looping[i] {
				a.abort(lb.Killed)
			}
		}))
	}
	return errors.Join(errs...)
}

// leadsBack reports whether an association comes back to us, as session.Shard.Thaw looks at connections.
func (sh *shard) leadsBack(f *engine.Frozen, ours *session.Sources) bool {
	client := &f.Packets.Client
	return ours.Has(client.Peer, client.Local) ||
		f.Addr.IsValid() && sh.cfg.LB.Table().Loops(lb.Frontend{Protocol: lb.SCTP, Addr: f.Addr})
}

// thaw makes an association of f. nil: that is not possible.
func (sh *shard) thaw(f *engine.Frozen) *assoc {
	p := f.Packets
	if (phase(p.Phase) == opening) != (f.Dial != nil && f.Addr.IsValid()) {
		return nil // not a state that Freeze returns
	}
	a := &assoc{sh: sh, born: f.Kept.Born, active: f.Kept.Active, tags: p.Tags,
		phase: phase(p.Phase), counted: p.Counted, clientShut: p.ClientShut, spoke: f.Kept.Out > 0,
		meter: balancer.ResumeMeter(f.Kept.In, f.Kept.Out)}
	a.choice = session.Resume(sh.cfg.LB, f.Service, f.Addr)
	if f.Kept.Why != lb.NotKnown {
		a.note = &note{connect: -1, firstByte: -1, why: f.Kept.Why}
	}
	a.handshake = handshake{asked: p.Asked, since: p.Asking, next: uint8(p.Next), echoed: p.Echoed}
	copy(a.handshake.offered[:], p.Offered)
	if a.phase < ended {
		a.claim = sh.claims.Adopt(f.Service, p.Client.Peer.Addr(), f.Kept.Counted)
	}
	a.client = newSide(a, p.Client.Peer, p.Client.Local, p.Client.Scope)
	sh.sides[a.client.key] = &a.client
	if p.Backend.Peer.IsValid() {
		a.backend = newSide(a, p.Backend.Peer, p.Backend.Local, p.Backend.Scope)
		sh.sides[a.backend.key] = &a.backend
	}
	switch {
	case a.phase >= ended:
		a.phase = ended
		sh.over.add(a)
	case a.phase >= established:
		sh.open.add(a)
	default:
		sh.dialling.add(a)
	}
	sh.enter(a)
	if a.phase != ended {
		sh.count.Active.Add(1)
	}
	if f.Dial != nil {
		d := &dial{init: f.Dial.Init, hops: f.Dial.Hops}
		d.Thaw(&sh.cfg.Config, &f.Dial.Dialling, f.Service, f.Addr)
		a.dial = d
		sh.count.Dialling.Add(1)
	}
	if a.phase != established || sh.cfg.IdleTimeout > 0 {
		sh.loop.After(&a.timer, a, f.Left)
	}
	return a
}

// adopt receives by a raw socket of another shard.
func (sh *shard) adopt(raw engine.Raw) error {
	if sh.sockets[raw.IPv6] != nil {
		return errors.Join(fmt.Errorf("two raw sockets of share %d", raw.Share), closeRaw(raw))
	}
	_, err := sh.newRawSocket(raw.IPv6, raw.FD, raw.Router)
	return err
}

func closeRaw(raw engine.Raw) error { return errors.Join(unix.Close(raw.FD), unix.Close(raw.Router)) }
