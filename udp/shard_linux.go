package udp

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/mmsg"
	"github.com/sluice-lb/sluice/internal/socket"
)

// loopShard is what a shard on a loop has. Its batches are used by one event at a time,
// whichever socket that is for.
type loopShard struct {
	loop *eventloop.Loop
	rest eventloop.Timer // runs while a walk is not at its end

	holds holds

	in     *mmsg.Reader // what a client or a backend has sent
	quotes *mmsg.Reader // what has come back as refused
	out    outgoing     // datagrams of in, to be sent
	again  outgoing     // datagrams of quotes, to be sent; out is in use meanwhile
}

// loopTransport is a transport by an event loop.
type loopTransport struct{ *shard }

// newShards makes a shard for each loop, or one without loops.
func newShards(s *Server) (all []*shard) {
	if s.Loops == nil {
		return []*shard{newGoroutines(s)}
	}
	loops := s.Loops.Loops()
	for _, loop := range loops {
		sh := newShard(s, len(loops))
		sh.io = &loopTransport{sh}
		sh.loop, sh.index = loop, loop.Index()
		sh.in, sh.quotes = mmsg.NewReader(datagramSize), mmsg.NewReader(quoteSize)
		sh.out.gso = !s.DisableGSO && segmentation()
		all = append(all, sh)
	}
	return all
}

func (l *loopTransport) do(fn func()) error { return l.loop.Do(fn) }

func (l *loopTransport) post(fn func()) error { return l.loop.Post(fn) }

// walk lets what is left of a walk wait for a timer, since all that is posted runs before
// any socket is served.
func (l *loopTransport) walk() {
	l.sendHeld(eventloop.Now())
	if !l.rest.Active() && l.shard.walk() {
		l.loop.After(&l.rest, l.shard, 0)
	}
}

// Expire goes on with a walk.
func (sh *shard) Expire(*eventloop.Timer) { sh.io.walk() }

// bind makes one frontend socket. UDP looks at what is shared when the next socket binds.
func (l *loopTransport) bind(ln *listener, addr netip.AddrPort, first bool) (at netip.AddrPort, err error) {
	fd, err := newSocket(addr.Addr())
	if err != nil {
		return at, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	socket.SetReceiveBuffer(fd, l.server.socketBuffer())
	socket.SetSendBuffer(fd, l.server.socketBuffer())
	enableGRO(fd)
	if err = setOption(fd, addr.Addr(), unix.IP_PKTINFO, unix.IPV6_RECVPKTINFO); err != nil {
		return at, err
	}
	if err = reportHops(fd, addr.Addr()); err != nil {
		return at, err
	}
	if err = socket.BindShared(fd, addr, first); err != nil {
		return at, err
	}
	ln.fd = fd
	return socket.Local(fd)
}

// reportHops makes a frontend's socket tell how many hops each datagram has left.
func reportHops(fd int, family netip.Addr) error {
	return setOption(fd, family, unix.IP_RECVTTL, unix.IPV6_RECVHOPLIMIT)
}

// newSocket returns one that never sets DF (ip(7), IP_MTU_DISCOVER). The kernel does not tell whether the sender had: a
// router that may not split what he let it split would drop the datagram. IPv6 is split here as the path is known.
func newSocket(family netip.Addr) (int, error) {
	fd, err := socket.New(family, unix.SOCK_DGRAM, 0)
	if err != nil {
		return fd, err
	}
	if family.Is6() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT)
	} else {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

// setOption switches on an option of IPv4, or of IPv6.
func setOption(fd int, family netip.Addr, v4, v6 int) error {
	if family.Is6() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, v6, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, v4, 1)
}

func (l *loopTransport) start(ln *listener) error { return l.loop.AddRead(ln.fd, ln) }

func (l *loopTransport) stop(ln *listener) {
	if l.loop.Do(func() { _ = l.loop.Close(ln.fd); ln.closeFlows(); ln.forgetHeld() }) != nil {
		_ = unix.Close(ln.fd) // the loop has ended
	}
}

func (l *loopTransport) leave(ln *listener) {
	_ = l.loop.Do(func() { // fails for a loop that has ended
		ln.receive()
		_ = l.loop.Detach(ln.fd)
		ln.park()
		ln.forgetHeld()
	})
}

// park parks every flow.
func (ln *listener) park() {
	for ln.own.first != nil {
		ln.own.first.park()
	}
}
