package report

import (
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/lb"
)

// manyWhys is how many flows are known twice, in some 20 MB: those that were chosen since as many had been, and those
// before. Flows that conntrack has longer than as many others, or the ends of which it does not say, are forgotten so.
const manyWhys = 1 << 16

// whys says why user space has chosen the endpoints of flows that are to be logged when they end. The zero value is
// ready.
type whys struct {
	mu        sync.Mutex // guards the following
	now, then map[ends]chosen
	crossing  bool     // to another process
	since     []Chosen // what was noted since Whys was called
}

// Chosen is why user space has chosen the endpoint of a flow, for the process that takes over.
type Chosen struct {
	Protocol      lb.Protocol
	Client, Asked netip.AddrPort
	Why           lb.Why
	At            time.Time
}

// ends are those of a flow, as its client sees them.
type ends struct {
	protocol      lb.Protocol
	client, asked netip.AddrPort
}

type chosen struct {
	why lb.Why
	at  time.Time
}

func endsOf(protocol lb.Protocol, client, asked netip.AddrPort) ends {
	plain := func(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
	return ends{protocol, plain(client), plain(asked)}
}

// Chose notes why user space has chosen the endpoint of a flow that the kernel forwards. Any goroutine may call it.
func (f *Flows) Chose(protocol lb.Protocol, client, asked netip.AddrPort, why lb.Why) {
	f.whys.add(endsOf(protocol, client, asked), chosen{why, time.Now()})
}

func (w *whys) add(of ends, c chosen) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.now) >= manyWhys || w.now == nil {
		w.now, w.then = make(map[ends]chosen), w.now
	}
	w.now[of] = c
	if w.crossing && len(w.since) < manyWhys {
		w.since = append(w.since, Chosen{of.protocol, of.client, of.asked, c.why, c.at})
	}
}

// Whys returns what Chose has noted of flows that have not ended, or, where it was called before, since then: the
// process that takes over goes on with both. Resume begins anew.
func (f *Flows) Whys() (all []Chosen) {
	w := &f.whys
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.crossing {
		all, w.since = w.since, nil
		return all
	}
	w.crossing = true
	for _, some := range []map[ends]chosen{w.then, w.now} {
		for of, c := range some {
			all = append(all, Chosen{of.protocol, of.client, of.asked, c.why, c.at})
		}
	}
	return all
}

// SeedWhys begins with what the process before has noted.
func (f *Flows) SeedWhys(all []Chosen) {
	for _, c := range all {
		f.whys.add(endsOf(c.Protocol, c.Client, c.Asked), chosen{c.Why, c.At})
	}
}

func (w *whys) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.crossing, w.since = false, nil
}

// take returns why the flow of an entry that has ended had its endpoint, and forgets it. Another flow may have the same
// ends since: conntrack then says when this one ended, if it notes times.
func (w *whys) take(e *flows.Entry) lb.Why {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := endsOf(e.Protocol, e.Src, e.Dst)
	for _, all := range []map[ends]chosen{w.now, w.then} {
		if c, ok := all[of]; ok && (e.Ended.IsZero() || !c.at.After(e.Ended)) {
			delete(all, of)
			return c.why
		}
	}
	return lb.NotKnown
}
