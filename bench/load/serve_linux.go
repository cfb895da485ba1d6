package load

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/mmsg"
)

const readable = unix.EPOLLIN | unix.EPOLLRDHUP

// answer is what each HTTP request gets, about 200 bytes in all.
var answer = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 128\r\n\r\n" +
	strings.Repeat("sluice. ", 16))

// server answers on all its sockets, in one loop.
type server struct {
	*poller
	buf     []byte // what is read, by one handler at a time
	zeros   []byte
	workers []*worker
}

// serve answers until the process is killed.
func serve(c ServeConfig) error {
	p, err := newPoller()
	if err != nil {
		return fmt.Errorf("make epoll: %w", err)
	}
	s := &server{poller: p, buf: make([]byte, 256<<10), zeros: make([]byte, largest)}
	for i, kind := range c.Kinds {
		fd := 3 + i
		var h handler = &acceptor{s: s, fd: fd, kind: kind, worker: s.newWorker(c.Work[i])}
		if kind == Echo || kind == EchoGRO {
			room(fd)
			h = newEcho(fd, kind == EchoGRO)
		}
		if kind == EchoGRO {
			if err := receiveBatches(fd); err != nil {
				return err
			}
		}
		// Passing a file on has made it blocking (os.File.Fd).
		if err := errors.Join(unix.SetNonblock(fd, true), s.add(fd, unix.EPOLLIN, h)); err != nil {
			return fmt.Errorf("watch socket %d: %w", i, err)
		}
	}
	for {
		if err := p.wait(s.rest()); err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		for _, w := range s.workers {
			w.answer(s)
		}
	}
}

// read reads into buf; 0 means that there is nothing, or that the connection is over
// and closed.
func (s *server) read(fd int) int {
	n, errno := recv(fd, s.buf)
	if errno == unix.EAGAIN {
		return 0
	}
	if errno != 0 || n == 0 {
		s.close(fd)
		return 0
	}
	return n
}

// acceptor is a listening socket.
type acceptor struct {
	s      *server
	fd     int
	kind   string
	worker *worker
}

func (a *acceptor) ready(uint32) {
	for range 64 {
		fd, _, err := unix.Accept4(a.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // on a socket it cannot fail
		var h handler = &sizedConn{s: a.s, fd: fd, worker: a.worker}
		if a.kind == HTTP {
			h = &httpConn{s: a.s, fd: fd}
		}
		if a.s.add(fd, readable, h) != nil {
			a.s.close(fd)
		}
	}
}

// httpConn answers each request, which ends with an empty line and has no body.
type httpConn struct {
	s       *server
	fd      int
	matched int // bytes of the line ends that were seen last
}

func (c *httpConn) ready(uint32) {
	n := c.s.read(c.fd)
	for _, b := range c.s.buf[:n] {
		switch {
		case b == "\r\n\r\n"[c.matched]:
			c.matched++
		case b == '\r':
			c.matched = 1
		default:
			c.matched = 0
		}
		if c.matched == 4 {
			c.matched = 0
			if sent, _ := send(c.fd, answer); sent < len(answer) { // the client does not read what it asked for
				c.s.close(c.fd)
				return
			}
		}
	}
}

// sizedConn answers requests that say how long they and their answers are.
type sizedConn struct {
	s       *server
	worker  *worker // nil: it answers at once
	fd      int
	head    [headerSize]byte
	got     int // bytes of the request
	owed    int // bytes of the answer
	writing bool
}

func (c *sizedConn) ready(events uint32) {
	if c.writing {
		if events&unix.EPOLLOUT != 0 {
			c.write()
		} else if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			c.s.close(c.fd)
		}
		return
	}
	n := c.s.read(c.fd)
	if n == 0 {
		return
	}
	if c.got < headerSize {
		copy(c.head[c.got:], c.s.buf[:n])
	}
	if c.got += n; c.got < headerSize {
		return
	}
	h := getHeader(c.head[:])
	if h.request < headerSize || h.request > largest || h.response > largest || c.got > int(h.request) {
		c.s.close(c.fd) // not one of ours; a client asks nothing more before its answer
		return
	}
	if c.got == int(h.request) {
		c.owed = int(h.response)
		if c.worker != nil {
			c.worker.take(c)
			return
		}
		c.write()
	}
}

// write sends what is owed, and registers for room to write if there is more.
func (c *sizedConn) write() {
	for c.owed > 0 {
		n, errno := send(c.fd, c.s.zeros[:c.owed])
		if errno == unix.EAGAIN {
			c.await(true)
			return
		}
		if errno != 0 {
			c.s.close(c.fd)
			return
		}
		c.owed -= n
	}
	if getHeader(c.head[:]).end != 0 {
		c.s.close(c.fd)
		return
	}
	c.got = 0
	c.await(false)
}

func (c *sizedConn) await(writing bool) {
	if c.writing == writing {
		return
	}
	if c.writing = writing; writing {
		c.s.change(c.fd, unix.EPOLLOUT)
	} else {
		c.s.change(c.fd, readable)
	}
}

// echo sends datagrams back, those that came together as one.
type echo struct {
	fd      int
	in      *mmsg.Reader
	headers [mmsg.Slots]unix.Mmsghdr
	vectors [mmsg.Slots]unix.Iovec
	control [mmsg.Slots]mmsg.ControlBuffer
}

func newEcho(fd int, gro bool) *echo {
	e := &echo{fd: fd, in: mmsg.NewReader(readSize(gro))}
	for i := range e.headers {
		e.headers[i].Hdr.Iov = &e.vectors[i]
		e.headers[i].Hdr.SetIovlen(1)
	}
	return e
}

func (e *echo) ready(uint32) {
	for range 8 {
		n, err := e.in.Read(e.fd, 0)
		if err != nil {
			return // EAGAIN, or an ICMP error about an answer to a client that has gone
		}
		for i := range n {
			p := e.in.Payload(i)
			e.vectors[i].Base = unsafe.SliceData(p)
			e.vectors[i].SetLen(len(p))
			length := 0
			if size := e.in.Control(i).SegmentSize(); 0 < size && size < len(p) {
				length = mmsg.PutSegmentSize(e.control[i][:], size)
			}
			mmsg.Address(&e.headers[i].Hdr, e.in.Name(i), &e.control[i], length)
		}
		_, _ = mmsg.Send(e.fd, e.headers[:n]) // what does not go is counted as lost by the client
		if n < mmsg.Slots {
			return
		}
	}
}
