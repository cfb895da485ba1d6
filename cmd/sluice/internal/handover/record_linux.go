package handover

import (
	"fmt"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// maxWaiting is the most that one direction of a connection may have in hand, bytes:
// a pipe of pipe-max-size and a buffer, generously.
const maxWaiting = 16 << 20

// The bits of a connection's flags.
const (
	named       = 1 << iota // service and backend follow
	hasBackend              // it has a socket to the backend
	backendEOF              // ToBackend.EOF
	backendShut             // ToBackend.Shut
	clientEOF               // ToClient.EOF
	clientShut              // ToClient.Shut
	dialling                // Dial follows
)

// appendConn writes a connection, but for its file descriptors and the bytes that wait, of
// which it has the number. One that was offered need not be named again.
func appendConn(w *writer, f *tcp.Frozen, name bool) {
	w.uint(uint64(f.Offer))
	w.byte(connFlags(f, name))
	w.uint(uint64(len(f.ToBackend.Waiting)))
	w.uint(uint64(len(f.ToClient.Waiting)))
	if name {
		w.id(f.Service)
		w.addrPort(f.Addr)
	}
	if d := f.Dial; d != nil {
		w.byte(byte(d.Frontend.Protocol))
		w.addrPort(d.Frontend.Addr)
		w.addr(d.Client)
		w.addrPorts(d.Tried)
		w.uint(uint64(d.Attempt))
		w.uint(uint64(d.Shortages))
		w.duration(d.Left)
	}
}

func connFlags(f *tcp.Frozen, name bool) byte {
	return bit(name, named) | bit(f.Backend >= 0, hasBackend) |
		bit(f.ToBackend.EOF, backendEOF) | bit(f.ToBackend.Shut, backendShut) |
		bit(f.ToClient.EOF, clientEOF) | bit(f.ToClient.Shut, clientShut) | bit(f.Dial != nil, dialling)
}

// bit returns b if it is so, else 0.
func bit(is bool, b byte) byte {
	if is {
		return b
	}
	return 0
}

// conn is a connection as it arrives: its file descriptors come apart, and the bytes that
// wait later.
type conn struct {
	tcp.Frozen
	named               bool
	toBackend, toClient int // bytes that wait
}

func readConn(r *reader) (c conn) {
	c.Offer = uint32(r.below(1<<32, "offer"))
	flags := r.byte()
	c.named = flags&named != 0
	c.Client, c.Backend = -1, -1
	if flags&hasBackend != 0 {
		c.Backend = 0 // to be given
	}
	c.ToBackend.EOF, c.ToBackend.Shut = flags&backendEOF != 0, flags&backendShut != 0
	c.ToClient.EOF, c.ToClient.Shut = flags&clientEOF != 0, flags&clientShut != 0
	c.toBackend = int(r.below(maxWaiting+1, "number of bytes that wait"))
	c.toClient = int(r.below(maxWaiting+1, "number of bytes that wait"))
	if c.named {
		c.Service, c.Addr = r.id(), r.addrPort()
	}
	if flags&dialling != 0 {
		c.Dial = &tcp.Dialling{Frontend: lb.Frontend{Protocol: lb.Protocol(r.byte()), Addr: r.addrPort()},
			Client: r.addr(), Tried: r.addrPorts(),
			Attempt: int(r.below(1<<16, "attempt")), Shortages: int(r.below(1<<16, "shortage")), Left: r.duration()}
	}
	if c.Dial == nil && r.err == nil && (c.Backend < 0 || c.Offer == 0 && !c.Addr.IsValid()) {
		r.fail(fmt.Errorf("a connection that is not dialling has no backend"))
	}
	return c
}

// appendFlow writes a flow, but for its file descriptor.
func appendFlow(w *writer, f *udp.Frozen) {
	w.uint(uint64(f.Listening))
	w.uint(uint64(f.Member))
	w.addrPort(f.Client)
	w.uint(uint64(f.Scope))
	w.addr(f.Local)
	w.id(f.Service)
	w.addrPort(f.Addr)
	w.addrPorts(f.Tried)
	w.uint(uint64(f.Attempts))
	w.uint(uint64(f.LastSize))
	w.duration(f.Idle)
	w.duration(f.Leaving)
	w.duration(f.Trial)
	w.bool(f.PlainIn)
	w.bool(f.PlainOut)
}

func readFlow(r *reader) udp.Frozen {
	f := udp.Frozen{
		Listening: int(r.below(1<<24, "frontend")), Member: int(r.below(1<<16, "socket")), FD: -1,
		Client: r.addrPort(), Scope: uint32(r.below(1<<32, "scope")), Local: r.addr(),
		Service: r.id(), Addr: r.addrPort(), Tried: r.addrPorts(),
		Attempts: int(r.below(1<<16, "attempt")), LastSize: int(r.below(1<<17, "size")),
		Idle: r.duration(), Leaving: r.duration(), Trial: r.duration(), PlainIn: r.bool(), PlainOut: r.bool(),
	}
	if r.err == nil && (!f.Client.IsValid() || !f.Local.IsValid()) {
		r.fail(fmt.Errorf("a flow has no client or no local address"))
	}
	return f
}

// appendClients writes what is remembered of the clients of a service, their last use
// as the time since.
func appendClients(w *writer, id lb.ID, clients []lb.Client, now int64) {
	w.id(id)
	w.uint(uint64(len(clients)))
	for _, c := range clients {
		w.addr(c.Addr)
		w.addrPort(c.Backend)
		w.duration(time.Duration(now - c.LastUsed))
	}
}

func readClients(r *reader, now int64) (lb.ID, []lb.Client) {
	id := r.id()
	var clients []lb.Client
	for range r.count() {
		if r.err != nil {
			break
		}
		c := lb.Client{Addr: r.addr(), Backend: r.addrPort(), LastUsed: now - int64(r.duration())}
		if r.err == nil && !c.Addr.IsValid() {
			r.fail(fmt.Errorf("a client with affinity has no address"))
		}
		clients = append(clients, c)
	}
	return id, clients
}

func appendMemory(w *writer, m *lb.Memory) {
	w.id(m.ID)
	for _, v := range [...]uint64{m.First[0], m.Retry[0], m.First[1], m.Retry[1], m.Picks, m.Failures, m.BytesIn,
		m.BytesOut,
		m.NoBackend, m.NoLocalBackend, m.NotAllowed} {
		w.uint(v)
	}
	w.uint(uint64(len(m.Backends)))
	for _, b := range m.Backends {
		w.addrPort(b.Addr)
		w.uint(b.Picks)
		w.uint(b.Failures)
		w.uint(b.BytesIn)
		w.uint(b.BytesOut)
	}
}

func readMemory(r *reader) (m lb.Memory) {
	m.ID = r.id()
	for _, v := range [...]*uint64{&m.First[0], &m.Retry[0], &m.First[1], &m.Retry[1], &m.Picks, &m.Failures,
		&m.BytesIn, &m.BytesOut,
		&m.NoBackend, &m.NoLocalBackend, &m.NotAllowed} {
		*v = r.uint()
	}
	for range r.count() {
		if r.err != nil {
			break
		}
		m.Backends = append(m.Backends, lb.BackendMemory{Addr: r.addrPort(), Picks: r.uint(), Failures: r.uint(),
			BytesIn: r.uint(), BytesOut: r.uint()})
	}
	return m
}

func decodeClients(b []byte, e *State) error {
	now := eventloop.Now()
	r := reader{b: b}
	for r.more() {
		if id, clients := readClients(&r, now); r.err == nil {
			e.LB.RememberClients(id, clients)
		}
	}
	return r.err
}

func decodeMemory(b []byte, e *State) error {
	r := reader{b: b}
	for r.more() {
		if m := readMemory(&r); r.err == nil {
			e.LB.Remember([]lb.Memory{m})
		}
	}
	return r.err
}
