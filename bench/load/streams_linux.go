package load

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// silence is how long an answer may take before the connection is given up. It is
	// longer than TCP's first retransmission of a SYN (1 s), which is latency.
	silence = int64(5 * time.Second)

	// opening is how many connections may be under way at a time: fewer than a usual
	// backlog.
	opening = 256
)

var (
	errSilent = errors.New("no answer within 5 s")
	errCut    = errors.New("the connection ended before its answer was whole")
	errMore   = errors.New("there were more bytes than asked for")
)

// streams is a client with TCP connections.
type streams struct {
	*poller
	m      *meter
	config AskConfig
	addrs  []netip.AddrPort
	next   int // of addrs
	slots  []stream
	buf    []byte
	rng    *rand.Rand
	busy   int // connections that wait for their first answer
	up     int // connections that had one
	gone   int
	idle   []*stream // that wait for something to be due, where Rate is set
	due    int64     // when that is
}

// stream is one connection at a time, and the state of its request.
type stream struct {
	s       *streams
	fd      int // -1 while there is none
	asked   int64
	request int // bytes left to write
	head    header
	missing int // bytes of the answer
	first   bool
	old     bool // had an answer before
	writing bool
}

func newStreams(c AskConfig, m *meter) (*streams, error) {
	addrs, err := addresses(c)
	if err != nil {
		return nil, err
	}
	if c.Request = max(c.Request, headerSize); c.Request > largest || c.Response > largest || c.Response < 1 {
		return nil, fmt.Errorf("ask for %d bytes by %d: both are 1 to %d", c.Response, c.Request, largest)
	}
	p, err := newPoller()
	if err != nil {
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	s := &streams{poller: p, m: m, config: c, addrs: addrs, slots: make([]stream, c.Number), buf: make([]byte, largest),
		rng: rand.New(rand.NewPCG(1, 2))}
	for i := range s.slots {
		s.slots[i] = stream{s: s, fd: -1}
	}
	return s, nil
}

func (s *streams) start() error {
	s.due = now()
	if s.config.Rate > 0 && s.config.Kind == Short {
		for i := range s.slots {
			s.idle = append(s.idle, &s.slots[i])
		}
	}
	s.sweep(now())
	return nil
}

func (s *streams) poll() error {
	if s.config.Rate == 0 {
		return s.wait(sweepEvery)
	}
	until := s.due
	if len(s.idle) == 0 {
		until = math.MaxInt64 // nothing that is due can begin but by an event
	}
	err := s.waitUntil(until, sweepEvery)
	s.begin(now())
	return err
}

// begin begins what is due, as far as there are connections for it.
func (s *streams) begin(t int64) {
	for ; s.due <= t && len(s.idle) > 0; s.due += s.gap() {
		c := s.idle[len(s.idle)-1]
		s.idle = s.idle[:len(s.idle)-1]
		if c.fd < 0 {
			c.open(s.due)
		} else {
			c.ask(s.due)
			c.write()
		}
	}
}

// gap returns the time, in nanoseconds, from what is due to the next.
func (s *streams) gap() int64 {
	gap := 1e9 / s.config.Rate
	if s.config.Poisson {
		gap *= s.rng.ExpFloat64()
	}
	return int64(gap)
}

func (s *streams) warm(since int64) bool {
	if s.config.Kind == Idle {
		s.m.result.Established = s.up
		return s.up+s.gone >= len(s.slots)
	}
	return s.m.warmedUp(since)
}

func (s *streams) finish(r *Result) { r.Established, r.Finished = s.up, s.gone }

// sweep opens what is not open, which is also how a slot goes on after an error, and
// gives up what is silent.
func (s *streams) sweep(t int64) {
	for i := range s.slots {
		c := &s.slots[i]
		switch {
		case c.fd < 0 && s.busy < opening && s.reopens(c):
			c.open(t)
		case c.fd >= 0 && (c.missing > 0 || s.config.Kind == Short) && t-c.asked > silence:
			c.fail(errSilent)
		}
	}
}

// reopens reports whether a slot without a connection is for sweep to fill.
func (s *streams) reopens(c *stream) bool {
	switch s.config.Kind {
	case Idle:
		return !c.old
	case Short:
		return s.config.Rate == 0
	}
	return true
}

func (c *stream) open(t int64) {
	s := c.s
	fd, err := connect(unix.SOCK_STREAM, s.addrs[s.next%len(s.addrs)])
	s.next++
	if err != nil {
		s.m.failed(fmt.Errorf("connect: %w", err))
		c.rest()
		return
	}
	c.fd, c.writing = fd, true
	if !c.old {
		s.busy++
	}
	c.ask(t)
	if err := s.add(fd, unix.EPOLLOUT, c); err != nil {
		c.fail(fmt.Errorf("watch connection: %w", err))
	}
}

// ask makes the next request, to be written.
func (c *stream) ask(t int64) {
	s := c.s
	c.asked, c.first = t, false
	c.head = header{request: uint32(s.config.Request), response: uint32(s.config.Response)}
	if s.config.Mixed {
		size := uint32(64) << (2 * s.rng.IntN(8)) // 64 B, 256 B, ... 1 MiB
		if c.head.response = size; s.rng.IntN(4) == 0 {
			c.head.request, c.head.response = size, 64
		}
	}
	if s.config.Kind == Short {
		c.head.end = 1
	}
	c.request, c.missing = int(c.head.request), int(c.head.response)
}

func (c *stream) ready(events uint32) {
	if c.writing && events&unix.EPOLLOUT != 0 {
		c.write()
		return
	}
	c.read()
}

// write sends the request, or as much of it as there is room for.
func (c *stream) write() {
	s := c.s
	for c.request > 0 {
		done := int(c.head.request) - c.request
		if done == 0 {
			c.head.put(s.buf)
		}
		n, errno := send(c.fd, s.buf[done:c.head.request])
		if errno == unix.EAGAIN {
			c.await(true)
			return
		}
		if errno != 0 {
			c.fail(fmt.Errorf("send: %w", errno))
			return
		}
		c.request -= n
	}
	c.await(false)
}

func (c *stream) await(writing bool) {
	if c.writing == writing {
		return
	}
	if c.writing = writing; writing {
		c.s.change(c.fd, unix.EPOLLOUT)
	} else {
		c.s.change(c.fd, unix.EPOLLIN)
	}
}

// read takes the answer, or part of it, or the end of the connection. What it reads
// goes behind the header of a request, which stays where it is.
func (c *stream) read() {
	s := c.s
	n, errno := recv(c.fd, s.buf[headerSize:])
	switch {
	case errno == unix.EAGAIN:
		return
	case errno != 0:
		c.fail(fmt.Errorf("receive: %w", errno))
		return
	case n == 0:
		c.ended()
		return
	}
	t := now()
	if !c.first {
		c.first = true
		_ = s.m.first.RecordValue(t - c.asked) // below an hour
	}
	if c.missing -= n; c.missing < 0 {
		c.fail(errMore)
		return
	}
	if c.missing == 0 && s.config.Kind != Short {
		c.answered(t)
	}
}

// answered counts a whole answer.
func (c *stream) answered(t int64) {
	s := c.s
	_ = s.m.whole.RecordValue(t - c.asked) // below an hour
	s.m.result.Operations++
	s.m.result.Bytes += uint64(c.head.request) + uint64(c.head.response)
	if !c.old {
		c.old = true
		s.busy--
		s.up++
	}
	switch {
	case s.config.Kind != KeepAlive:
	case s.config.Rate > 0:
		s.idle = append(s.idle, c)
	default:
		c.ask(t)
		c.write()
	}
}

// rest has a slot of Short, whose connection has ended, wait for another to be due.
func (c *stream) rest() {
	if c.s.config.Kind == Short && c.s.config.Rate > 0 {
		c.s.idle = append(c.s.idle, c)
	}
}

// ended is the end of data, which belongs to a short connection only.
func (c *stream) ended() {
	if c.s.config.Kind != Short || c.missing > 0 {
		c.fail(errCut)
		return
	}
	t := now()
	c.answered(t)
	c.s.close(c.fd)
	if c.fd = -1; c.s.config.Rate > 0 {
		c.rest()
	} else {
		c.open(t)
	}
}

func (c *stream) fail(err error) {
	s := c.s
	s.m.failed(err)
	if c.fd >= 0 {
		s.close(c.fd)
	}
	c.fd = -1
	s.idle = slices.DeleteFunc(s.idle, func(other *stream) bool { return other == c })
	c.rest()
	if !c.old {
		s.busy--
	}
	if s.config.Kind == Idle {
		c.old = true // it is not opened again
		s.gone++
	}
}
