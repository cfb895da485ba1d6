package load

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/mmsg"
)

// datagrams is a client with UDP flows. Each flow sends its window at once, waits
// until every datagram of it has been answered or is lost, and sends the next.
type datagrams struct {
	*poller
	m        *meter
	config   AskConfig
	addrs    []netip.AddrPort
	next     int // of addrs
	window   int
	flows    []udpFlow
	in       *mmsg.Reader
	out      *burst
	question []byte // of DNS; nil for other kinds
}

// udpFlow is one client's socket. Its datagrams are numbered, and their numbers are
// in them.
type udpFlow struct {
	s       *datagrams
	fd      int    // -1 while there is none
	number  uint32 // of the window's first datagram
	waiting uint64 // a bit for each slot without an answer
	sent    int64  // when the window went out
}

func newDatagrams(c AskConfig, m *meter) (*datagrams, error) {
	addrs, err := addresses(c)
	if err != nil {
		return nil, err
	}
	s := &datagrams{m: m, config: c, addrs: addrs, window: max(c.Window, 1), flows: make([]udpFlow, c.Number),
		in: mmsg.NewReader(readSize(c.GRO))}
	if s.config.Patience == 0 {
		s.config.Patience = 500 * time.Millisecond
	}
	if c.Kind == DNS {
		if s.question, err = question(c.Name); err != nil {
			return nil, err
		}
		s.window, s.config.Request = 1, len(s.question)
	}
	if s.window > maxWindow || s.config.Request < 4 || s.config.Request > maxDatagram {
		return nil, fmt.Errorf("send windows of %d datagrams of %d bytes: at most %d of 4 to %d", s.window,
			s.config.Request, maxWindow, maxDatagram)
	}
	if c.GSO && s.window*s.config.Request > maxBatch {
		return nil, fmt.Errorf("send windows of %d datagrams of %d bytes as one: at most %d bytes", s.window,
			s.config.Request, maxBatch)
	}
	if s.poller, err = newPoller(); err != nil {
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	s.out = newBurst(s.window, s.config.Request, c.GSO)
	for i := range s.flows {
		s.flows[i] = udpFlow{s: s, fd: -1}
	}
	for _, p := range s.out.data {
		copy(p, s.question)
	}
	return s, nil
}

// question is a query for the IPv4 address of a name; the first two bytes are its ID.
func question(name string) ([]byte, error) {
	n, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, fmt.Errorf("ask for name %q: %w", name, err)
	}
	q := dnsmessage.Message{
		Header:    dnsmessage.Header{RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	return q.Pack()
}

func (s *datagrams) start() error {
	s.sweep(now())
	return nil
}

func (s *datagrams) poll() error { return s.wait(sweepEvery) }

func (s *datagrams) warm(since int64) bool { return s.m.warmedUp(since) }

func (s *datagrams) finish(*Result) {}

// sweep opens flows that are not open, a few at a time, and counts what is lost.
func (s *datagrams) sweep(t int64) {
	opened := 0
	for i := range s.flows {
		f := &s.flows[i]
		switch {
		case f.fd < 0 && opened < opening:
			opened++
			f.open()
		case f.waiting != 0 && t-f.sent > int64(s.config.Patience):
			s.m.result.Lost += uint64(bits.OnesCount64(f.waiting))
			f.number += uint32(s.window) // what comes now is late
			f.advance()
		}
	}
}

func (f *udpFlow) open() {
	s := f.s
	fd, err := connect(unix.SOCK_DGRAM, s.addrs[s.next%len(s.addrs)])
	s.next++
	if err != nil {
		s.m.failed(fmt.Errorf("connect: %w", err))
		return
	}
	room(fd)
	if s.config.GRO {
		if err := receiveBatches(fd); err != nil {
			s.m.failed(err)
		}
	}
	f.fd = fd
	if err := s.add(fd, unix.EPOLLIN, f); err != nil {
		s.m.failed(fmt.Errorf("watch flow: %w", err))
		s.close(fd)
		f.fd = -1
		return
	}
	f.burst()
}

// advance goes on after a window: with the next, or as a flow of its own.
func (f *udpFlow) advance() {
	if !f.s.config.Fresh {
		f.burst()
		return
	}
	f.s.close(f.fd)
	f.fd = -1
	f.open()
}

// burst sends a window.
func (f *udpFlow) burst() {
	s := f.s
	for i, p := range s.out.data {
		s.stamp(p, f.number+uint32(i))
	}
	f.sent = now()
	f.waiting = ^uint64(0) >> (64 - s.window)
	if err := s.out.send(f.fd); err != nil {
		s.m.failed(err) // what did not go counts as lost, too
	}
}

// stamp writes a datagram's number where its answer has it.
func (s *datagrams) stamp(p []byte, number uint32) {
	if s.question != nil {
		binary.BigEndian.PutUint16(p, uint16(number))
		return
	}
	binary.BigEndian.PutUint32(p, number)
}

// slot returns which datagram of the window p answers; false if none.
func (f *udpFlow) slot(p []byte) (int, bool) {
	s := f.s
	if s.question == nil {
		if len(p) != s.config.Request {
			return 0, false
		}
		i := binary.BigEndian.Uint32(p) - f.number
		return int(i), i < uint32(s.window)
	}
	// A response (QR) without an error (RCODE) and with an answer: RFC 1035, 4.1.1.
	good := len(p) > len(s.question) && p[2]&0x80 != 0 && p[3]&0x0f == 0 && binary.BigEndian.Uint16(p[6:]) > 0
	return 0, good && binary.BigEndian.Uint16(p) == uint16(f.number)
}

func (f *udpFlow) ready(uint32) {
	s := f.s
	n, err := s.in.Read(f.fd, 0)
	if err != nil {
		if err != unix.EAGAIN {
			s.m.failed(fmt.Errorf("receive: %w", err))
		}
		return
	}
	t := now()
	for i := range n {
		p := s.in.Payload(i)
		for size := cmp.Or(s.in.Control(i).SegmentSize(), len(p)); len(p) > 0; p = p[min(size, len(p)):] {
			f.answered(p[:min(size, len(p))], t)
		}
	}
	f.done()
}

// answered notes a datagram.
func (f *udpFlow) answered(p []byte, t int64) {
	slot, ok := f.slot(p)
	if !ok || f.waiting&(1<<slot) == 0 {
		return // late: it counts as lost already
	}
	f.waiting &^= 1 << slot
	_ = f.s.m.whole.RecordValue(t - f.sent) // below an hour
	f.s.m.result.Operations++
	f.s.m.result.Bytes += uint64(f.s.config.Request) + uint64(len(p))
}

// done goes on if the window is over.
func (f *udpFlow) done() {
	if f.waiting == 0 {
		f.number += uint32(f.s.window)
		f.advance()
	}
}
