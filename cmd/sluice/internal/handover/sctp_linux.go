package handover

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp"
)

// SCTP associations cross while all stands still, without being copied before: they
// are few, and live for long. Each batch is a part, after messages with the descriptors
// of the associations in it.

// assocsSize is how many bytes of records make a batch, about: it also holds messages
// in hand, of up to sctp.Server.MaxMessage.
const assocsSize = 1 << 20

// The bits of an association's flags.
const (
	assocDialling = 1 << iota
	assocSockets  // of the socket engine
	assocBackend  // it has a socket to the backend
	assocCounted  // Packets.Counted
)

// errNoSCTP refuses a program that would let go of what it does not know.
var errNoSCTP = errors.New("the new program is of a version that cannot take over SCTP associations: " +
	"take a newer one, or stop the running one first, which ends them")

// checkSCTP refuses who cannot take over SCTP, if there is any.
func (g *giver) checkSCTP(h *hello) error {
	if h.SCTP {
		return nil
	}
	if engine, _ := g.SCTP.InUse(); engine == sctp.Auto || len(g.SCTP.Holding().Listening) == 0 && g.SCTP.Stats().Active == 0 {
		return nil
	}
	return errNoSCTP
}

// sendAssocs sends all associations, while the loops are halted.
func (g *giver) sendAssocs(ctx context.Context) error {
	var w writer
	var fds []int
	flush := func() error {
		if len(w.b) == 0 {
			return nil
		}
		for batch := range slices.Chunk(fds, maxFDs) {
			if err := g.ch.send(ctx, assocSocketsMsg, nil, batch...); err != nil {
				return err
			}
		}
		err := g.ch.sendPart(ctx, assocsPart, w.b)
		w.b, fds = w.b[:0], fds[:0]
		return err
	}
	err := g.SCTP.Freeze(func(f *sctp.Frozen) error {
		g.report.Assocs++
		appendAssoc(&w, f)
		if s := f.Sockets; s != nil {
			fds = append(fds, s.Client)
			if s.Backend >= 0 {
				fds = append(fds, s.Backend)
			}
		}
		if len(w.b) > assocsSize {
			return flush()
		}
		return nil
	})
	return errors.Join(err, flush())
}

// assocSockets keeps descriptors of associations that come next.
func (t *Taker) assocSockets(m message) (kept bool, err error) {
	if len(t.assocFDs)+len(m.fds) > maxConns {
		return false, fmt.Errorf("%d descriptors of associations", len(t.assocFDs)+len(m.fds))
	}
	t.assocFDs = append(t.assocFDs, m.fds...)
	return true, nil
}

// assocsCome keeps associations that have stopped, and gives them their descriptors.
func (t *Taker) assocsCome(b []byte) error {
	r := reader{b: b}
	take := func(fd *int) {
		if *fd < 0 || r.err != nil {
			return
		}
		if len(t.assocFDs) == 0 {
			*fd = -1
			r.fail(errors.New("descriptors of associations are missing"))
			return
		}
		*fd, t.assocFDs = t.assocFDs[0], t.assocFDs[1:]
	}
	for r.more() {
		f := readAssoc(&r)
		if len(t.assocs) > maxConns {
			r.fail(errors.New("associations too many"))
		}
		if r.err != nil {
			break
		}
		if s := f.Sockets; s != nil {
			take(&s.Client)
			take(&s.Backend)
		}
		t.assocs = append(t.assocs, f) // also if one is missing: what is there is closed with it
	}
	if r.err == nil && len(t.assocFDs) > 0 {
		r.fail(fmt.Errorf("%d descriptors of no association", len(t.assocFDs)))
	}
	return r.err
}

// closeAssocs closes the descriptors of all that has come of SCTP.
func (t *Taker) closeAssocs() {
	closeAll(t.assocFDs)
	for _, f := range t.assocs {
		if s := f.Sockets; s != nil {
			closeAll([]int{s.Client, s.Backend})
		}
	}
}

// adoptSCTP sets in motion what has come of SCTP, with descriptors that take gives.
func (t *Taker) adoptSCTP(e *State, take func(int) []int, thawed func()) (err error) {
	if held := t.setup.SCTP; held != nil {
		held.FDs(func(fd *int) { *fd = take(1)[0] })
		closeAll(t.spare)
		err = e.SCTP.Adopt(*held, t.assocs, thawed)
		e.SCTP.Restore(t.counts.SCTP)
	}
	closeAll(t.assocFDs) // who gave was killed in the middle of it
	return err
}

// withoutSCTP returns what an agent has in force without SCTP sockets, for they did not
// come: the process before is of a version that cannot give them.
func withoutSCTP(s agent.State) agent.State {
	s.Proxy = slices.DeleteFunc(slices.Clone(s.Proxy), func(p agent.Proxy) bool { return p.Frontend.Protocol == lb.SCTP })
	s.Held = slices.DeleteFunc(slices.Clone(s.Held), func(f lb.Frontend) bool { return f.Protocol == lb.SCTP })
	return s
}

