package tcp

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/counters"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

func (s *Server) engine() engine {
	if s.Loops == nil {
		return &s.goroutines
	}
	return &s.loops
}

// loops move the connections of a Server by event loops.
type loops struct {
	shards []*shard // one a loop; none before the first use
	offers uint32   // made since the last Thaw; of the goroutine that calls Offer
	next   int      // shard of the next socket that is alone
}

func (e *loops) width(s *Server) int {
	s.start()
	return len(e.shards)
}

func (e *loops) bind(_ *Server, addr netip.AddrPort, steered bool, sockets int) (listening, netip.AddrPort, error) {
	l := listening{steered: steered}
	for i := range sockets {
		sh := e.shards[(e.next+i)%len(e.shards)]
		fd, err := bindOne(addr, i == 0)
		if err != nil {
			return l, addr, err
		}
		l.sockets = append(l.sockets, sh.newListener(fd, steered))
		if addr, err = socket.Local(fd); err != nil {
			return l, addr, err
		}
	}
	e.next += sockets
	return l, addr, nil
}

// newListener returns what accepts on a bound socket.
func (sh *shard) newListener(fd int, steered bool) listener {
	return sh.NewListener(fd, func(fd int, peer netip.AddrPort) { sh.accept(accepted{fd, peer, steered}) })
}

// start makes the shards at the first use. The caller holds s.mu.
func (s *Server) start() {
	if s.shards != nil {
		return
	}
	for _, loop := range s.Loops.Loops() {
		s.shards = append(s.shards, newShard(s, loop))
	}
}

// bindOne makes one listening socket, the first of its port or one beside that. Accepted sockets inherit the options:
// no Nagle delay, since what is passed on has been packed by its sender, and keep-alive probes. Sockets to backends get
// both when they have lived for a while.
func bindOne(addr netip.AddrPort, first bool) (int, error) {
	fd, err := socket.New(addr.Addr(), unix.SOCK_STREAM, 0)
	if err != nil {
		return -1, err
	}
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		probe(fd),
		socket.BindShared(fd, addr, first),
	); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// probe has the kernel send keep-alive probes.
func probe(fd int) error {
	const seconds = int(keepAlive / time.Second)
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds),
	)
}

func (e *loops) tableChanged() {
	for _, sh := range e.shards {
		sh.Wake()
	}
}

// probeAs has the kernel probe a socket that it probes already, and give it up, as the policies of a Service have it.
// Options that they do not request stay as they are.
func probeAs(fd int, p *lb.Policies) error {
	var errs []error
	set := func(option int, value int64) {
		if value > 0 {
			errs = append(errs, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, int(value)))
		}
	}
	set(unix.TCP_KEEPIDLE, p.KeepaliveIdle/int64(time.Second))
	set(unix.TCP_KEEPINTVL, p.KeepaliveInterval/int64(time.Second))
	set(unix.TCP_KEEPCNT, int64(p.KeepaliveProbes))
	set(unix.TCP_USER_TIMEOUT, p.UserTimeout/int64(time.Millisecond))
	return errors.Join(errs...)
}

func (e *loops) drain(ctx context.Context) error {
	for _, sh := range e.shards {
		if err := sh.Loop.Do(sh.StartDrain); err != nil {
			return err
		}
	}
	for _, sh := range e.shards {
		if err := sh.Drain.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (e *loops) abort() {
	for _, sh := range e.shards {
		// Connections of a loop that has ended can no longer be reached: Loops must outlive the Server.
		_ = sh.Loop.Do(sh.AbortAll)
	}
}

func (e *loops) addTo(sum *Stats) {
	for _, sh := range e.shards {
		counters.Add(sum, &sh.count.stats)
	}
}
