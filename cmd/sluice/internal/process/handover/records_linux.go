package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// offer is a connection that relays meanwhile.
func (c *codec) offer(f *tcp.Frozen) {
	number(c, &f.Offer)
	c.connEnds(f)
}

func (c *codec) connEnds(f *tcp.Frozen) {
	c.fd(&f.Client)
	c.fdOrNone(&f.Backend)
	c.id(&f.Service)
	c.addrPort(&f.Addr)
}

// conn is a connection that has stopped. Of one that was offered the ends are known.
func (c *codec) conn(f *tcp.Frozen) {
	if number(c, &f.Offer); f.Offer == 0 {
		c.connEnds(f)
	}
	dialling := f.Dial != nil
	c.bools(&f.ToBackend.EOF, &f.ToBackend.Shut, &f.ToClient.EOF, &f.ToClient.Shut, &dialling, &f.Transparent)
	c.bytes(&f.ToBackend.Waiting)
	number(c, &f.Header)
	c.bytes(&f.ToClient.Waiting)
	c.record(func() { c.kept(&f.Kept) })
	if dialling {
		if c.reading {
			f.Dial = new(tcp.Dialling)
		}
		c.record(func() { c.dialling(f.Dial) })
	}
	if c.reading && c.err == nil && f.Offer == 0 && f.Dial == nil && (f.Backend < 0 || !f.Addr.IsValid()) {
		c.fail(errors.New("a connection that is not dialling has no endpoint"))
	}
}

func (c *codec) kept(k *session.Kept) {
	for _, v := range [...]*int64{&k.Born, &k.Answered, &k.Active, &k.ClientEnd, &k.BackendEnd, &k.Gone} {
		c.instant(v)
	}
	number(c, &k.In)
	number(c, &k.Out)
	number(c, &k.Chance)
	number(c, &k.Drain)
	c.bools(&k.Counted)
	c.why(&k.Why)
}

func (c *codec) dialling(d *session.Dialling) {
	number(c, &d.Frontend.Protocol)
	c.addrPort(&d.Frontend.Addr)
	c.addr(&d.Client)
	number(c, &d.Port)
	list(c, &d.Tried, c.addrPort)
	number(c, &d.Attempt)
	number(c, &d.Shortages)
	number(c, &d.Left)
	c.bools(&d.Held)
	c.instant(&d.Queued)
}

func (c *codec) flow(f *udp.Frozen) {
	number(c, &f.Listening)
	number(c, &f.Member)
	c.fd(&f.FD)
	c.addrPort(&f.Client)
	number(c, &f.Scope)
	c.addr(&f.Local)
	c.id(&f.Service)
	c.addrPort(&f.Addr)
	list(c, &f.Tried, c.addrPort)
	number(c, &f.Attempts)
	number(c, &f.LastSize)
	c.instant(&f.Born)
	number(c, &f.In)
	number(c, &f.Out)
	number(c, &f.Idle)
	number(c, &f.Leaving)
	number(c, &f.Trial)
	c.bytes(&f.Header)
	c.bools(&f.PlainIn, &f.PlainOut, &f.Answered, &f.Known, &f.Silent)
	c.instant(&f.Heard)
	c.instant(&f.Awaits)
	number(c, &f.Followed)
	c.why(&f.Why)
	if c.reading && c.err == nil && (!f.Client.IsValid() || !f.Local.IsValid()) {
		c.fail(errors.New("a flow has no client or no local address"))
	}
}

// assoc passes an SCTP association. What only SCTP has is JSON, since associations are few and live for long.
func (c *codec) assoc(f *sctp.Frozen) {
	var b []byte
	if !c.reading {
		b, c.err = json.Marshal(f)
	}
	if c.bytes(&b); c.reading && c.err == nil {
		if err := json.Unmarshal(b, f); err != nil {
			c.fail(fmt.Errorf("decode SCTP association: %w", err))
		} else if (f.Sockets == nil) == (f.Packets == nil) {
			c.fail(errors.New("an SCTP association of no engine"))
		}
	}
	c.record(func() { c.kept(&f.Kept) })
	if f.Dial != nil {
		c.record(func() { c.dialling(&f.Dial.Dialling) })
	}
	if f.Packets != nil {
		c.instant(&f.Packets.Asking)
	}
	if f.Sockets != nil {
		c.fd(&f.Sockets.Client)
		c.fdOrNone(&f.Sockets.Backend)
	}
}

// affinity is what is remembered of the clients of a service.
type affinity struct {
	id      lb.ID
	clients []lb.Client
}