// appendAssoc writes an association, but for its descriptors.
func appendAssoc(w *writer, f *sctp.Frozen) {
	w.record(func(w *writer) {
		w.byte(bit(f.Dial != nil, assocDialling) | bit(f.Sockets != nil, assocSockets) |
			bit(f.Sockets != nil && f.Sockets.Backend >= 0, assocBackend) | bit(f.Packets != nil && f.Packets.Counted, assocCounted))
		w.id(f.Service)
		w.addrPort(f.Addr)
		w.duration(f.Idle)
		w.duration(f.Left)
		if s := f.Sockets; s != nil {
			appendWay(w, &s.ToBackend)
			appendWay(w, &s.ToClient)
		} else {
			appendPackets(w, f.Packets)
		}
		if d := f.Dial; d != nil {
			w.byte(byte(d.Frontend.Protocol))
			w.addrPort(d.Frontend.Addr)
			w.addr(d.Client)
			w.addrPorts(d.Tried)
			w.uint(uint64(d.Attempt))
			w.bytes(d.Init)
			w.uint(uint64(d.Shortages))
			w.uint(uint64(d.In))
			w.uint(uint64(d.Out))
		}
	})
}

func appendWay(w *writer, way *sctp.Way) {
	w.bool(way.EOF)
	w.bool(way.Shut)
	w.bytes(way.Partial)
	w.bytes(way.Whole)
	w.uint(uint64(way.Stream))
	w.uint(uint64(way.Flags))
	w.uint(uint64(way.PPID))
}

func appendPackets(w *writer, p *sctp.Packets) {
	for _, l := range [...]*sctp.Side{&p.Client, &p.Backend} {
		w.addrPort(l.Peer)
		w.addrPort(l.Local)
		w.uint(uint64(l.Scope))
	}
	appendTags(w, p.Tags)
	w.uint(uint64(p.Asked))
	w.duration(p.Waiting)
	w.uint(uint64(len(p.Offered)))
	for _, o := range p.Offered {
		appendTags(w, o)
	}
	w.uint(uint64(p.Next))
	appendTags(w, p.Echoed)
	w.uint(uint64(p.Phase))
}

func appendTags(w *writer, t sctp.Tags) {
	w.uint(uint64(t.Client))
	w.uint(uint64(t.Backend))
}

// readAssoc reads an association. Descriptors that are to be given are 0, others -1.
func readAssoc(r *reader) sctp.Frozen {
	in := r.record()
	flags := in.byte()
	f := sctp.Frozen{Service: in.id(), Addr: in.addrPort(), Idle: in.duration(), Left: in.duration()}
	if flags&assocSockets != 0 {
		f.Sockets = &sctp.Sockets{Backend: -1, ToBackend: readWay(&in), ToClient: readWay(&in)}
		if flags&assocBackend != 0 {
			f.Sockets.Backend = 0
		}
	} else {
		f.Packets = readPackets(&in)
		f.Packets.Counted = flags&assocCounted != 0
	}
	if flags&assocDialling != 0 {
		f.Dial = &sctp.Dialling{Frontend: lb.Frontend{Protocol: lb.Protocol(in.byte()), Addr: in.addrPort()}, Client: in.addr(),
			Tried: in.addrPorts(), Attempt: int(in.below(1<<16, "attempt")), Init: in.copied(),
			Shortages: int(in.below(1<<16, "shortage")), In: uint16(in.below(1<<16, "streams")), Out: uint16(in.below(1<<16, "streams"))}
	}
	if in.err == nil && f.Dial == nil && f.Sockets != nil && (flags&assocBackend == 0 || !f.Addr.IsValid()) {
		in.fail(errors.New("an association that is not dialling has no backend"))
	}
	r.inherit(&in)
	return f
}

func readWay(in *reader) sctp.Way {
	return sctp.Way{EOF: in.bool(), Shut: in.bool(), Partial: in.copied(), Whole: in.copied(),
		Stream: uint16(in.below(1<<16, "stream")), Flags: uint16(in.below(1<<16, "flags")), PPID: uint32(in.below(1<<32, "PPID"))}
}

func readPackets(in *reader) *sctp.Packets {
	p := new(sctp.Packets)
	for _, l := range [...]*sctp.Side{&p.Client, &p.Backend} {
		l.Peer, l.Local, l.Scope = in.addrPort(), in.addrPort(), uint32(in.below(1<<32, "scope"))
	}
	if in.err == nil && (!p.Client.Peer.IsValid() || !p.Client.Local.IsValid() || p.Backend.Peer.IsValid() != p.Backend.Local.IsValid()) {
		in.fail(errors.New("an association has no client"))
	}
	p.Tags = readTags(in)
	p.Asked, p.Waiting = uint32(in.below(1<<32, "tag")), in.duration()
	for range in.count() {
		if in.err != nil {
			break
		}
		p.Offered = append(p.Offered, readTags(in))
	}
	p.Next, p.Echoed, p.Phase = int(in.below(1<<8, "offer")), readTags(in), int(in.below(1<<8, "phase"))
	return p
}

func readTags(in *reader) sctp.Tags {
	return sctp.Tags{Client: uint32(in.below(1<<32, "tag")), Backend: uint32(in.below(1<<32, "tag"))}
}
