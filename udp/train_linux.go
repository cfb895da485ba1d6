package udp

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// refusals is how often a socket is read empty to find a moment without trains.
const refusals = 16

// takeTrains has the kernel leave together what has come together: datagrams of one
// sender, all but the last equally long, up to 64 KiB, of which each receive tells how
// long they are (UDP_GRO, udp(7)). A kernel that does not know that (before 5.0) takes
// them apart, as for anybody else.
func (s *Server) takeTrains(fd int) {
	if !s.single.Load() {
		setTrains(fd, 1)
	}
}

func (sh *shard) takeTrains(fd int) { sh.server.takeTrains(fd) }

func setTrains(fd, on int) { _ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, on) }

// RefuseTrains has all sockets, also those of flows to come, take datagrams one by one
// only, and leaves no train in their queues. It is for handing them over to a program that
// would take a train for a datagram. Of a socket that never runs empty it drops what is
// queued, which counts as Busy, a train as one; what another processor is putting into a queue at the very
// moment that the option changes is not found. It returns when it is done, while all flows
// go on.
func (s *Server) RefuseTrains() error {
	return s.eachShard(true, func(sh *shard, listeners []*listener) {
		for _, ln := range listeners {
			sh.refuseTrains(ln.fd, func() bool { ln.HandleEvent(0); return true })
		}
		flows := make([]*flow, 0, sh.recency.len)
		for f := sh.recency.first; f != nil; f = f.links[byLoop].next {
			flows = append(flows, f)
		}
		for _, f := range flows {
			if f.fd >= 0 {
				sh.refuseTrains(f.fd, func() bool { f.receive(eventloop.Now()); return f.fd >= 0 })
			}
		}
	})
}

// AcceptTrains undoes RefuseTrains.
func (s *Server) AcceptTrains() error {
	return s.eachShard(false, func(sh *shard, listeners []*listener) {
		for _, ln := range listeners {
			setTrains(ln.fd, 1)
		}
		for f := sh.recency.first; f != nil; f = f.links[byLoop].next {
			setTrains(f.fd, 1)
		}
	})
}

// eachShard notes whether trains are refused and runs do on each loop, with its listeners.
func (s *Server) eachShard(single bool, do func(*shard, []*listener)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.single.Store(single)
	for _, sh := range s.shards {
		var listeners []*listener
		for _, group := range s.listeners {
			for _, ln := range group {
				if ln.shard == sh {
					listeners = append(listeners, ln)
				}
			}
		}
		if err := sh.loop.Do(func() { do(sh, listeners) }); err != nil {
			return err
		}
	}
	return nil
}

// refuseTrains has one socket take none. The length of a train's datagrams is told only
// while the option is on, also for those that came before, so that it may be turned off
// only while the queue is empty. read receives, and reports whether fd is still open.
func (sh *shard) refuseTrains(fd int, read func() bool) {
	for range refusals {
		if !read() {
			return
		}
		setTrains(fd, 0)
		if !readable(fd) {
			return
		}
		setTrains(fd, 1)
	}
	setTrains(fd, 0)
	for range sh.server.socketBuffer() / slots { // each takes more than a byte of it
		n, err := sh.in.receive(fd, 0)
		sh.count.busy.Add(uint64(n))
		if err != nil || n < slots {
			return
		}
	}
}

// readable reports whether a socket has something to receive.
func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err != nil || n > 0
}