func (c *codec) affinity(a *affinity) {
	c.id(&a.id)
	records(c, &a.clients, func(v *lb.Client) {
		c.addr(&v.Addr)
		c.addrPort(&v.Backend)
		c.instant(&v.LastUsed)
		if c.reading && !v.Addr.IsValid() {
			c.fail(errors.New("a client with affinity has no address"))
		}
	})
}

// conversations are what is remembered of the UDP clients of a service.
type conversations struct {
	id  lb.ID
	all []balancer.Conversation
}

func (c *codec) conversations(of *conversations) {
	c.id(&of.id)
	records(c, &of.all, func(v *balancer.Conversation) {
		number(c, &v.Key)
		c.addrPort(&v.Backend)
		c.bools(&v.Answered, &v.Stream)
		c.instant(&v.Time)
	})
}

// rates are what the clients of a service have used of theirs.
type rates struct {
	id  lb.ID
	all []balancer.ClientRate
}

func (c *codec) rates(of *rates) {
	c.id(&of.id)
	records(c, &of.all, func(v *balancer.ClientRate) {
		c.addr(&v.Addr)
		c.instant(&v.Rested)
		if c.reading && !v.Addr.IsValid() {
			c.fail(errors.New("a client with a rate has no address"))
		}
	})
}

// memory passes what Memory.Remember needs.
func (c *codec) memory(m *balancer.Stats) {
	c.id(&m.ID)
	for _, v := range [...]*uint64{&m.First[0], &m.Retry[0], &m.First[1], &m.Retry[1], &m.Gone.Picks, &m.Gone.Failures,
		&m.Gone.BytesIn, &m.Gone.BytesOut, &m.NoBackend, &m.NoLocalBackend, &m.NotAllowed, &m.Limited} {
		number(c, v)
	}
	c.record(func() { c.ends(&m.Ends) })
	records(c, &m.Backends, func(b *balancer.BackendStats) {
		c.addrPort(&b.Addr)
		for _, v := range [...]*uint64{&b.Picks, &b.Failures, &b.BytesIn, &b.BytesOut} {
			number(c, v)
		}
		known := b.Health != balancer.BackendHealth{}
		if c.bools(&known); known {
			c.record(func() { c.health(&b.Health) })
		}
		paced := b.Pace != balancer.Pace{}
		if c.bools(&paced); paced {
			c.record(func() { c.pace(&b.Pace) })
		}
	})
}

// ends are how connections have ended; nil: all as they should.
func (c *codec) ends(v **lb.Ends) {
	known := *v != nil
	if c.bools(&known); !known {
		return
	}
	if c.reading {
		*v = new(lb.Ends)
	}
	for i := range *v {
		number(c, &(*v)[i])
	}
}

// times are the histograms of a service.
type times struct {
	id  lb.ID
	all *balancer.Times
}

// times passes the buckets that are not empty, each with the distance from the one before.
func (c *codec) times(of *times) {
	c.id(&of.id)
	if c.reading {
		of.all = new(balancer.Times)
	}
	for m := range of.all {
		h := &of.all[m]
		number(c, &h.Sum)
		at := 0
		for {
			next := at
			for !c.reading && next < len(h.Buckets) && h.Buckets[next] == 0 {
				next++
			}
			skip := next - at
			if number(c, &skip); c.err != nil || skip < 0 || skip >= len(h.Buckets)-at { // the rest is empty
				break
			}
			at += skip
			number(c, &h.Buckets[at])
			at++
		}
	}
}

// pace passes what algorithms remember of an endpoint.
func (c *codec) pace(p *balancer.Pace) {
	number(c, &p.Delay)
	c.instant(&p.Measured)
	c.bools(&p.Starts)
	c.instant(&p.Began)
	number(c, &p.Had)
}

// health passes what is known of an endpoint that has failed.
func (c *codec) health(h *balancer.BackendHealth) {
	c.bools(&h.Ejected, &h.Failing)
	c.string(&h.Reason)
	c.string(&h.Why)
	for i := range h.Failures {
		number(c, &h.Failures[i])
	}
	number(c, &h.Times)
	number(c, &h.Kind)
	for _, v := range [...]*int64{&h.Returned, &h.At, &h.Until, &h.Trial} {
		c.instant(v)
	}
}

// chosen passes why a flow that the kernel forwards has its endpoint. Its time is wall time, as that of conntrack.
func (c *codec) chosen(v *report.Chosen) {
	number(c, &v.Protocol)
	c.addrPort(&v.Client)
	c.addrPort(&v.Asked)
	c.why(&v.Why)
	at := int64(0)
	if !v.At.IsZero() {
		at = v.At.UnixNano()
	}
	if number(c, &at); c.reading && at != 0 {
		v.At = time.Unix(0, at)
	}
}
